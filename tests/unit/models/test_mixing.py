"""Weighted sums of models against plain numpy."""

import numpy as np
import pytest
import torch

from grsgd.models import mixing
from grsgd.models.mixing import BLOCK, add_difference_of_buffers, blocks, follow, mix

ROUNDING = 1e-15


@pytest.mark.parametrize("size", [0, 1, 7, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK + 5])
@pytest.mark.parametrize("others", [0, 1, 2, 5])
def test_against_numpy(size, others):
    random = np.random.default_rng(size + others)
    x, ys = random.random(size) + 1, random.random((others, size)) + 1
    weights = random.dirichlet(np.ones(others + 1))
    expected = weights[0] * x + sum(w * y for w, y in zip(weights[1:], ys, strict=True))
    copies = ys.copy()
    mixed = torch.from_numpy(x)
    mix(mixed, float(weights[0]), [(float(w), torch.from_numpy(y)) for w, y in zip(weights[1:], ys, strict=True)])
    np.testing.assert_allclose(x, expected, rtol=ROUNDING)
    np.testing.assert_array_equal(ys, copies)  # the others stay as they are


@pytest.mark.parametrize("block", [1, 3, 10, 64])
def test_the_result_does_not_depend_on_the_block(monkeypatch, block):
    random = np.random.default_rng(0)
    x, y, z = (torch.from_numpy(random.standard_normal(31)) for _ in range(3))
    whole, blocks = x.clone(), x.clone()
    mix(whole, 0.2, [(0.3, y), (0.5, z)])
    monkeypatch.setattr(mixing, "BLOCK", block)
    mix(blocks, 0.2, [(0.3, y), (0.5, z)])
    assert torch.equal(whole, blocks)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("others", [[], [(0.75, 1)], [(0.5, 1), (0.5, 2)]])
def test_a_result_in_other_memory_is_the_same(others, dtype):
    models = torch.from_numpy(np.random.default_rng(0).standard_normal((3, BLOCK + 5))).to(dtype)
    for weight in (0.25, 1.0):
        mixed, out = models[0].clone(), torch.zeros(BLOCK + 5, dtype=dtype)
        before, others_of = models.clone(), [(other, models[number]) for other, number in others]
        mix(mixed, weight, others_of)
        mix(models[0], weight, others_of, out=out)
        assert torch.equal(out, mixed) and torch.equal(models, before)


def test_a_difference_of_buffers_is_exact_where_it_can_be():
    """Changed by both; by x alone, by x alone from an infinity, by nobody, by y alone, from an infinity by y alone."""
    x, y, s = torch.tensor(
        [[3.0, 7, 7, -0.0, 1e30, np.inf], [5.0, 0.1, np.inf, 0.0, 0.1, 2], [1.0, 0.1, np.inf, 0.0, 1e30, np.inf]]
    )
    add_difference_of_buffers(x, y, s)
    expected = torch.tensor([7, 7, 7, -0.0, 0.1, 2])
    assert x.numpy().tobytes() == expected.numpy().tobytes()


@pytest.mark.parametrize("shape", [(), (5,), (3, 4), (31, 2), (2, 31)])
def test_blocks_are_the_whole_tensors_once(monkeypatch, shape):
    monkeypatch.setattr(mixing, "BLOCK", 10)
    x, y = torch.zeros(shape), torch.zeros(shape)
    for a, b in blocks(x, y):
        assert a.shape == b.shape
        a.add_(1)
        b.add_(2)
    assert (x == 1).all() and (y == 2).all()


@pytest.mark.parametrize("weight", [0.0, 0.25, 0.5, 1.0])
def test_two_models_whose_weights_sum_to_one(weight):
    random = np.random.default_rng(1)
    x, y = random.random(100) + 1, random.random(100) + 1
    expected = weight * x + (1 - weight) * y
    mix(torch.from_numpy(x), weight, [(1 - weight, torch.from_numpy(y))])
    np.testing.assert_allclose(x, expected, rtol=ROUNDING)


@pytest.mark.parametrize("weight, other", [(1.0, 1.0), (0.5, 0.25), (0.0, 2.0), (1.0, -1.0)])
def test_weights_need_not_sum_to_one(weight, other):
    random = np.random.default_rng(2)
    x, y = random.random(100) + 1, random.random(100) + 1
    expected = weight * x + other * y
    mix(torch.from_numpy(x), weight, [(other, torch.from_numpy(y))])
    np.testing.assert_allclose(x, expected, rtol=ROUNDING, atol=ROUNDING)


def test_equal_models_stay_exactly_equal():
    x = torch.from_numpy(np.random.default_rng(3).standard_normal(1000))
    y = x.clone()
    mix(y, 0.5, [(0.5, x)])
    assert torch.equal(x, y)


def test_float32():
    x, y, z = torch.full((5,), 3.0), torch.full((5,), 6.0), torch.full((5,), 9.0)
    mix(x, 1 / 3, [(1 / 3, y), (1 / 3, z)])
    torch.testing.assert_close(x, torch.full((5,), 6.0))
    assert x.dtype is torch.float32


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("narrower", [False, True])
@pytest.mark.parametrize("is_contiguous", [True, False])
def test_a_tracker_follows_the_gradient(dtype, narrower, is_contiguous):
    y, g, grad = torch.from_numpy(np.random.default_rng(0).standard_normal((3, 6, 35))).to(dtype)
    grad = (grad if is_contiguous else grad.T.contiguous().T).to(torch.float16 if narrower else dtype)
    gradient = grad.to(dtype, copy=True)
    expected = y - g + gradient
    follow(y, g, grad)
    assert torch.equal(y, expected) and torch.equal(g, gradient) and torch.equal(grad, expected.to(grad.dtype))
