"""Examinations of whole jobs in which a fault is planted: each fault is found by its name, with its remedy."""

import re
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.support.examined_job import Job, examine

PAGE = Path(__file__).parents[3] / "docs" / "how-to" / "doctor.md"


class Planted(NamedTuple):
    """A fault, by the parts of the job that differ from a healthy job."""

    parts: dict
    finding: str
    """Group and name of the finding, as on the page."""
    words: str
    """Words of the remedy."""


PMI = {"PMI_SIZE": "4", "PMI_RANK": "0"}
SRUN = {"SLURM_STEP_NUM_TASKS": "4", "SLURM_PROCID": "0"}
CRAY = {"library": "MPI VERSION : CRAY MPICH version 8.1", "variables": {"MPICH_GPU_SUPPORT_ENABLED": "1"}}
SMALL_LIMIT = {"locked": 65536, "has_infiniband": True}
FAULTS = {
    "wrong MPI in LD_LIBRARY_PATH": Planted({"library": "Open MPI v4.1.6"}, "MPI, mpiexec", "LD_LIBRARY_PATH"),
    "PMI of another library": Planted({"variables": PMI, "hosts": ["a"]}, "launcher, ranks", "whose launcher this"),
    "two ranks on one core": Planted({"cores": [{3}, {3}]}, "places, cores", "bind each rank to its own cores"),
    "tiny /dev/shm": Planted({"shared_memory": 64 * 2**20}, "room, /dev/shm", "--shm-size"),
    "small `ulimit -l`": Planted(SMALL_LIMIT, "room, locked memory", "ulimit -l unlimited"),
    "folder that cannot be locked": Planted(
        {"has_locks": False}, "output folder, locks", "HDF5_USE_FILE_LOCKING=FALSE"
    ),
    "GTL missing": Planted(CRAY | {"hosts": ["a"]}, "GPUs, GTL", "LD_PRELOAD"),
    "two hosts of one name": Planted(
        {"hosts": ["a", "a"], "machines": ["one", "two"]}, "places, hosts", "each host its own name"
    ),
    "wrong clock": Planted({"hosts": ["a", "b"], "clock": 100.0}, "clocks, offsets", "NTP"),
    "blocked port": Planted(
        {"hosts": ["a", "b", "c"], "blocked": {1, 2}}, "links, ranks 1 and 2", "no firewall blocks"
    ),
    "CuPy missing": Planted({"has_gpu": True, "has_cupy": False}, "GPUs, libraries", "CuPy is missing"),
    "`srun` without PMI": Planted({"variables": SRUN, "hosts": ["a"]}, "launcher, ranks", "srun --mpi=pmix"),
}


def hurting(job, *fixtures) -> tuple[int, dict[str, dict]]:
    """Return the exit code of an examination, and the findings that hurt."""
    code, found = examine(job, *fixtures)
    return code, {", ".join(name): each for name, each in found.items() if each["verdict"] == "hurts"}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_found(fault, tmp_path, monkeypatch, capsys):
    parts, finding, words = FAULTS[fault]
    code, found = hurting(Job(**parts), tmp_path, monkeypatch, capsys)
    assert {*found} == {finding} and words in found[finding]["remedy"] and code == 1


@pytest.mark.parametrize(
    "parts", [{}, {"hosts": ["a", "b"]}, {"has_infiniband": True}, {"has_gpu": True, "hosts": ["a"]}]
)
def test_a_healthy_job_has_no_finding(parts, tmp_path, monkeypatch, capsys):
    assert hurting(Job(**parts), tmp_path, monkeypatch, capsys) == (0, {})


def test_the_page_lists_the_planted_faults():
    rows = re.findall(r"^\| (.+?) \| (.+?) \| ", PAGE.read_text().partition("## Planted faults")[2], re.MULTILINE)
    assert [tuple(row) for row in rows[1:]] == [(name, fault.finding) for name, fault in FAULTS.items()]
