"""Trainings whose steps end without silent ranks, in simulated time: the model is that of synchronous SGD."""

import numpy as np
import pytest

from coding.time_model import mean_step_seconds
from grsgd import load_run
from grsgd.config import parse
from grsgd.errors import ConfigError
from grsgd.simulator.run import simulate
from grsgd.testing.simulated import network_of
from tests.support.exhaustive import exhaustive_unless
from tests.support.training import CONSTANT, SLOW, STEP, config, simulation

FAST = dict(bandwidth="1 gbit", latency="10 us")
CASES = [(n, r, s) for n in range(2, 6) for r in range(1, n + 1) for s in range(r)]


def tolerant(r, s, **options):
    return {"name": "cssgd", "scheme": "tolerant", "r": r, "silent": s} | options


def trained(algorithm, n, network=None, reason="steps", **sections):
    job = simulation(algorithm, n, network_of(**(network or FAST)), **sections)
    assert job.train() == reason
    return job


def model(job, rank=0):
    return job.trainers[rank].replica.params.array


@pytest.mark.parametrize("n, r, s", exhaustive_unless([(2, 2, 1), (3, 2, 1), (4, 3, 1), (4, 4, 2), (5, 3, 2)], CASES))
def test_equal_to_synchronous_sgd_bit_for_bit(n, r, s):
    """Whose ranks compute a block each and add them up; without stragglers, and with ranks that are late by turns."""
    expected = model(trained("ssgd", n))
    slow = {str(rank): {"every": 2 + rank, "seconds": 5 * STEP} for rank in range(n)}
    for stragglers in ({}, {"pause": slow}, {"slowdown": {"0": 7.0}}):
        for network in (FAST, SLOW):
            job = trained(tolerant(r, s), n, network, stragglers=stragglers)
            for rank in range(n):
                assert model(job, rank).tobytes() == expected.tobytes()
            assert not any(trainer.algorithm.warnings() or trainer.lost for trainer in job.trainers)
            quality = job.evaluate()[1]
            assert quality.consensus_distance == 0


@pytest.mark.parametrize("silent", [0, 2, 3])
def test_steps_go_on_while_a_link_is_cut(silent):
    """And that rank gets everything afterwards."""
    cut = {"faults": {"cut": {str(silent): {"at": 2.5 * STEP, "seconds": 20 * STEP}}}, "train": {"steps": 40}}
    job = trained(tolerant(2, 1), 4, **cut)
    expected = trained("ssgd", 4, train={"steps": 40})
    assert model(job, silent).tobytes() == model(job, 1).tobytes() == model(expected).tobytes()
    assert job.seconds() == pytest.approx(40 * 2 * STEP, rel=0.06)
    assert all(trainer.totals.steps == 40 for trainer in job.trainers)
    assert job.trainers[silent].algorithm.left_out == job.trainers[silent].algorithm.scheme.made >= 8
    waiting = trained(tolerant(2, 0), 4, **cut)
    assert waiting.seconds() > job.seconds() + 15 * STEP, "without tolerance all wait"


def test_a_rank_that_is_cut_off_for_good_is_left_behind():
    """The others have the same model as ever, and say without whom."""
    cut = {"faults": {"cut": {"1": {"at": 2.5 * STEP, "seconds": 1000.0}}}, "train": {"steps": 20}}
    job = trained(tolerant(2, 1, end_timeout=1.0), 4, **cut)
    assert job.left() == [0, 2, 3]
    assert model(job).tobytes() == model(trained("ssgd", 4, train={"steps": 20})).tobytes()
    assert job.trainers[0].algorithm.warnings() == ["went on without rank 1, silent in the end"]
    assert job.trainers[2].algorithm.warnings() == []
    assert np.isfinite(job.evaluate()[1].mean)


