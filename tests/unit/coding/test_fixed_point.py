"""Fixed point: end points, rounding, what does not fit, and sums that wrap round."""

from importlib.util import module_from_spec

import numpy as np
import pytest

from coding import cpu
from coding.fixed_point import FixedPoint, accumulate
from coding.kernels import kernels


def encode(values, dtype=np.float32, limit=10.0):
    x = np.asarray(values, dtype)
    q = np.empty(x.shape, np.int32)
    return q, FixedPoint(limit).encode(x, q)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_ends_of_the_range(dtype):
    q, beyond = encode([10, -10, 0, -0.0], dtype)
    assert q.view(np.uint32).tolist() == [0x7FFFFFFF, 0x80000001, 0, 0]
    assert not beyond
    back = np.empty(4, dtype)
    FixedPoint().decode(q, back)
    assert back.tolist() == [10, -10, 0, 0]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("limit", [0.5, 10.0, 1000.0])
def test_off_by_half_a_step_at_most(dtype, limit):
    fixed = FixedPoint(limit)
    x = np.random.default_rng(0).uniform(-limit, limit, 10_000).astype(dtype)
    q, beyond = encode(x, dtype, limit)
    back = np.empty(x.shape, np.float64)
    fixed.decode(q, back)
    assert not beyond
    assert np.abs(back - x.astype(np.float64)).max() <= fixed.step / 2 * (1 + 1e-6)
    np.testing.assert_array_equal(q, np.rint(x.astype(np.float64) * fixed.scale))


def test_the_step_of_the_default_range():
    assert FixedPoint().step == pytest.approx(4.66e-9, rel=1e-3)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_values_beyond_are_counted(dtype):
    q, beyond = encode([3, 10.5, -12, 9, 1e30 if dtype == np.float64 else 14], dtype)
    assert q.view(np.uint32).tolist()[1:3] == [0x7FFFFFFF, 0x80000001]
    assert q[4] == 0x7FFFFFFF
    assert beyond and beyond.count == 3 and beyond.not_finite == 0
    assert beyond.largest == (1e30 if dtype == np.float64 else 14)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_what_is_not_finite_is_counted(dtype):
    q, beyond = encode([np.nan, np.inf, -np.inf, -np.nan, 1, 11], dtype)
    assert q.view(np.uint32)[:4].tolist() == [0, 0x7FFFFFFF, 0x80000001, 0]
    assert (beyond.count, beyond.not_finite, beyond.largest) == (1, 4, 11)
    assert str(beyond) == (
        "values that are not finite: 4; values beyond the range of 10: 1, the largest 11; a range of 32 would do"
    )
    assert str(encode([np.nan])[1]) == "values that are not finite: 1"
    assert str(encode([1.0])[1]) == "all values are within the range of 10"


def test_the_suggested_range_has_room():
    for largest in (10.1, 16.0, 17.0, 1e6):
        beyond = encode([largest, -1], np.float64)[1]
        assert 2 * largest <= beyond.suggested_limit < 4 * largest
        assert not encode([largest], np.float64, beyond.suggested_limit)[1]
    assert encode([1.0])[1].suggested_limit == 10


def test_an_overflowing_total_is_found():
    """6 + 6 with a range of 10 would be read as -8."""
    fixed = FixedPoint(10)
    q, _ = encode([6, 1, -4])
    wrapped = q.copy()
    wrapped += q
    back = np.empty(3, np.float32)
    fixed.decode(wrapped, back)
    assert back.tolist() == pytest.approx([-8, 2, -8])
    total = np.zeros(3, np.int64)
    accumulate(total, q)
    accumulate(total, q)
    out = np.empty(3, np.int32)
    beyond = fixed.wrap(total, out)
    assert beyond.count == 1 and beyond.largest == pytest.approx(12) and beyond.suggested_limit == 32
    assert "a range of 32 would do" in str(beyond)
    np.testing.assert_array_equal(out, wrapped)
    fixed.decode(total, back)
    assert back.tolist() == pytest.approx([12, 2, -8])  # int64 totals do not overflow


def test_partial_sums_may_wrap_and_come_back():
    q, _ = encode([6.0])
    minus, _ = encode([-5.0])
    total = q.copy()
    for term in (q, minus):
        total += term
    back = np.empty(1, np.float32)
    FixedPoint().decode(total, back)
    assert back[0] == pytest.approx(7)


@pytest.mark.parametrize("size", [0, 1, 7, 10_000])
def test_sums_modulo_2_to_the_32(size):
    random = np.random.default_rng(size)
    x, y = random.integers(-(2**31), 2**31, (2, size), dtype=np.int32)
    total, out = x.astype(np.int64), np.empty_like(x)
    accumulate(total, y)
    FixedPoint().wrap(total, out)
    np.testing.assert_array_equal(out, x + y)


@pytest.mark.parametrize("blocks", [1, 10, 120])
def test_error_of_a_sum(blocks):
    fixed = FixedPoint()
    x = np.random.default_rng(blocks).standard_normal((blocks, 1000)).astype(np.float32)
    total, q, back = np.zeros(1000, np.int64), np.empty(1000, np.int32), np.empty(1000)
    for block in x:
        fixed.encode(block, q)
        accumulate(total, q)
    fixed.decode(total, back)
    assert np.abs(back - x.astype(np.float64).sum(0)).max() <= blocks * fixed.step / 2 * (1 + 1e-6)


@pytest.mark.parametrize("limit", [0, -1, np.inf, np.nan])
def test_impossible_ranges(limit):
    with pytest.raises(ValueError, match="must be positive and finite"):
        FixedPoint(limit)


def test_other_arrays_are_refused():
    with pytest.raises(TypeError, match="must be a NumPy or CuPy array"):
        kernels([1, 2])


def test_everything_is_compiled_before_training(monkeypatch):
    """A step of training would else take seconds, on some rank, and the others would wait for it."""
    spec = cpu.__spec__
    fresh = module_from_spec(spec)
    spec.loader.exec_module(fresh)
    monkeypatch.setattr("coding.fixed_point.kernels", lambda array: fresh)
    compiled = [function for function in vars(fresh).values() if hasattr(function, "signatures")]
    fresh.prepare()
    before = {function.__name__: list(function.signatures) for function in compiled}
    assert all(before.values())
    fixed = FixedPoint(1.0)
    word, total = np.zeros(7, np.int32), np.zeros(7, np.int64)
    for dtype in (np.float32, np.float64):
        real = np.linspace(-2, 2, 7, dtype=dtype)
        fixed.encode(real, word)
        fixed.decode(word, real)
        fixed.decode(total, real)
    accumulate(total, word)
    fixed.wrap(total, word)
    starts = lengths = np.full(2, 2)
    fresh.add_slices(word, starts, lengths, word[:2])
    fresh.strip_slices(word[:2], word, starts, lengths, word[:2])
    assert {function.__name__: list(function.signatures) for function in compiled} == before
