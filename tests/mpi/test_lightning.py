"""Strategies of Lightning's Trainer and of Fabric, on real ranks."""

import re

import pytest

from tests.support import launcher

JOBS = launcher.ROOT / "tests" / "mpi" / "lightning_jobs.py"
LIMITS = launcher.ROOT / "tests" / "mpi" / "lightning_limits.py"
CASES = ["equals_ddp", "equals_a_plain_loop", "goes_on_from_a_checkpoint", "stops_everywhere", "has_metrics_of_all"]
CASES += ["works_in_fabric", "refuses_what_cannot_work"]
IN_LIMITS = ["refuses_scalers", "refuses_callbacks", "has_metrics_of_all_in_fabric", "lets_rank_0_go_first"]
IN_LIMITS += ["trains_in_16_bits", "warns_of_devices_and_hosts", "ends_a_training_without_a_step"]
IN_LIMITS += ["goes_on_with_averaged_weights", "refuses_a_model_without_its_optimizer"]
MISSPELT = {
    "misspells_an_algorithm": "grsgd: algorithm 'dpsdg': unknown (did you mean dpsgd?)",
    "misspells_in_fabric": "grsgd: algorithm 'dpsdg': unknown (did you mean dpsgd?)",
    "misspells_a_model": "grsgd: validate = 'best': allowed: 'average', 'own'",
    "misspells_an_option": "grsgd: dpsgd: tiemout: unknown key",
}


@pytest.mark.parametrize("ranks", [2, *(pytest.param(ranks, marks=pytest.mark.exhaustive) for ranks in (1, 3))])
def test_trainings_are_those_of_ddp_and_of_a_plain_loop(ranks, tmp_path):
    code, output = launcher.mpiexec("openmpi", ranks, [JOBS, *CASES], timeout=400, cwd=tmp_path)
    assert code == 0 and all(f"done: {case}" in output for case in CASES), output[-20000:]


def test_asynchronous_algorithms_on_one_rank_are_a_plain_loop(tmp_path):
    code, output = launcher.mpiexec("openmpi", 1, [JOBS, "equals_a_plain_loop_alone"], timeout=200, cwd=tmp_path)
    assert code == 0 and "done: equals_a_plain_loop_alone" in output, output[-20000:]


def test_an_error_on_one_rank_ends_the_job(tmp_path):
    code, output = launcher.mpiexec("openmpi", 2, [JOBS, "fails_on_one_rank"], timeout=100, cwd=tmp_path)
    assert code == 1 and output.count("ValueError: a fault of mine\n") == 1 and "done:" not in output, output
    assert "rank 1" in output, output


def test_what_cannot_work_is_refused_and_ranks_meet(tmp_path):
    code, output = launcher.mpiexec("openmpi", 2, [LIMITS, *IN_LIMITS], timeout=200, cwd=tmp_path)
    assert code == 0 and all(f"done: {case}" in output for case in IN_LIMITS), output[-20000:]


@pytest.mark.parametrize("ranks", [2, pytest.param(1, marks=pytest.mark.exhaustive)])
@pytest.mark.parametrize(
    "case", [*list(MISSPELT)[:2], *(pytest.param(case, marks=pytest.mark.exhaustive) for case in list(MISSPELT)[2:])]
)
def test_what_is_misspelt_is_one_line_and_exit_code_2(case, ranks, tmp_path):
    code, output = launcher.mpiexec("openmpi", ranks, [LIMITS, case], timeout=100, cwd=tmp_path)
    assert code == 2 and output.count(MISSPELT[case]) == 1, output
    assert "Traceback" not in output and "MPI_ABORT" not in output, output


def test_a_script_without_finish_is_told_the_call_of_fabric(tmp_path):
    code, output = launcher.mpiexec("openmpi", 2, [LIMITS, "leaves_out_finish"], timeout=100, cwd=tmp_path)
    assert code != 0 and "of 2 ended without fabric.strategy.finish()" in output, output


@pytest.mark.parametrize("case", ["waits_for_the_trainer", "waits_for_fabric"])
def test_a_barrier_waits_as_long_as_the_timeout(case, tmp_path):
    code, output = launcher.mpiexec("openmpi", 2, [LIMITS, case], timeout=100, cwd=tmp_path)
    assert code != 0 and "barrier of a late rank: not done after 0.5 s" in output and "done:" not in output, output


def test_the_example_learns(tmp_path):
    script = launcher.ROOT / "experiments" / "demo" / "lightning_mnist.py"
    code, output = launcher.mpiexec("openmpi", 2, [script, "--epochs", 1], timeout=100, cwd=tmp_path)
    assert code == 0 and re.search(r"dpsgd: accuracy 0\.[89]\d\d on 2 ranks", output), output