def test_a_run_file(tmp_path):
    """Complete, although a rank is left behind because it is too many steps behind."""
    faults = {"cut": {"2": {"at": 0.0, "seconds": 30 * STEP}}}
    settings = config(tolerant(2, 1, lag=2), faults=faults, train={"steps": 20})
    assert simulate(settings, 4, network_of(**FAST), tmp_path / "run.h5", CONSTANT) == "steps"
    run = load_run(tmp_path / "run.h5")
    assert run.attributes["lost"] == [2]
    assert run.ranks["steps"].tolist() == [20, 20, 0, 20]
    assert (run.curve["consensus_distance"] == 0).all()
    assert run.extra["messages_used"].tolist() == [20, 20, 0, 20]


def test_the_least_possible_time():
    """Where messages take next to nothing a step takes what the model says that it takes at least."""
    seconds = [3.0, 1.0, 2.0, 1.5]
    slowdown = {str(rank): factor for rank, factor in enumerate(seconds)}
    for r, s in [(1, 0), (2, 0), (2, 1), (3, 2), (4, 3)]:
        job = trained(tolerant(r, s), 4, stragglers={"slowdown": slowdown}, train={"steps": 12})
        least = mean_step_seconds([[STEP * each for each in seconds]], r, s)
        moments = [moment for trainer in job.trainers for moment in trainer.snapshots.moments]
        first = min(moment.time for moment in moments if moment.step == 10)
        assert 10 * least * 0.999 < first < 10 * least * 1.02, (r, s)


def test_times_without_gradients_are_those_with_gradients():
    stragglers = {"tail": {"1": {"probability": 0.5, "seconds": 3 * STEP}}, "slowdown": {"3": 2.5}}
    times, traffic = [], []
    for timing_only in (False, True):
        job = simulation(tolerant(3, 1), 4, timing_only=timing_only, stragglers=stragglers)
        job.train()
        times.append([[moment.time for moment in trainer.snapshots.moments] for trainer in job.trainers])
        traffic.append([trainer.comm.traffic.sent.tolist() for trainer in job.trainers])
    assert times[0] == times[1] and traffic[0] == traffic[1]


def test_gradients_out_of_range_are_told():
    """A block must be n times smaller than with other schemes; said with a range that would do."""
    job = trained(tolerant(2, 1, range=1e-3), 3)
    lines = job.trainers[0].algorithm.warnings()
    assert len(lines) == 2 and "gradients of blocks are wrong: values beyond the range of 0.000333333: " in lines[0]
    assert lines[1].startswith("sums of 3 such blocks are sent: for them, a range of ")
    enough = float(lines[1].split()[-3])
    assert not trained(tolerant(2, 1, range=enough), 3).trainers[0].algorithm.warnings()


@pytest.mark.parametrize(
    "options, sections, text",
    [
        (tolerant(2, 2), {}, "algorithm cssgd: silent = 2 with r = 2; allowed are 0 to 1"),
        (tolerant("auto", 1), {}, "algorithm cssgd: r = 'auto' with scheme = 'tolerant'; allowed is a number"),
        (tolerant(5, 1), {}, "algorithm cssgd: r = 5 with 4 ranks; allowed are 1 to 4"),
        ({"name": "cssgd", "silent": 1}, {}, "silent with scheme = 'coded'; allowed with 'tolerant' only"),
        ({"name": "cssgd", "lag": 3}, {}, "lag with scheme = 'coded'; allowed with 'tolerant' only"),
        (tolerant(2, 1), {"train": {"seconds": 1.0, "snapshots": 1}}, "config: train.seconds with cssgd tolerant: its"),
    ],
)
def test_what_is_refused(options, sections, text):
    with pytest.raises(ConfigError, match=text.replace("(", r"\(")):
        config_of(options, **sections).check_ranks(4)


def config_of(options, **sections):
    content = {"algorithm": options, "model": {"name": "mlp"}, "data": {"name": "digits", "batch_size": 4}}
    return parse(content | {"optimizer": {"lr": 0.1}, "train": {"steps": 1, "snapshots": 1}} | sections)
