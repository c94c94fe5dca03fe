"""Trainer of Transformers and Accelerator of Accelerate, on real ranks, if both libraries are installed."""

import re

import pytest

from tests.support import launcher

pytest.importorskip("transformers")
pytest.importorskip("accelerate")
JOBS = launcher.ROOT / "tests" / "mpi" / "transformers_jobs.py"
CASES = ["equals_ddp", "equals_a_plain_loop", "goes_on_from_a_checkpoint", "stops_everywhere", "trains_by_accelerate"]
CASES += ["refuses_what_cannot_work"]


@pytest.mark.parametrize("ranks", [2, pytest.param(3, marks=pytest.mark.exhaustive)])
def test_trainings_are_those_of_ddp_and_of_a_plain_loop_and_an_error_ends_the_job(ranks, tmp_path):
    code, output = launcher.mpiexec("openmpi", ranks, [JOBS, *CASES, "fails_on_one_rank"], timeout=400, cwd=tmp_path)
    assert all(f"done: {case}" in output for case in CASES), output[-20000:]
    assert code == 1 and output.count("ValueError: a fault of mine\n") == 1, output[-20000:]
    assert f"grsgd: rank 1 of {ranks} failed" in output, output[-20000:]


def test_a_refusal_during_a_training_is_one_line(tmp_path):
    case = "refuses_to_save_during_a_training"
    code, output = launcher.mpiexec("openmpi", 2, [JOBS, case], timeout=100, cwd=tmp_path)
    assert code == 1 and output.count("save_state() with grsgd: each rank has a state of its own") == 1, output
    assert "MPI_FINALIZE" not in output and "Traceback" not in output, output


def test_the_example_learns(tmp_path):
    script = launcher.ROOT / "experiments" / "demo" / "transformers_text.py"
    code, output = launcher.mpiexec("openmpi", 2, [script], timeout=200, cwd=tmp_path)
    assert code == 0 and re.search(r"dpsgd: loss [23]\.\d+ on 2 ranks", output), output
