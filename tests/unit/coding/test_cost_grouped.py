"""The grouped schemes, all ranks in one process: their costs, and sums that are right on every rank."""

from fractions import Fraction

import numpy as np
import pytest

from coding.cost import cost_in_bytes, cost_in_models
from coding.fixed_point import FixedPoint, accumulate
from coding.placement import GroupedPlacement, number_of_groups

CASES = [(n, r) for n in range(1, 8) for r in range(1, n + 1)]


class Counted:
    """Copies words from rank to rank and counts bytes like `coding.cost.Cost`."""

    def __init__(self, n):
        self.sent, self.copies, self.received, self.packets = (np.zeros(n, int) for _ in range(4))

    def send(self, sender, receivers, nbytes):
        if receivers:
            self.sent[sender] += nbytes
            self.packets[sender] += 1
        for receiver in receivers:
            self.copies[sender] += nbytes
            self.received[receiver] += nbytes

    def assert_equal(self, cost):
        for counted, expected in (
            (self.sent, cost.sent),
            (self.copies, cost.copies),
            (self.received, cost.received),
            (self.packets, cost.packets),
        ):
            assert counted.tolist() == list(expected)


def direct(placement, sums, counted):
    """Member k of a group of m multicasts part k of m of its group's sum to all ranks outside."""
    length = sums.shape[1]
    results = [sums[placement.group(rank)].copy() for rank in range(placement.n)]
    for rank in range(placement.n):
        group = placement.group(rank)
        begin, end = placement.part(rank, length)
        receivers = [other for other in range(placement.n) if placement.group(other) != group]
        counted.send(rank, receivers, 4 * (end - begin))
        for receiver in receivers:
            results[receiver][begin:end] += sums[group, begin:end]
    return results


def reduce_scatter(placement, sums, counted):
    """Every chunk is added up by its owner, who multicasts it."""
    n, length = placement.n, sums.shape[1]
    result = np.empty(length, np.int32)
    for owner in range(n):
        begin, end = placement.chunk(owner, length)
        total = np.zeros(end - begin, np.int64)
        for group in range(placement.q):
            if group != placement.group(owner):
                counted.send(placement.sender(group, owner), [owner], 4 * (end - begin))
            accumulate(total, sums[group, begin:end])
        FixedPoint().wrap(total, result[begin:end])
        if placement.q > 1:
            counted.send(owner, [rank for rank in range(n) if rank != owner], 4 * (end - begin))
    return [result] * n


@pytest.mark.parametrize("scheme, exchange", [("grouped-direct", direct), ("grouped-rs", reduce_scatter)])
@pytest.mark.parametrize("n, r", CASES)
def test_loads_and_sums(n, r, scheme, exchange):
    placement = GroupedPlacement(n, number_of_groups(n, r))
    for length in (0, 1, 420, 431):
        sums = np.random.default_rng(n).integers(-(2**31), 2**31, (placement.q, length), dtype=np.int32)
        counted = Counted(n)
        results = exchange(placement, sums, counted)
        for result in results:
            np.testing.assert_array_equal(result, sums.sum(0, dtype=np.int32))
        counted.assert_equal(cost_in_bytes(scheme, n, r, length))


@pytest.mark.parametrize("n, r", CASES)
def test_once_they_send_q_gradients(n, r):
    q = number_of_groups(n, r)
    for scheme in ("grouped-direct", "grouped-rs"):
        cost = cost_in_models(scheme, n, r)
        assert cost.once == (q if q > 1 else 0)
        assert cost_in_bytes(scheme, n, r, 421).once == (4 * 421 * q if q > 1 else 0)
    received = (Fraction(n + q - 2, n) if q > 1 else 0,) * n
    assert cost_in_models("grouped-rs", n, r).received == received
    assert cost_in_models("grouped-direct", n, r).received == (q - 1,) * n
    if n % q == 0 and q > 1:
        for scheme in ("grouped-direct", "grouped-rs"):
            assert cost_in_models(scheme, n, r).sent == (Fraction(q, n),) * n, "all ranks send equally much"


@pytest.mark.parametrize("n", range(2, 8))
def test_as_many_groups_as_ranks_is_multicast(n):
    assert cost_in_models("grouped-direct", n, 1) == cost_in_models("ssgd-multicast", n, 1)
