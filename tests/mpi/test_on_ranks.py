"""Runs the tests in tests/mpi/ranks on 1 to 5 ranks, under every MPI library that is installed.

The jobs of ``make test`` share the cases among them (`shares.in_share`); those of ``make test-all`` run the others.
"""

from pathlib import Path

import pytest

from tests.support.launcher import mpiexec
from tests.support.shares import ALONE, MOST, SHARING, in_share

FOLDER = Path(__file__).parent / "ranks"
FILES = sorted(path.name for path in FOLDER.glob("test_*.py"))
ALL = [(library, ranks) for library in ("openmpi", "mpich") for ranks in (1, 2, 3, 4, 5)]
AS_IF_ON_GPU = [
    ("openmpi", "staged", ["test_algorithms.py", "test_allreduce.py", "test_coding.py"]),
    ("openmpi", "ipc", ["test_allreduce.py", "test_parameter_server.py"]),
    ("mpich", "direct", ["test_allreduce.py", "test_coding.py"]),
]
AS_IF_ON_GPU_QUICK = [("openmpi", "staged", ["test_allreduce.py", "test_coding.py"])]
HANGS_SECONDS = 15
"""After so long in one test each rank prints where it stands: less than the 20 s after which one of them ends the job,
which could not say it any more."""
QUICK, REST, EVERY = "not exhaustive", "exhaustive", ""
NOTHING_TO_RUN = 5
"""Exit code of pytest if a file has no such case."""


def with_cases(jobs, cases, *marks) -> list:
    """Jobs, each with the cases that it runs."""
    return [
        pytest.param(*job, cases, id="-".join(map(str, job[:2])) + ("-rest" if marks else ""), marks=marks)
        for job in jobs
    ]


def run_tests(library, ranks, cases, *files, **environment):
    code, output = run_job(library, ranks, cases, *files, **environment)
    assert code == 0, output[-30000:]
    assert " passed" in output, output[-2000:]


def run_job(library, ranks, cases, *files, **environment) -> tuple[int, str]:
    what = [FOLDER / file for file in files] or [FOLDER]
    says_where = ["-o", f"faulthandler_timeout={HANGS_SECONDS}"]
    # -s: what a rank says that ends its job at once, would be lost with what pytest has captured of it.
    arguments = ["-m", "pytest", "-q", "-s", "--color=no", "-p", "no:cacheprovider", *says_where, "-m", cases, *what]
    environment |= {"GRSGD_TEST_RANKS": str(ranks), "GRSGD_TEST_LIBRARY": library}
    return mpiexec(library, ranks, arguments, timeout=600, environment=environment)


@pytest.mark.parametrize(("library", "ranks", "cases"), with_cases([ALONE, *SHARING], QUICK))
def test_on_ranks(library, ranks, cases):
    run_tests(library, ranks, cases)


@pytest.mark.exhaustive
@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize(("library", "ranks"), ALL)
def test_rest_on_ranks(library, ranks, file):
    """A job for each file: the cases of all files on five ranks take six minutes, ten beside other tests."""
    code, output = run_job(library, ranks, REST, file)
    assert code in (0, NOTHING_TO_RUN), output[-30000:]


@pytest.mark.parametrize(
    ("library", "way", "files", "cases"),
    with_cases(AS_IF_ON_GPU_QUICK, QUICK) + with_cases(AS_IF_ON_GPU, EVERY, pytest.mark.exhaustive),
)
def test_as_if_arrays_lay_on_a_gpu(library, way, files, cases):
    """Some of the same tests, with all messages taking the way of arrays in GPU memory."""
    run_tests(library, 3, cases, *files, GRSGD_TEST_TRANSFER=way)


@pytest.mark.parametrize("cases", [1, 2, 4, 5, 6, 23, 40, 41, 700])
@pytest.mark.parametrize("counts", [(1,), (1, 2), (2, 3), (3,), (4,), (2, 3, 4, 5), (1, 2, 3, 4, 5)])
def test_cases_are_shared_out_among_jobs_of_both_libraries(cases, counts):
    usable = [job for job in SHARING if job[1] in counts]
    for offset in range(7):
        shares = {
            job: [case for case in range(cases) if in_share(job, case, cases, counts, offset)]
            for job in (ALONE, *SHARING)
        }
        assert len(shares.pop(ALONE)) == (1 in counts)
        running = [job for job, share in shares.items() if share]
        assert len(running) == min(len(usable), MOST) and set(running) <= set(usable)
        assert {library for library, _ in running} == {library for library, _ in usable}
        assert all(len(share) <= 1 for share in shares.values())
        assert len({case for share in shares.values() for case in share}) == min(cases, len(running))
