"""Steps that end without silent ranks, on real ranks of which some are stopped in the middle: nothing is lost."""

import re
import signal
import time
import tomllib
from functools import cache

import pytest
import torch

from grsgd import load_run
from grsgd.config import parse
from grsgd.simulator.simulation import Simulation
from grsgd.testing.simulated import network_of
from tests.support.exhaustive import exhaustive_unless
from tests.support.training_job import reasons, training_jobs

STEPS = 120
CONFIG = f"""
[algorithm]
ALGORITHM
[model]
name = "mlp"
hidden = [16]
[data]
name = "digits"
batch_size = 4
[optimizer]
lr = 0.1
momentum = 0.9
[train]
steps = {STEPS}
snapshots = 3
[comm]
timeout = TIMEOUT
"""
TOLERANT = """
name = "cssgd"
scheme = "tolerant"
r = {r}
silent = {s}
end_timeout = {end_timeout}
lag = {lag}
"""
SECONDS = 0.03
"""Of a step, but for computing."""
ALL = [(n, s) for n in range(2, 7) for s in range(1, n)]


@cache
def reference(n: int) -> torch.Tensor:
    """The parameters of plain synchronous SGD, whose batch is cut into the same blocks."""
    text = CONFIG.replace("ALGORITHM", 'name = "ssgd"').replace("TIMEOUT", "60.0")
    job = Simulation(parse(tomllib.loads(text)), n, network_of(), "constant:0.01", timing_only=False)
    assert job.train() == "steps"
    return job.trainers[0].replica.params.tensor.clone()


@pytest.fixture
def job(tmp_path):
    """Starts a training of n ranks, of which s may be silent."""
    with training_jobs(tmp_path) as begin:

        def start(n, s, library="openmpi", parts=1, end_timeout=5.0, lag=1000, timeout=60.0):
            algorithm = TOLERANT.format(r=s + parts, s=s, end_timeout=end_timeout, lag=lag)
            text = CONFIG.replace("ALGORITHM", algorithm).replace("TIMEOUT", str(timeout))
            pauses = "\n".join(f"{rank} = {{ every = 1, seconds = {SECONDS} }}" for rank in range(n))
            return begin(
                library, f"{text}[stragglers.pause]\n{pauses}", ranks=n, arguments=("--save", tmp_path / "model.pt")
            )

        yield start


def stop(training, ranks):
    """Stop these ranks in the midst of the training."""
    training.wait_until_it_trains(training.ranks)
    time.sleep(10 * SECONDS)
    for rank in ranks:
        training.signal(rank, signal.SIGSTOP)


def assert_exact(training, n):
    state = torch.load(training.folder / "model.pt")
    found = torch.cat([tensor.reshape(-1) for tensor in state.values()])
    assert torch.equal(found, reference(n)), (found - reference(n)).abs().max()


@pytest.mark.parametrize("n, s", exhaustive_unless([(5, 3)], ALL))
def test_every_step_ends_without_ranks_that_stay_silent(job, n, s):
    """Also without rank 0; the model is that of a run in which all ranks take part, bit for bit."""
    silent = list(range(s)) if (n + s) % 2 else list(range(n - s, n))
    training = job(n, s)
    stop(training, silent)
    code, output = training.finish(120)
    assert code == 0 and "Traceback" not in output, output
    run = load_run(training.out)
    assert run.attributes["reason"] == "steps" and sorted(run.attributes["lost"]) == silent
    (warning,) = [line for line in run.attributes["warnings"] if "went on without rank" in line]
    assert all(str(rank) in warning for rank in silent), warning
    left = [rank for rank in range(n) if rank not in silent]
    assert (run.ranks["steps"][left] == STEPS).all()
    assert (run.curve["consensus_distance"] == 0).all()
    assert_exact(training, n)


@pytest.mark.parametrize("n, s", exhaustive_unless([(3, 1)], ALL))
def test_ranks_that_come_back_catch_up(job, n, s):
    silent = list(range(n - s, n)) if (n + s) % 2 else list(range(s))
    training = job(n, s, parts=1 + (s + 1 < n), end_timeout=20.0)
    stop(training, silent)
    time.sleep(1.0)
    for rank in silent:
        training.signal(rank, signal.SIGCONT)
    code, output = training.finish(60)
    assert code == 0 and "Traceback" not in output, output
    run = load_run(training.out)
    assert run.attributes["reason"] == "steps" and "lost" not in run.attributes
    assert (run.ranks["steps"] == STEPS).all() and (run.curve["consensus_distance"] == 0).all()
    assert_exact(training, n)


def test_one_more_silent_rank_ends_the_job_with_a_line_that_names_them(job):
    training = job(4, 1, timeout=4.0)
    stop(training, [1, 3])
    code, output = training.finish(45)
    assert code != 0 and "Traceback" not in output, output
    assert len(reasons(output)) == 1, output
    assert re.search(
        r"waited 4 s for step \d+ to end without ranks 1, 3: at most 1 may be silent \(algorithm.silent\)", output
    ), output
    assert "to end without ranks 1, 3" in load_run(training.out).attributes["reason"]


@pytest.mark.exhaustive
@pytest.mark.parametrize("library", ["openmpi", "mpich"])
def test_a_rank_that_is_too_far_behind_is_left_behind(job, library):
    """It comes back, and ends its part; the others do not wait for it."""
    training = job(3, 1, library, lag=10, end_timeout=60.0)
    stop(training, [1])
    time.sleep(1.5)
    training.signal(1, signal.SIGCONT)
    code, output = training.finish(45)
    assert "Traceback" not in output, output
    run = load_run(training.out)
    assert run.attributes["reason"] == "steps" and run.attributes["lost"] == [1]
    assert run.ranks["steps"].tolist() == [STEPS, 0, STEPS]
    assert_exact(training, 3)
    if code:
        pytest.xfail(f"exit code {code}: the launcher reports how it has killed the rank that was lost")


@pytest.mark.exhaustive
@pytest.mark.parametrize("silent", [0, 2])
def test_ranks_that_are_stopped_under_mpich(job, silent):
    training = job(4, 2, "mpich")
    stop(training, [silent, 1])
    code, output = training.finish(45)
    assert "Traceback" not in output and "grsgd: rank" not in output, output
    assert load_run(training.out).attributes["lost"] == sorted([silent, 1])
    assert_exact(training, 4)


@pytest.mark.exhaustive
@pytest.mark.parametrize("dead", [0, 2])
def test_a_process_that_dies_where_mpi_survives_that(job, dead):
    training = job(3, 1, "ulfm")
    training.wait_until_it_trains(3)
    time.sleep(10 * SECONDS)
    training.signal(dead, signal.SIGKILL)
    code, output = training.finish(45)
    assert "Traceback" not in output, output
    assert load_run(training.out).attributes["lost"] == [dead]
    assert_exact(training, 3)


@pytest.mark.exhaustive
def test_a_rank_that_was_stopped_for_longer_than_any_wait_may_take(job):
    """It does not take the time for which it was stopped itself for a wait."""
    training = job(3, 1, end_timeout=30.0, timeout=3.0)
    stop(training, [1])
    time.sleep(4.5)
    training.signal(1, signal.SIGCONT)
    code, output = training.finish(45)
    assert code == 0 and "Traceback" not in output, output
    assert "lost" not in load_run(training.out).attributes
    assert_exact(training, 3)
