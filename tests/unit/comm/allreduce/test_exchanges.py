"""All-reduces in steps of one partner each: Swing, Bine, and what they are made of."""

from collections import Counter

import numpy as np
import pytest

from grsgd.comm.allreduce import ALLREDUCE, Variant
from grsgd.comm.allreduce.bine import bine_allreduce
from grsgd.comm.allreduce.exchanges import Plan, Share, allreduce, inverse, runs
from grsgd.comm.allreduce.swing import rho, swing_allreduce, swing_partners, swing_plan
from grsgd.testing.simulated import Ranks, network_of
from tests.support.arrivals import array

SCHEDULES = {"swing": swing_allreduce, "bine": bine_allreduce}
POWERS = (2, 4, 8, 16, 32)


def summed(n, size, schedule, **options):
    """What every rank has in the end, the sum to the last bit but for the order of additions, and the ranks."""
    xs = np.random.default_rng([n, size]).standard_normal((n, size)).astype("float32")
    ranks = Ranks(n, network_of(eager_bytes=0), random=np.random.default_rng(n))
    mine = xs.copy()
    ranks.finish([schedule(comm, x, **options) for comm, x in zip(ranks.comms, mine, strict=True)])
    assert not ranks.fabric.under_way
    return mine, xs.astype("float64").sum(0), ranks


@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize("n", range(1, 41))
def test_sums_are_right_and_bit_identical(name, n):
    """For all numbers of ranks, with arrays shorter than that, of n elements, and such as n does not divide."""
    for size in sorted({0, 1, 2, 3, n - 1, n, n + 1, 97}):
        mine, expected, _ = summed(n, size, SCHEDULES[name])
        assert (mine == mine[0]).all(), size
        np.testing.assert_allclose(mine[0], expected, atol=2e-5)


@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize("n", [2, 3, 6, 7, 8, 12])
def test_order_of_arrivals_and_scale_change_nothing(name, n):
    xs = np.random.default_rng(n).standard_normal((n, 1001))
    results = []
    for seed, scale in enumerate((0.5, 1.0, 2.0)):
        ranks = Ranks(n, network_of(eager_bytes=8 * 100), random=np.random.default_rng(seed))
        mine = xs.copy()
        schedules = [SCHEDULES[name](comm, x, scale=scale) for comm, x in zip(ranks.comms, mine, strict=True)]
        ranks.finish(schedules)
        assert (mine == mine[0]).all()
        results.append(mine[0] / scale)
    assert (results == results[0]).all()


@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize("n", POWERS)
def test_a_power_of_two_sends_the_least_in_the_fewest_steps(name, n):
    """2(n-1)/n M from each rank, in 2 log2 n messages, one to each partner and half, each half as long as the one
    before; with M/B and a latency L that is the time."""
    elements, steps = 64 * n, n.bit_length() - 1
    _, _, ranks = summed(n, elements, SCHEDULES[name])
    for comm in ranks.comms:
        assert comm.traffic.sent.sum() * n == 2 * (n - 1) * 4 * elements
        assert comm.traffic.messages.sum() == 2 * steps
    ranks = Ranks(n, network_of(bandwidth="8 kbit", latency="3 s"))
    ranks.finish([SCHEDULES[name](comm, array(4 * elements)) for comm in ranks.comms])
    assert ranks.env.now == pytest.approx(2 * (n - 1) / n * 4 * elements / 1000 + 2 * steps * 3)


@pytest.mark.parametrize("n", range(2, 41))
def test_swing_sends_the_least_for_every_n(n):
    """Also where n is no power of two, or odd; no rank sends more than another."""
    _, _, ranks = summed(n, 3 * n, swing_allreduce)
    assert {int(comm.traffic.sent.sum()) for comm in ranks.comms} == {2 * (n - 1) * 3 * 4}


@pytest.mark.parametrize("n", range(2, 41, 2))
def test_swing_takes_as_many_steps_as_powers_of_two(n):
    """As many as the next power of two, in each half, as long as the array is long against latencies; so it takes the
    time of a power of two."""
    steps, nbytes = (n - 1).bit_length(), 4_000_000 * n
    assert len(swing_plan(n).steps(0)) == steps
    ranks = Ranks(n, network_of(bandwidth="8 gbit", latency="1 us"))
    ranks.finish([swing_allreduce(comm, array(nbytes)) for comm in ranks.comms])
    assert ranks.env.now == pytest.approx(2 * (n - 1) / n * nbytes / 1e9 + 2 * steps * 1e-6, rel=1e-6)


@pytest.mark.parametrize("n", [3, 5, 6, 7, 11])
def test_bine_hands_over_first_otherwise(n):
    p = 1 << (n.bit_length() - 1)
    nbytes = 4_000_000 * p
    ranks = Ranks(n, network_of(bandwidth="8 gbit", latency="0 s"))
    ranks.finish([bine_allreduce(comm, array(nbytes)) for comm in ranks.comms])
    assert ranks.env.now == pytest.approx((2 * (p - 1) / p + 2) * nbytes / 1e9, rel=1e-6)


