"""Placements: who holds which block, which samples, and which part of a sum."""

from itertools import combinations
from math import comb

import numpy as np
import pytest

from coding.partition import bounds, part, sizes
from coding.placement import (
    GroupedPlacement,
    PlacementError,
    SubsetPlacement,
    number_of_groups,
    subset_numbers,
    subsets,
)

CASES = [(n, r) for n in range(1, 8) for r in range(1, n + 1)]
GROUPED = [(n, q) for n in range(1, 10) for q in range(1, n + 1)]


@pytest.mark.parametrize("n, r", CASES)
def test_a_block_for_every_subset(n, r):
    placement = SubsetPlacement(n, r)
    assert placement.holders.tolist() == [list(subset) for subset in combinations(range(n), r)]
    for rank in range(n):
        blocks, missing = placement.blocks(rank).tolist(), placement.missing(rank).tolist()
        assert blocks == [b for b, holders in enumerate(placement.holders.tolist()) if rank in holders]
        assert len(blocks) == comb(n - 1, r - 1)
        assert len(missing) == comb(n - 1, r)
        assert sorted(blocks + missing) == list(range(comb(n, r)))


@pytest.mark.parametrize("n, r", CASES)
def test_r_ranks_share_one_block(n, r):
    placement = SubsetPlacement(n, r)
    held = [set(placement.blocks(rank).tolist()) for rank in range(n)]
    for ranks in combinations(range(n), r):
        assert len(set.intersection(*(held[rank] for rank in ranks))) == 1
    if r < n:
        assert len({frozenset(blocks) for blocks in held}) == n  # no two ranks compute the same


@pytest.mark.parametrize("n, r", CASES)
def test_numbers_of_subsets(n, r):
    assert subset_numbers(subsets(n, r), n).tolist() == list(range(comb(n, r)))


@pytest.mark.parametrize("length, parts", [(0, 3), (2, 3), (7, 3), (9, 3), (1000, 7), (100_003, 120)])
def test_bounds(length, parts):
    cuts = bounds(length, parts)
    np.testing.assert_array_equal(cuts, np.floor(np.linspace(0, length, parts + 1)))
    assert np.ptp(np.diff(cuts)) <= 1
    assert [part(k, parts, length) for k in range(parts)] == list(zip(cuts[:-1], cuts[1:], strict=True))
    assert sizes(length, parts) == np.diff(cuts).tolist()


def test_sizes_of_any_length_are_exact():
    assert sizes(3 * 10**30 + 1, 3) == [10**30, 10**30, 10**30 + 1]


def test_every_sample_in_one_block():
    cuts = SubsetPlacement(5, 3).samples(64)
    assert len(cuts) == 11 and cuts[0] == 0 and cuts[-1] == 64 and set(np.diff(cuts)) == {6, 7}
    assert GroupedPlacement(5, 3).samples(64).tolist() == [0, 21, 42, 64]


@pytest.mark.parametrize("n, r", [(4, 0), (4, 5), (4, -1)])
def test_impossible_redundancy(n, r):
    with pytest.raises(PlacementError, match="must be from 1 to 4"):
        SubsetPlacement(n, r)
    with pytest.raises(PlacementError, match="must be from 1 to 4"):
        GroupedPlacement(n, r)


def test_too_many_subsets():
    with pytest.raises(PlacementError, match="grouped placement"):
        subsets(64, 32)


@pytest.mark.parametrize("n, q", GROUPED)
def test_groups(n, q):
    placement = GroupedPlacement(n, q)
    groups = [placement.members(k) for k in range(q)]
    assert [rank for group in groups for rank in group] == list(range(n))
    assert max(map(len, groups)) - min(map(len, groups)) <= 1
    for k, group in enumerate(groups):
        assert all(placement.group(rank) == k for rank in group)


@pytest.mark.parametrize("n, q", GROUPED)
@pytest.mark.parametrize("length", [0, 5, 840])
def test_parts_and_chunks_cover_the_vector(n, q, length):
    placement = GroupedPlacement(n, q)
    for k in range(q):
        parts = [placement.part(rank, length) for rank in placement.members(k)]
        assert parts[0][0] == 0 and parts[-1][1] == length
        assert all(left[1] == right[0] for left, right in zip(parts, parts[1:], strict=False))
    chunks = [placement.chunk(rank, length) for rank in range(n)]
    assert [begin for begin, _ in chunks] == bounds(length, n)[:-1].tolist()
    assert [end for _, end in chunks] == bounds(length, n)[1:].tolist()


@pytest.mark.parametrize("n, q", GROUPED)
def test_senders_of_chunks_are_members(n, q):
    placement = GroupedPlacement(n, q)
    for k in range(q):
        senders = [placement.sender(k, owner) for owner in range(n) if placement.group(owner) != k]
        assert set(senders) <= set(placement.members(k))


def test_number_of_groups():
    assert [number_of_groups(10, r) for r in range(1, 11)] == [10, 5, 4, 3, 2, 2, 2, 2, 2, 1]
