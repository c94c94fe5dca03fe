"""GRSGD's outer step; what else there is of it is tested on ranks (tests/mpi/ranks/test_algorithms.py)."""

import numpy as np
import pytest

from grsgd.comm.mailbox import ModelMessage
from grsgd.testing import AlgorithmTests
from grsgd.testing.quadratic import Job, Problem

OUTER = [{"outer_lr": 0.7}, {"outer_lr": 0.4, "outer_momentum": 0.5}, {"outer_lr": 1.0, "outer_momentum": 0.0}]
STILL = Problem(is_still=True)


@pytest.mark.parametrize("options", OUTER)
def test_one_rank_alone_is_diloco_bit_for_bit(options):
    ours = Job("grsgd", 1, H=3, **options).train()
    diloco = {"outer_momentum": 0.9} | options
    assert (ours.X == Job("diloco", 1, H=3, **diloco).train().X).all()


@pytest.mark.parametrize("n", [2, 5])
def test_with_rate_one_and_no_momentum_it_is_grsgd(n):
    options = dict(H=2, policy="successor")
    ours = Job("grsgd", n, **options, outer_lr=1.0, outer_momentum=0.0).train().average()
    assert (ours.X == Job("grsgd", n, **options).train().average().X).all()


def test_a_merge_keeps_what_was_learnt():
    """As much of it as of the model: a (x - x_prev) stays, while x goes to what has come."""
    random = np.random.default_rng(0)
    algorithm = Job("grsgd", 2, outer_lr=0.7).algorithms[0]
    message = ModelMessage(algorithm.x)
    for array in (algorithm.x.array, algorithm.x_prev.array, message.x.array):
        array[:] = random.standard_normal(array.size)
    message.weight, message.step = 0.3, 0
    learnt, model = algorithm.x.array - algorithm.x_prev.array, algorithm.x.array + 0.3 * message.x.array
    algorithm.merge(message)
    assert algorithm.a == 1.3 and np.abs(1.3 * algorithm.x.array - model).max() < 1e-14
    assert np.abs(1.3 * (algorithm.x.array - algorithm.x_prev.array) - learnt).max() < 1e-14


@pytest.mark.parametrize("options", OUTER)
def test_reaches_the_optimum(options):
    """Of ranks whose losses differ, near enough for ranks that never wait."""
    rate = 0.02 * (1 - options.get("outer_momentum", 0.9))
    job = Job("grsgd", 4, problem=STILL, rate=rate, momentum=0.0, weight_decay=0.0, H=4, **options)
    X = job.train(900).average().X
    optimum = STILL.optimum(4)
    assert np.abs(X - optimum).max() < 0.15 * np.abs(STILL.start - optimum).max()


def test_momentum_needs_a_rate():
    with pytest.raises(ValueError, match="outer_momentum = 0.9: needs outer_lr"):
        Job("grsgd", 2, outer_momentum=0.9)


class TestGRSGDWithAnOuterStep(AlgorithmTests):
    algorithm, options = "grsgd", {"H": 3, "outer_lr": 0.7, "outer_momentum": 0.3}


def test_what_was_sent_past_a_rank_without_a_process_is_received():
    """Rank 2 has died, rank 1 has sent to its neighbour 0 in its place, and rank 0 hears that another process has taken
    it, and never that none held it."""
    algorithm = Job("grsgd", 3, topology="directed-ring").algorithms[0]
    assert algorithm.mailbox.sources == [2]
    algorithm.begin()
    algorithm.changed(2)
    assert algorithm.mailbox.sources == [2, 1] and algorithm.mailbox._neighbours == {2}
