"""Processes die, under a fault-tolerant Open MPI, and the run goes on: with spares in their place, or without."""

import signal
import time

import numpy as np
import pytest

from grsgd import load_run
from grsgd.training import checkpoint_folder
from tests.support.training_job import RANKS

EXHAUSTIVE = pytest.mark.exhaustive
VARIANTS = [
    ("grsgd", ""),
    pytest.param("grsgd", 'merge = "average"', marks=EXHAUSTIVE),
    pytest.param("grsgd", 'topology = "directed-ring"', marks=EXHAUSTIVE),
    pytest.param("gosgd", "p = 0.5", marks=EXHAUSTIVE),
    pytest.param("adpsgd", "", marks=EXHAUSTIVE),
    pytest.param("gossip", "", marks=EXHAUSTIVE),
    pytest.param("gossip", 'mode = "push"', marks=EXHAUSTIVE),
    pytest.param("gossip", 'mode = "pull"\ntopology = "ring"', marks=EXHAUSTIVE),
    pytest.param("gossip", "adaptive = true", marks=EXHAUSTIVE),
    ("ring_allreduce", ""),
    pytest.param("local_sgd", "H = 3", marks=EXHAUSTIVE),
    pytest.param("diloco", "H = 4\nfragments = 2\ndelay = 1", marks=EXHAUSTIVE),
    pytest.param("noloco", "H = 4", marks=EXHAUSTIVE),
    pytest.param("choco_sgd", "", marks=EXHAUSTIVE),
    pytest.param("ring_allreduce", 'compression = "top-k"', marks=EXHAUSTIVE),
    pytest.param("dpsgd", "", marks=EXHAUSTIVE),
    pytest.param("gradient_tracking", "", marks=EXHAUSTIVE),
    pytest.param("sgp", "", marks=EXHAUSTIVE),
    pytest.param("sgp", "tau = 1", marks=EXHAUSTIVE),
    pytest.param("lasgd", "", marks=EXHAUSTIVE),
    pytest.param("easgd", 'centre = "allreduce"\nfinal = "average"', marks=EXHAUSTIVE),
]
BOUND = 60


@pytest.fixture
def run(start):
    """Starts a run of 8 s with spares, kills groups of processes one after the other, and returns the run file of its
    end."""

    def run(algorithm, options, victims, spares=0, launcher="ulfm", ranks=RANKS):
        arguments = ["--spares", str(spares)] if spares else []
        job = start(launcher, algorithm, options, seconds=8.0, ranks=ranks + spares, arguments=arguments)
        job.wait_for_snapshots(ranks)
        for group in victims:
            job.wait_for(*(f"{victim}.begun" for victim in group))
            time.sleep(0.3)
            for victim in group:
                job.signal(victim, signal.SIGKILL)
        code, output = job.finish(BOUND)
        assert code == 0 and "Traceback" not in output and str(job.out) in output, output
        return load_run(job.out)

    return run


@pytest.mark.parametrize(("algorithm", "options"), VARIANTS)
def test_spares_take_the_ranks_of_processes_that_die(algorithm, options, run):
    """The first spare among them, and rank 0, which otherwise saves."""
    found = run(algorithm, options, victims=[[0], [RANKS], [2]], spares=3)
    assert found.attributes["reason"] == "seconds" and "lost" not in found.attributes
    assert found.extra["death_rank"].tolist() == [0, 0, 2]
    repairs = found.extra["death_replaced_seconds"] - found.extra["death_seconds"]
    assert (repairs >= 0).all() and repairs.max() < 2
    assert (found.ranks["steps"] > 0).all()
    assert found.attributes["final_test_accuracy"] > 0.1 and len(found.curve["time"]) > 5
    assert np.isfinite(found.curve["test_accuracy"]).all()


@pytest.mark.parametrize(
    ("algorithm", "options", "dead"),
    [
        ("gossip", "", [1, 2]),
        ("dpsgd", "", [1]),
        pytest.param("gossip", "", [1], marks=EXHAUSTIVE),
        pytest.param("dpsgd", "", [1, 2], marks=EXHAUSTIVE),
        pytest.param("ring_allreduce", "", [0, 1], marks=EXHAUSTIVE),
        pytest.param("sgp", "", [1], marks=EXHAUSTIVE),
        pytest.param("gosgd", "p = 0.5", [0, 1], marks=EXHAUSTIVE),
        pytest.param("grsgd", "", [1], marks=EXHAUSTIVE),
    ],
)
def test_the_others_go_on_without_a_rank_or_a_host(algorithm, options, dead, run):
    """Two processes that die at once stand for a host, under a launcher that goes on without the host."""
    ranks = RANKS - 1 + len(dead)
    found = run(algorithm, options, victims=[dead], ranks=ranks)
    assert found.attributes["reason"] == "seconds" and found.attributes["lost"] == dead
    assert sorted(found.extra["death_rank"]) == dead and np.isnan(found.extra["death_replaced_seconds"]).all()
    left = [rank not in dead for rank in range(ranks)]
    assert not found.ranks["steps"][dead].any() and (found.ranks["steps"][left] > 0).all()
    assert found.attributes["final_test_accuracy"] > 0.1 and found.attributes["participation"] == 1


