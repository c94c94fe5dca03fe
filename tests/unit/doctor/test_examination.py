"""Examinations that end before MPI starts, and processes that MPI does not connect."""

import os
import subprocess
import sys

import pytest

from grsgd.doctor import examination, mpi_library
from grsgd.doctor.examination import Examination
from tests.support.launcher import without_launcher


@pytest.mark.parametrize("rank", ["0", "1"])
def test_a_rank_that_cannot_load_mpi_says_so(rank, tmp_path, monkeypatch, capsys):
    waits, shown = [], []

    def load():
        raise ImportError("libmpi.so.40: cannot open shared object file")

    monkeypatch.setattr(mpi_library, "load", load)
    monkeypatch.setattr(examination, "rank", lambda: rank)
    monkeypatch.setattr(examination.time, "sleep", waits.append)
    assert Examination(tmp_path, lambda title, findings: shown.extend(findings)).run() == 1
    line = capsys.readouterr().err
    if rank == "0":
        assert waits == [] and "cannot open" in shown[-1].value and not line
    else:
        assert waits == [examination.OTHERS_WAIT_SECONDS] and shown == []
        assert line.startswith("grsgd: rank 1: library: not loaded: libmpi.so.40: cannot open") and "LD_LIBRARY" in line


def test_of_unconnected_processes_only_the_first_fails_and_it_ends_last(tmp_path):
    jobs = [
        subprocess.Popen(
            [sys.executable, "-m", "grsgd", "doctor", "--output", tmp_path],
            env=without_launcher(os.environ) | {"SLURM_STEP_NUM_TASKS": "2", "SLURM_PROCID": str(number)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for number in range(2)
    ]
    silent, _ = jobs[1].communicate(timeout=60)
    assert jobs[0].poll() is None, "srun would have killed the second process"
    text, _ = jobs[0].communicate(timeout=60)
    assert (jobs[1].returncode, silent) == (0, "") and jobs[0].returncode == 1
    assert "! launcher, ranks: srun started 2 tasks" in text
