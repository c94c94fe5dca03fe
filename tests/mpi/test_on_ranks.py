"""Runs the tests in tests/mpi/ranks on 1 to 5 ranks, under every MPI library that is installed."""

import pytest
from launcher import mpiexec


def run_tests(library, ranks, *files, **environment):
    folder = "tests/mpi/ranks"
    what = [f"{folder}/{file}" for file in files] or [folder]
    arguments = ["-m", "pytest", "-q", "--color=no", "-p", "no:cacheprovider", *what]
    environment["GRSGD_TEST_RANKS"] = str(ranks)
    code, output = mpiexec(library, ranks, arguments, timeout=300, environment=environment)
    assert code == 0, output[-8000:]
    assert " passed" in output, output[-2000:]


@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("library", ["openmpi", "mpich"])
def test_on_ranks(library, ranks):
    run_tests(library, ranks)


@pytest.mark.parametrize(
    "library, way, files",
    [
        ("openmpi", "staged", ["test_algorithms.py", "test_allreduce.py", "test_coding.py"]),
        ("openmpi", "ipc", ["test_allreduce.py", "test_parameter_server.py"]),
        ("mpich", "direct", ["test_allreduce.py", "test_coding.py"]),
    ],
)
def test_as_if_arrays_lay_on_a_gpu(library, way, files):
    """Some of the same tests, with all messages taking the way of arrays in GPU memory."""
    run_tests(library, 3, *files, GRSGD_TEST_TRANSFER=way)
