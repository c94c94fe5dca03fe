"""Tests that the codec's GPU kernels give the same bits as the CPU's kernels, on a GPU and on a double of CuPy."""

import numpy as np
import pytest

from coding import cpu
from coding.codec import Codec
from coding.fixed_point import FixedPoint, accumulate
from coding.kernels import kernels
from coding.plan import packet_plan
from coding.prime_field import HALF


@pytest.mark.parametrize("length", [6, 100_001])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_fixed_point(cupy, dtype, length):
    x = np.random.default_rng(0).normal(0, 5, length).astype(dtype)
    x[:6] = [10, -10, np.nan, np.inf, -np.inf, 25]
    fixed, q, back = FixedPoint(), np.empty(x.shape, np.int32), np.empty_like(x)
    q_gpu, back_gpu = cupy.empty(x.shape, cupy.int32), cupy.empty(x.shape, dtype)
    assert fixed.encode(cupy.asarray(x), q_gpu) == fixed.encode(x, q)
    np.testing.assert_array_equal(q_gpu.get(), q)
    fixed.decode(q, back)
    fixed.decode(q_gpu, back_gpu)
    np.testing.assert_array_equal(back_gpu.get(), back)


def test_sums(cupy):
    x, y = np.random.default_rng(0).integers(-(2**31), 2**31, (2, 100_001), dtype=np.int32)
    total = cupy.asarray(x, cupy.int64)
    y_gpu, wrapped = cupy.asarray(y), cupy.empty(x.shape, cupy.int32)
    accumulate(total, y_gpu)
    expected = x.astype(np.int64) + y
    np.testing.assert_array_equal(total.get(), expected)
    on_cpu = np.empty(x.shape, np.int32)
    assert FixedPoint().wrap(total, wrapped) == FixedPoint().wrap(expected, on_cpu)
    np.testing.assert_array_equal(wrapped.get(), on_cpu)


@pytest.mark.parametrize("size", [1, 100_001])
@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_combinations(cupy, size, dtype):
    random = np.random.default_rng(size)
    own, factors = random.integers(-(2**31), 2**31, 3 * size, np.int32), np.array([HALF, -HALF, 12345])
    starts, lengths = np.arange(3) * size, np.array([size, size - 1, 0])
    found, expected = cupy.empty(size, dtype), np.empty(size, dtype)
    gpu = kernels(found)
    gpu.combine(cupy.asarray(own), starts, lengths, factors, found)
    cpu.combine(own, starts, lengths, factors, expected)
    np.testing.assert_array_equal(found.get(), expected)
    assert gpu.fingerprint(cupy.asarray(own)) == cpu.fingerprint(own)


@pytest.mark.parametrize("n, r", [(3, 1), (4, 2), (5, 3), (5, 4)])
@pytest.mark.parametrize("length", [12, 40_001])
def test_packets(cupy, n, r, length):
    plan = packet_plan(n, r)
    blocks = np.random.default_rng(0).integers(-(2**31), 2**31, (len(plan.placement.holders), length), dtype=np.int32)
    codecs = [Codec(plan, rank, length) for rank in range(n)]
    own = [cupy.asarray(blocks[codec.own]) for codec in codecs]
    for packet in plan.received(0):
        content = cupy.empty(codecs[0].packet_length, cupy.int32)
        codecs[packet.sender].encode(packet, own[packet.sender], content)
        block, begin, end = codecs[0].missing_slice(packet)
        codecs[0].decode(packet, content, own[0], content[: end - begin])
        np.testing.assert_array_equal(content[: end - begin].get(), blocks[block, begin:end])