@pytest.mark.parametrize("n", POWERS)
def test_both_send_the_same_for_powers_of_two(n):
    tables = []
    for schedule in SCHEDULES.values():
        _, _, ranks = summed(n, 5 * n, schedule)
        tables.append([(comm.traffic.sent.tolist(), comm.traffic.messages.tolist()) for comm in ranks.comms])
    assert tables[0] == tables[1]


# ---- partners


def test_distances_are_those_of_the_paper():
    assert [rho(step) for step in range(7)] == [1, -1, 3, -5, 11, -21, 43]
    assert [sum((-2) ** i for i in range(step + 1)) for step in range(7)] == [rho(step) for step in range(7)]


@pytest.mark.parametrize("n", range(2, 65, 2))
@pytest.mark.parametrize("mirrored", [False, True])
def test_partners_agree(n, mirrored):
    """r is its partner's partner, even ranks have odd ones; the mirror image has them on the other side."""
    for step, partners in enumerate(swing_partners(n, mirrored)):
        assert inverse(partners) == partners and all((rank + partners[rank]) % 2 for rank in range(n))
        assert partners[0] == (-rho(step) if mirrored else rho(step)) % n


@pytest.mark.parametrize("n", (16, 64))
def test_partners_are_nearer_than_powers_of_two(n):
    """Half of the array goes one rank away, a quarter one, an eighth three, where it would be 1, 2, 4, ..."""
    numbers = [partners[0] for partners in swing_partners(n)]
    assert [min(number, n - number) for number in numbers] == [1, 1, 3, 5, 11, 21][: len(numbers)]


# ---- plans


@pytest.mark.parametrize("n", (*POWERS, 64, 128))
def test_a_message_of_a_power_of_two_is_one_run(n):
    plan = swing_plan(n)
    for rank in range(n):
        for number, step in enumerate(plan.steps(rank)):
            assert len(step.got) == len(step.given) == 1
            assert [end - begin for begin, end in step.got + step.given] == [n >> (number + 1)] * 2


@pytest.mark.parametrize("n", range(2, 65, 2))
def test_every_block_comes_once_from_every_rank_to_its_owner(n):
    """In the reduce-scatter: counted are the ranks whose numbers are in a partial sum."""
    plan = swing_plan(n)
    sums = [[Counter([rank]) for _ in range(n)] for rank in range(n)]
    for number in range(len(plan.steps(0))):
        handed_over = {}
        for rank in range(n):
            step = plan.steps(rank)[number]
            blocks = [block for begin, end in step.got for block in range(begin, end)]
            handed_over[step.source] = [(block, sums[rank][block]) for block in blocks]
        for rank, partial_sums in handed_over.items():
            given = [block for begin, end in plan.steps(rank)[number].given for block in range(begin, end)]
            assert given == [block for block, _ in partial_sums]
            for block, others in partial_sums:
                sums[rank][block] = sums[rank][block] + others
    for rank in range(n):
        assert sums[rank][plan.place[rank]] == Counter(range(n))


def test_steps_that_reach_not_all_are_refused():
    with pytest.raises(ValueError, match="2 steps do not bring all 8 blocks to all ranks"):
        Plan(swing_partners(8)[:2])
    with pytest.raises(ValueError, match="1 is missing"):
        Plan([[0, 0]])


@pytest.mark.parametrize("n", [2, 3, 5, 8])
def test_a_ring_is_such_a_pattern(n):
    """Sources need not be partners of each other: with the left neighbour n - 1 times partial sums go round a ring to
    the left, and finished blocks to the right."""
    plan = Plan([[(rank - 1) % n for rank in range(n)]] * (n - 1))
    mine, expected, ranks = summed(n, 4 * n, lambda comm, x: allreduce(comm, [Share(x, plan, comm.rank)], 0, 1.0))
    assert (mine == mine[0]).all()
    np.testing.assert_allclose(mine[0], expected, atol=2e-5)
    for comm in ranks.comms:
        each = np.bincount([(comm.rank - 1) % n, (comm.rank + 1) % n], minlength=n) * (n - 1) * 16
        assert (comm.traffic.sent == each).all()


def test_several_shares_side_by_side():
    """Each with a plan of its own, in the steps that both have."""
    plans = Plan(swing_partners(8)), Plan(swing_partners(8, mirrored=True))

    def schedule(comm, x):
        halves = x[: x.size // 2], x[x.size // 2 :]
        yield from allreduce(comm, [Share(*pair, comm.rank) for pair in zip(halves, plans, strict=True)], 0, 0.5)

    mine, expected, ranks = summed(8, 101, schedule)
    assert (mine == mine[0]).all()
    np.testing.assert_allclose(mine[0], expected / 2, atol=2e-5)
    assert {int((comm.traffic.sent > 0).sum()) for comm in ranks.comms} == {4}  # 1, -1, 3, -3


@pytest.mark.parametrize(
    ("bits", "expected"), [(0, ()), (1, ((0, 1),)), (0b1011100, ((2, 5), (6, 7))), (2**70, ((70, 71),))]
)
def test_runs(bits, expected):
    assert runs(bits) == expected


def test_names_of_the_option_are_those_of_the_table():
    assert list(Variant.__args__) == [*ALLREDUCE, "auto"]
