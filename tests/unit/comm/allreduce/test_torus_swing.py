"""Swing on a torus, over all cables at once: sums, bytes, and times against closed forms."""

import math

import numpy as np
import pytest

from grsgd.comm.allreduce.swing import rho
from grsgd.comm.allreduce.torus_swing import torus_swing_allreduce, torus_swing_plans
from grsgd.testing.simulated import Ranks, network_of
from tests.support.arrivals import array

SHAPES = [(2,), (8,), (2, 2), (4, 2), (2, 4), (4, 4), (2, 2, 2), (6, 4), (6, 6), (2, 16), (4, 2, 6)]


@pytest.mark.parametrize("shape", SHAPES)
def test_sums_are_right_and_bit_identical(shape):
    n = math.prod(shape)
    for size in (0, 1, n - 1, 3 * n + 5):
        xs = np.random.default_rng(size).standard_normal((n, size)).astype("float32")
        ranks = Ranks(n, network_of(eager_bytes=0), random=np.random.default_rng(n))
        mine = xs.copy()
        ranks.finish(
            [torus_swing_allreduce(comm, x, scale=0.5, sizes=shape) for comm, x in zip(ranks.comms, mine, strict=True)]
        )
        assert (mine == mine[0]).all()
        np.testing.assert_allclose(mine[0], xs.astype("float64").sum(0) / 2, atol=2e-5)


@pytest.mark.parametrize("shape", SHAPES)
def test_every_rank_sends_the_least(shape):
    n = math.prod(shape)
    nbytes = 4 * 2 * len(shape) * n
    ranks = Ranks(n)
    ranks.finish([torus_swing_allreduce(comm, array(nbytes), sizes=shape) for comm in ranks.comms])
    assert {int(comm.traffic.sent.sum()) * n for comm in ranks.comms} == {2 * (n - 1) * nbytes}


@pytest.mark.parametrize("shape", [(4, 4), (8, 8), (4, 16), (4, 4, 4)])
def test_time_on_a_torus(shape):
    """In each step every cable carries, in both directions, as many messages as a partner is hops away, of each part
    one; so a step takes that many times what a message takes. The dimensions take turns."""
    B, L, M, D = 1e9, 1e-6, 4 * 2 * len(shape) * math.prod(shape) * 5000, len(shape)
    steps = [size.bit_length() - 1 for size in shape]
    hops = [abs(rho(step)) for step in range(max(steps)) for dimension in range(D) if step < steps[dimension]]
    expected = 2 * sum(hop * (M / (2 * D) * 2.0 ** -(step + 1) / B + L) for step, hop in enumerate(hops))
    spec = network_of(medium="torus:" + "x".join(map(str, shape)), bandwidth="8 gbit", latency="1 us")
    ranks = Ranks(math.prod(shape), spec)
    ranks.finish([torus_swing_allreduce(comm, array(M), sizes=shape) for comm in ranks.comms])
    if len(set(shape)) == 1:
        assert ranks.env.now == pytest.approx(expected, rel=1e-3)
    else:  # parts that begin with different dimensions are at different distances in some steps
        assert expected < ranks.env.now < 2 * expected


def test_parts_begin_with_different_dimensions_and_sides():
    first = [plan.steps(0)[0].dest for plan in torus_swing_plans((4, 8))]
    assert first == [8, 1, 24, 7]
    second = [plan.steps(0)[1].dest for plan in torus_swing_plans((4, 8))]
    assert second == [1, 8, 7, 24]


@pytest.mark.parametrize("shape", [(2, 3), (4, 2), (4,)])
def test_a_torus_that_does_not_fit_is_refused(shape):
    ranks = Ranks(6)
    with pytest.raises(ValueError, match="for 6 ranks: must have one place per rank, and even sizes"):
        next(torus_swing_allreduce(ranks.comms[0], np.zeros(3), sizes=shape))
