"""The predicted time of a step, against formulas; and which redundancy is the fastest by it."""

import numpy as np
import pytest

from coding import codec_seconds
from coding.codec_seconds import MAX_ELEMENTS, NOT_CODED, CodecSeconds, measure
from coding.predicted_step import NO_TOLL, Computing, PacketSeconds, Toll, computing_seconds, predicted_step
from coding.time_model import step_seconds

LENGTH = 840
"""Of a gradient: slices and chunks of it are all of one length."""
M = 4 * LENGTH
SCHEMES = "coded", "uncoded", "grouped-direct", "grouped-rs"
NOTHING = PacketSeconds(NO_TOLL, NO_TOLL, NO_TOLL, False, False)
TO_OTHERS = {
    "switch": lambda n: (1, n - 1),
    "point-to-point": lambda n: (1, n - 1),
    "shared": lambda n: (n, n),
    "shared-point-to-point": lambda n: (n, n * (n - 1)),
}
"""How many times one M takes, sent by all ranks at once to one rank, and to all others."""


def computing(n, seconds=1.0, per_block=0.0, slowdown=None, delays=0.0):
    slow = np.ones(n)
    for rank, factor in (slowdown or {}).items():
        slow[rank] = factor
    return Computing(np.full((7, n), seconds), np.full(n, per_block), slow, np.full((1, n), delays))


def packets_of(medium, n, transfer, per_packet=0.0):
    """What is measured where one M takes ``transfer`` seconds between two ranks."""
    one, others = TO_OTHERS[medium](n)
    byte = Toll.of(one * transfer / M, others * transfer / M, n)
    packet = Toll(per_packet, 0.0)
    return PacketSeconds(packet, packet, byte, medium.startswith("shared"), medium.endswith("point-to-point"))


def fastest(scheme, n, measured, codec, packets):
    """The best r, and the seconds of each."""
    steps = {r: sum(predicted_step(scheme, n, r, LENGTH, measured, codec, packets)) for r in range(1, n + 1)}
    return min(steps, key=steps.get), steps


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("medium", TO_OTHERS)
def test_on_ideal_media_it_is_the_time_of_the_true_loads(medium, scheme):
    """Uneven groups, too: of the busiest port, or of all that a medium carries."""
    for n in range(2, 9):
        for r in range(1, n + 1):
            predicted = sum(
                predicted_step(scheme, n, r, LENGTH, computing(n), NOT_CODED, packets_of(medium, n, 0.3, 0.01))
            )
            assert predicted == pytest.approx(step_seconds(scheme, n, r, 1.0, 0.3, medium, 0.01)), (n, r)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_where_messages_cost_nothing_there_is_no_redundancy(scheme):
    for n in range(1, 8):
        assert fastest(scheme, n, computing(n), NOT_CODED, NOTHING)[0] == 1


