"""Digests of tensors."""

import pytest
import torch

from grsgd.models.digests import digests


@pytest.mark.parametrize("size", [3, 20_000, 50_001])
def test_digests_differ_for_other_bytes(size):
    x = torch.randn(size, generator=torch.Generator().manual_seed(0))
    others = [x.clone() for _ in range(3)]
    others[1][size // 2] += 1e-4
    others[2][-1] = -others[2][-1]
    first, same, *changed = digests([x, *others]).tolist()
    assert first == same and len({first, *changed}) == 3
    assert digests([x.half(), x.bfloat16(), x > 0, x[:0], x[:1].expand(1), x.to(torch.complex64)]).size == 6


@pytest.mark.parametrize("dtype", [torch.bool, torch.int32, torch.int64, torch.float32])
@pytest.mark.parametrize("distance", [2, 100, 8191, 50_000])
def test_digests_differ_for_numbers_that_change_places(dtype, distance):
    x = (torch.arange(60_000) % 3 == 0).to(dtype)
    swapped = x.clone()
    swapped[3], swapped[3 + distance] = x[3 + distance], x[3]
    first, second = digests([x, swapped]).tolist()
    assert (first != second) == (not torch.equal(x, swapped))
    assert len(set(digests([x, x.roll(1), x.flip(0)]).tolist())) == 3
