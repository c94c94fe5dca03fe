"""Schedules that make tensors equal on all ranks, on simulated ranks."""

import pytest
import torch

from grsgd.algorithms.equal_tensors import copy_from_root, make_equal
from grsgd.testing.simulated import Ranks


def with_swapped_numbers(rank: int) -> list[torch.Tensor]:
    """Return buffers whose content is the same on all ranks, but at other places on ranks above 0."""
    tensors = [torch.arange(20_000), torch.arange(20_000.0)]
    for tensor in tensors:
        tensor[[1, rank + 1]] = tensor[[rank + 1, 1]]
    return tensors


@pytest.mark.parametrize("schedule", [make_equal, copy_from_root])
def test_numbers_that_have_changed_places_become_equal(schedule):
    ranks, tensors = Ranks(3), [with_swapped_numbers(rank) for rank in range(3)]
    ranks.finish([schedule(comm, mine) for comm, mine in zip(ranks.comms, tensors, strict=True)])
    whole = with_swapped_numbers(0)
    for integers, numbers in tensors:
        assert torch.equal(integers, whole[0])
        assert torch.equal(numbers, tensors[0][1])