@pytest.mark.parametrize("medium", TO_OTHERS)
@pytest.mark.parametrize("scheme", SCHEMES)
def test_the_dearer_the_messages_the_more_redundancy(scheme, medium):
    n, times = 6, np.geomspace(1e-3, 1e3, 25)
    best = [fastest(scheme, n, computing(n), NOT_CODED, packets_of(medium, n, each))[0] for each in times]
    assert best == sorted(best) and best[0] == 1 and best[-1] == n


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_straggler_is_waited_for_r_times(scheme):
    """So there is less redundancy with one, and its waiting time is known."""
    n, factors = 6, (1.0, 2.0, 5.0, 20.0, 100.0)
    packets, best = packets_of("shared", n, 2.0), []
    for factor in factors:
        measured = computing(n, slowdown={2: factor})
        best.append(fastest(scheme, n, measured, NOT_CODED, packets)[0])
        for r in range(1, n + 1):
            parts = predicted_step(scheme, n, r, LENGTH, measured, NOT_CODED, packets)
            times = n / -(-n // r) if scheme.startswith("grouped") else r
            assert parts.computing == pytest.approx(times * (1 + (factor - 1) / n))
            assert parts.computing + parts.waiting == pytest.approx(times * factor)
    assert best == sorted(best, reverse=True) and best[-1] < best[0]


def test_a_straggler_that_was_measured_counts_like_one_that_was_configured():
    measured = computing(4)
    measured.gradients[:, 1] = 3.0
    for r in range(1, 5):
        configured = computing(4, slowdown={1: 3})
        assert computing_seconds("coded", 4, r, measured) == computing_seconds("coded", 4, r, configured)


def test_delays_cost_the_same_with_every_redundancy():
    """Each rank waits for a second in its turn: it is waited for in every step, whatever it computes."""
    delays = np.eye(4)
    measured = computing(4)._replace(delays=delays)
    for r in range(1, 5):
        mean, slowest = computing_seconds("coded", 4, r, measured)
        assert (mean, slowest) == (pytest.approx(r + 1 / 4), pytest.approx(r + 1))
    rare = np.zeros((10, 4))
    rare[3, 2] = 5.0
    assert computing_seconds("coded", 4, 1, measured._replace(delays=rare)) == (
        pytest.approx(1 + 5 / 40),
        pytest.approx(1.5),
    )


def test_one_step_that_something_else_has_made_long_counts_no_more():
    measured = computing(3)
    measured.gradients[4, 1] = 1000.0
    assert computing_seconds("coded", 3, 2, measured) == (2.0, 2.0)
    measured.gradients[:4, 0] = 2.0
    assert computing_seconds("coded", 3, 2, measured)[1] == 4.0, "most of them are no exception"


def test_blocks_that_cost_something_by_themselves():
    """Of coded, a rank computes 1, 5, 10, 10, 5 and 1 of them: so there is less redundancy, but for all."""
    n, packets = 6, packets_of("shared", 6, 0.02)
    seconds = [computing_seconds("coded", n, r, computing(n, 1.0, 0.25))[1] for r in range(1, n + 1)]
    assert seconds == pytest.approx([r * 0.75 + 0.25 * blocks for r, blocks in enumerate([1, 5, 10, 10, 5, 1], 1)])
    assert computing_seconds("grouped-rs", n, 3, computing(n, 1.0, 0.25))[1] == pytest.approx(3 * 0.75 + 0.25)
    dear = packets_of("shared", n, 0.2)
    assert fastest("coded", n, computing(n), NOT_CODED, dear)[0] == 5
    assert fastest("coded", n, computing(n, 1.0, 0.5), NOT_CODED, dear)[0] in (1, 6)
    assert fastest("coded", n, computing(n), NOT_CODED, packets)[0] == 1


def test_coding_costs_time():
    """C(n-1, r-1) blocks are added up, C(n-1, r) / r M encoded and C(n-1, r) M decoded."""
    codec = CodecSeconds(1 / LENGTH, 10 / LENGTH, 100 / LENGTH)
    found = [predicted_step("coded", 5, r, LENGTH, computing(5), codec, NOTHING).coding for r in range(1, 6)]
    expected = [1 + 40 + 400, 4 + 30 + 600, 6 + 40 / 3 + 400, 4 + 2.5 + 100, 1]
    assert found == pytest.approx(expected)
    assert fastest("coded", 5, computing(5), NOT_CODED, NOTHING)[0] == 1
    assert fastest("coded", 5, computing(5), codec, NOTHING)[0] == 5, "nothing is coded there"
    cheap = CodecSeconds(*(each / 1000 for each in codec))
    assert fastest("coded", 5, computing(5), cheap, NOTHING)[0] == 1


@pytest.mark.parametrize("n", range(3, 9))
def test_tolls(n):
    for once, each in ((1.0, 0.0), (0.0, 2.0), (3.0, 0.5)):
        toll = Toll.of(once + each, once + (n - 1) * each, n)
        assert toll == pytest.approx((once, each))
        assert toll.to(2) == pytest.approx(once + 2 * each)
    assert Toll.of(2.0, 1.0, n) == (1.0, 0.0), "to all others it is never less than to one"
    assert Toll.of(1.0, 2.0 * (n - 1), n) == (0.0, 2.0), "none comes before the first receiver"
    assert Toll.of(5.0, 5.0, 2) == (5.0, 0.0)


# ---- the processor


@pytest.mark.parametrize("scheme", ["coded", "uncoded"])
def test_the_codec_is_tried_on_as_many_slices_as_packets_have(scheme):
    sizes = []

    def empty(size, dtype):
        sizes.append(size)
        return np.empty(size, dtype)

    for r in (1, 2, 5):
        assert min(measure(scheme, r, r * 20_000, empty)) > 0
    slices = [1, 2, 5] if scheme == "coded" else [1, 1, 1]
    assert sizes[::3] == [20_000 * each for each in slices] and set(sizes[1::3] + sizes[2::3]) == {20_000}


def test_what_is_measured_is_what_the_kernels_do(monkeypatch):
    taken = []
    monkeypatch.setattr(codec_seconds, "seconds_of", lambda action, changed: taken.append((action, changed)) or 4.0)
    assert measure("coded", 3, 12, np.empty) == (1.0, 1.0, 1.0)
    for action, _ in taken:
        action()
    (_, total), (_, content), _ = taken
    assert content.tolist() == [1] * 4, "three slices of ones, without two of them"
    assert total.tolist() == [2] * 4, "a block, and what was decoded"
    taken.clear()
    measure("coded", 2, 4 * MAX_ELEMENTS, np.empty)
    assert taken[1][1].size == MAX_ELEMENTS
