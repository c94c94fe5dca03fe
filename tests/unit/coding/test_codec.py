"""The coded exchange, all ranks in one process: what is decoded is what was computed, bit for bit."""

from collections import Counter
from math import comb

import numpy as np
import pytest

from coding.codec import Codec
from coding.cost import cost_in_bytes
from coding.fixed_point import FixedPoint, accumulate
from coding.placement import PlacementError
from coding.plan import ENUMERATIONS, packet_plan
from tests.support.exhaustive import exhaustive_unless

CASES = exhaustive_unless(lambda n, r: n < 6, [(n, r) for n in range(1, 8) for r in range(1, n + 1)])
PAPER_REPEATS = {(5, 3): 4, (6, 3): 10, (7, 3): 19, (6, 4): 39}


def random_blocks(n, r, length):
    """Gradients of all blocks, of the full range of int32, so that nearly every sum wraps round."""
    random = np.random.default_rng(n * 100 + r)
    return random.integers(-(2**31), 2**31, (comb(n, r), length), dtype=np.int32)


def exchange(plan, blocks):
    """Every rank sends its packets; returns what each rank has decoded, the arrivals, and bytes sent and received."""
    n, length = plan.placement.n, blocks.shape[1]
    codecs = [Codec(plan, rank, length) for rank in range(n)]
    own = [np.ascontiguousarray(blocks[codec.own]) for codec in codecs]
    decoded = [np.zeros_like(blocks) for _ in range(n)]
    arrivals = [Counter() for _ in range(n)]
    sent, received = np.zeros(n, int), np.zeros(n, int)
    for rank, codec in enumerate(codecs):
        decoded[rank][codec.own] = own[rank]
        content = np.empty(codec.packet_length, np.int32)
        for packet in plan.sent(rank):
            assert packet.sender == rank
            codec.encode(packet, own[rank], content)
            sent[rank] += content.nbytes
            for receiver in packet.receivers:
                block, begin, end = codecs[receiver].missing_slice(packet)
                codecs[receiver].decode(packet, content, own[receiver], decoded[receiver][block, begin:end])
                arrivals[receiver][block, begin] += 1
                received[receiver] += content.nbytes
    return codecs, decoded, arrivals, sent, received