@pytest.mark.parametrize(
    ("algorithm", "options"),
    [
        ("grsgd", ""),
        pytest.param("local_sgd", "H = 3", marks=EXHAUSTIVE),
        pytest.param("ring_allreduce", "", marks=EXHAUSTIVE),
        pytest.param("lasgd", "", marks=EXHAUSTIVE),
        pytest.param("sgp", "tau = 1", marks=EXHAUSTIVE),
        pytest.param("gosgd", "p = 0.5", marks=EXHAUSTIVE),
        pytest.param("gossip", "", marks=EXHAUSTIVE),
        pytest.param("adpsgd", "", marks=EXHAUSTIVE),
    ],
)
def test_a_run_with_checkpoints_survives_is_resumed_and_survives_again(algorithm, options, start, tmp_path):
    """A spare takes rank 0; in the resumed run a spare takes rank 0 again, and none takes rank 1."""
    arguments = ["--checkpoint", str(tmp_path / "kept"), "--every", "4", "--spares", "1"]
    for seconds, victims, left in ((4.0, [0], 3), (10.0, [0, 1], 2)):
        job = start("ulfm", algorithm, options, seconds=seconds, ranks=RANKS + 1, arguments=arguments)
        for victim in victims:
            job.wait_for(f"{RANKS if victim else victim}.begun")
            time.sleep(0.5)
            job.signal(victim, signal.SIGKILL)
        code, output = job.finish(BOUND)
        assert code == 0 and "Traceback" not in output and str(job.out) in output, output
        run = load_run(job.out)
        assert run.attributes["reason"] == "seconds" and sorted(run.extra["death_rank"]) == victims
        newest = max(each for each in found_in(tmp_path / "kept") if not each.problem)
        assert newest.ranks == left and newest.samples > (run.attributes.get("resumed") or 0)
        for file in job.folder.glob("[0-9].*"):
            file.unlink()
        arguments[0] = "--resume"
    assert "goes on from here" in output and "average" not in output and (run.ranks["steps"][[0, 2]] > 0).all()


def found_in(folder):
    return checkpoint_folder.checkpoints(checkpoint_folder.parts(folder, 0, 1))


@pytest.mark.parametrize("algorithm", [pytest.param("grsgd", marks=EXHAUSTIVE), "local_sgd"])
def test_a_process_that_is_silent_for_too_long_is_ended(algorithm, start):
    silent = ["--spares", "1", "--set", "comm.silent_seconds=1.5"]
    job = start("ulfm", algorithm, seconds=8.0, ranks=RANKS + 1, arguments=silent)
    job.wait_for_snapshots(RANKS)
    job.signal(1, signal.SIGSTOP)
    code, output = job.finish(BOUND)
    assert code == 0 and "Traceback" not in output, output
    assert "grsgd: rank 1 has given no sign of life for 1.5 s: its process is killed\n" in output, output
    found = load_run(job.out)
    assert found.extra["death_rank"].tolist() == [1] and np.isfinite(found.extra["death_replaced_seconds"]).all()
    assert found.attributes["reason"] == "seconds" and (found.ranks["steps"] > 0).all()


@EXHAUSTIVE
def test_spares_that_are_not_needed_end_with_the_run(run):
    found = run("grsgd", "", victims=[], spares=2)
    assert found.attributes["reason"] == "seconds" and found.extra["death_rank"].size == 0


@EXHAUSTIVE
def test_a_spare_dies_before_it_is_needed(run, start):
    job = start("ulfm", "grsgd", seconds=6.0, ranks=RANKS + 2, arguments=["--spares", "2"])
    job.wait_for_snapshots(RANKS)
    job.signal(RANKS, signal.SIGKILL)
    job.signal(1, signal.SIGKILL)
    code, output = job.finish(BOUND)
    assert code == 0 and "Traceback" not in output, output
    found = load_run(job.out)
    assert found.extra["death_rank"].tolist() == [1] and np.isfinite(found.extra["death_replaced_seconds"]).all()


@EXHAUSTIVE
def test_nothing_is_left_when_all_ranks_die(start):
    job = start("ulfm", "grsgd", ranks=RANKS + 1, arguments=["--spares", "1"])
    job.wait_until_it_trains(RANKS)
    for rank in range(RANKS):
        job.signal(rank, signal.SIGSTOP)
    for rank in range(RANKS):
        job.signal(rank, signal.SIGKILL)
    code, output = job.finish(BOUND)
    assert code != 0 and "Traceback" not in output, output
    # as the spare has learnt of all deaths at once, or of one first, whose rank it has taken
    assert "the processes of all ranks have died: there is no run file" in output or "no process is left" in output


@pytest.mark.parametrize(
    ("launcher", "algorithm", "spares", "words"),
    [
        ("openmpi", "grsgd", 1, "--spares 1: needs an MPI that survives deaths: Open MPI 5's mpiexec --with-ft ulfm"),
        pytest.param("ulfm", "cssgd", 1, "--spares 1: with cssgd the run ends when a rank dies", marks=EXHAUSTIVE),
        pytest.param(
            "ulfm",
            "grsgd",
            RANKS,
            "--spares 3: must be from 1 to 2, because one of 3 processes must train",
            marks=EXHAUSTIVE,
        ),
    ],
)
def test_refusals(launcher, algorithm, spares, words, start):
    job = start(launcher, algorithm, arguments=["--spares", str(spares)])
    code, output = job.finish(BOUND)
    assert code == 2 and f"grsgd: error: {words}\n" in output and output.count("grsgd: ") == 1, output