@pytest.mark.parametrize("enumeration", ENUMERATIONS)
@pytest.mark.parametrize("n, r", CASES)
def test_decoded_blocks_are_the_senders(n, r, enumeration):
    for length in (3 * r, 3 * r + r // 2 + 1):
        blocks = random_blocks(n, r, length)
        _, decoded, _, _, _ = exchange(packet_plan(n, r, enumeration), blocks)
        for of_rank in decoded:
            np.testing.assert_array_equal(of_rank, blocks)


@pytest.mark.parametrize("n, r", CASES)
def test_each_missing_slice_arrives_once(n, r):
    codecs, _, arrivals, _, _ = exchange(packet_plan(n, r), random_blocks(n, r, 2 * r))
    for codec, arrived in zip(codecs, arrivals, strict=True):
        assert arrived == Counter({(block, 2 * position): 1 for block in codec.missing for position in range(r)})


@pytest.mark.parametrize("n, r", CASES)
def test_packets_and_bytes(n, r):
    plan = packet_plan(n, r)
    assert sum(len(list(plan.sent(rank))) for rank in range(n)) == (r + 1) * comb(n, r + 1)
    for length in (0, 1, 4 * r, 4 * r + 1):
        _, _, _, sent, received = exchange(plan, random_blocks(n, r, length))
        cost = cost_in_bytes("coded", n, r, length)
        assert sent.tolist() == list(cost.sent)
        assert received.tolist() == list(cost.received)
        exact = comb(n - 1, r) * 4 * length  # received by each rank, without padding
        padding = 4 * (r - 1) * comb(n - 1, r)
        assert all(exact <= words <= exact + padding for words in received)
        if length % r == 0:
            assert all(words == exact for words in received)


@pytest.mark.parametrize("enumeration", ENUMERATIONS)
@pytest.mark.parametrize("n, r", CASES)
def test_what_is_expected_is_what_is_sent(n, r, enumeration):
    plan = packet_plan(n, r, enumeration)
    sent = [packet for rank in range(n) for packet in plan.sent(rank)]
    assert len(set(sent)) == len(sent)
    for rank in range(n):
        expected = list(plan.received(rank))
        assert set(expected) == {packet for packet in sent if rank in packet.receivers}
        for sender in range(n):  # in order, so that they match without tags
            to_rank = [packet for packet in plan.sent(sender) if rank in packet.receivers]
            assert [packet for packet in expected if packet.sender == sender] == to_rank


@pytest.mark.parametrize("n, r", CASES)
def test_repeats_of_the_papers_enumeration(n, r):
    groups, paper = (
        [
            (packet.sender, packet.receivers, frozenset(zip(packet.blocks, packet.positions, strict=True)))
            for rank in range(n)
            for packet in packet_plan(n, r, enumeration).sent(rank)
        ]
        for enumeration in ENUMERATIONS
    )
    if r > 1:
        assert set(groups) <= set(paper)
    if r == 2 or n == r + 1 > 2:
        assert sorted(groups, key=str) == sorted(paper, key=str)
    if (n, r) in PAPER_REPEATS:
        assert len(paper) == PAPER_REPEATS[n, r] * len(groups)


@pytest.mark.parametrize("n", range(1, 8))
def test_nothing_to_send_when_everybody_knows_all(n):
    for enumeration in ENUMERATIONS:
        plan = packet_plan(n, n, enumeration)
        assert not any(list(plan.sent(rank)) + list(plan.received(rank)) for rank in range(n))


@pytest.mark.parametrize("n", range(2, 8))
def test_without_redundancy_the_bytes_are_those_of_unicast(n):
    _, _, _, sent, received = exchange(packet_plan(n, 1), random_blocks(n, 1, 5))
    assert sent.tolist() == received.tolist() == list(cost_in_bytes("ssgd-unicast", n, 1, 5).sent)


def test_numbers_of_packets():
    assert sum(len(list(packet_plan(4, 2).sent(rank))) for rank in range(4)) == 12
    assert sum(len(list(packet_plan(10, 2).sent(rank))) for rank in range(10)) == 360
    assert sum(len(list(packet_plan(10, 3).sent(rank))) for rank in range(10)) == 840


def test_a_long_packet_over_many_pieces():
    """Longer than what the kernels hold in the cache, with slices of unequal length, decoded in place and added up."""
    n, r, length = 4, 2, 40_001
    plan = packet_plan(n, r)
    blocks = random_blocks(n, r, length)
    codecs = [Codec(plan, rank, length) for rank in range(n)]
    own = [np.ascontiguousarray(blocks[codec.own]) for codec in codecs]
    total = own[0].sum(0, dtype=np.int64)
    for packet in plan.received(0):
        content = np.empty(codecs[0].packet_length, np.int32)
        codecs[packet.sender].encode(packet, own[packet.sender], content)
        _, begin, end = codecs[0].missing_slice(packet)
        piece = content[: end - begin]
        codecs[0].decode(packet, content, own[0], piece)
        accumulate(total[begin:end], piece)
    np.testing.assert_array_equal(total, blocks.sum(0, dtype=np.int64))


def test_gradients_through_fixed_point():
    """The sum of all blocks is off by half a step a block at most, and the same on all ranks."""
    n, r, length = 5, 2, 1000
    values = np.random.default_rng(0).standard_normal((comb(n, r), length)).astype(np.float32)
    fixed = FixedPoint()
    blocks = np.empty(values.shape, np.int32)
    for value, block in zip(values, blocks, strict=True):
        assert not fixed.encode(value, block)
    sums = []
    for decoded in exchange(packet_plan(n, r), blocks)[1]:
        total = np.zeros(length, np.int64)
        for block in decoded:
            accumulate(total, block)
        result = np.empty(length, np.float64)
        fixed.decode(total, result)
        sums.append(result)
    assert all((result == sums[0]).all() for result in sums)
    assert np.abs(sums[0] - values.astype(np.float64).sum(0)).max() <= comb(n, r) * fixed.step / 2 * (1 + 1e-6)


def test_packets_have_names():
    packet = next(packet_plan(4, 2).received(3))
    assert packet.group == (0, 1, 3)
    assert str(packet) == "packet 1 of rank 0 in group {0, 1, 3}"


def test_a_packet_of_known_blocks_has_no_place():
    plan = packet_plan(4, 2)
    codec = Codec(plan, 0, 10)
    with pytest.raises(ValueError, match="rank 0 already holds all blocks"):
        codec.missing_slice(next(plan.sent(0)))


@pytest.mark.parametrize("n, r", exhaustive_unless(lambda n, r: n == 10, [(10, 3), (20, 3)]))
def test_a_plan_is_made_once(n, r):
    packet_plan.cache_clear()
    plan = packet_plan(n, r)
    codec = Codec(plan, 0, 1000)
    assert len(list(plan.sent(0))) == comb(n - 1, r)
    assert len(list(plan.received(0))) == r * comb(n - 1, r)
    assert len(codec.own) == comb(n - 1, r - 1)
    assert packet_plan(n, r) is plan


def test_impossible_redundancy():
    with pytest.raises(PlacementError):
        packet_plan(4, 5)
