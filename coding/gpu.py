"""Kernels (compiled loops) for CuPy arrays. Each function runs one fused GPU kernel. Each function computes the same as
the function of the same name in `coding.cpu`, which has the docstring."""

import functools
import struct

import cupy

ELEMENTS_PER_THREAD = 4
"""Number of elements that a GPU thread of `quantise` reads at a time. If a thread read only one element of 4 bytes at a
time, the GPU's memory would sometimes be idle."""
FINGERPRINT_THREADS = 1 << 17
"""Number of GPU threads of `fingerprint`. Each thread sums many elements, so that only few threads must add their sums
to the total one after the other."""


def quantise(x, limit: float, scale: float, out) -> tuple[int, int, float]:
    beyond = cupy.zeros(3, cupy.uint64)
    threads = -(-x.size // ELEMENTS_PER_THREAD)
    _quantise(x, limit, scale, x.size, threads, out, beyond, size=threads)
    count, not_finite, largest = beyond.get().tolist()
    return count, not_finite, struct.unpack("d", struct.pack("Q", largest))[0]


_quantise = cupy.ElementwiseKernel(
    "raw T x, float64 limit, float64 scale, int64 length, int64 threads",
    "raw int32 out, raw uint64 beyond",
    f"const int elements = {ELEMENTS_PER_THREAD};"
    """
    T read[elements];
    #pragma unroll
    for (int k = 0; k < elements; ++k) {
        long long place = i + k * threads;
        read[k] = place < length ? x[place] : (T)0;
    }
    #pragma unroll
    for (int k = 0; k < elements; ++k) {
        long long place = i + k * threads;
        double value = read[k], magnitude = fabs(value);
        if (!(magnitude <= limit)) {
            unsigned long long* counters = (unsigned long long*)&beyond[0];
            if (isfinite(value)) {
                atomicAdd(counters, 1ull);
                atomicMax(counters + 2, (unsigned long long)__double_as_longlong(magnitude));
            } else {
                atomicAdd(counters + 1, 1ull);
            }
            value = isnan(value) ? 0.0 : copysign(limit, value);
        }
        if (place < length) out[place] = __double2int_rn(value * scale);
    }
    """,
    "coding_quantise",
)

_dequantise = cupy.ElementwiseKernel("Q q, float64 step", "T out", "out = (T)(q * step)", "coding_dequantise")


def dequantise(q, step: float, out):
    _dequantise(q, step, out)


_accumulate = cupy.ElementwiseKernel("int32 y", "int64 total", "total = total + y", "coding_accumulate")


def accumulate(total, y):
    _accumulate(y, total)


_wrap = cupy.ElementwiseKernel(
    "int64 total",
    "int32 out, raw uint64 beyond",
    """
    unsigned long long magnitude = total < 0 ? -total : total;
    if (magnitude > 2147483647ull) {
        unsigned long long* counters = (unsigned long long*)&beyond[0];
        atomicAdd(counters, 1ull);
        atomicMax(counters + 1, magnitude);
    }
    out = (int)(unsigned int)total;
    """,
    "coding_wrap",
)


def wrap(total, out) -> tuple[int, int]:
    beyond = cupy.zeros(2, cupy.uint64)
    _wrap(total, out, beyond)
    count, largest = beyond.get().tolist()
    return count, largest


@functools.cache
def _slices(count: int, strip: bool):
    """Return the GPU kernel that adds ``count`` slices, or subtracts ``count`` slices from a packet's content. The
    begins and lengths of the slices are arguments of the kernel, because a table of begins and lengths would have to be
    copied to the GPU."""
    places = "".join(f", int64 start{k}, int64 length{k}" for k in range(count))
    sign = "-" if strip else "+"
    terms = "".join(f"if (i < length{k}) sum {sign}= (unsigned int)own[start{k} + i];\n" for k in range(count))
    return cupy.ElementwiseKernel(
        f"{'int32 content, ' if strip else ''}raw int32 own{places}",
        "int32 out",
        f"unsigned int sum = {'(unsigned int)content' if strip else '0u'};\n{terms}out = (int)sum;",
        f"coding_{'strip' if strip else 'add'}_{count}_slices",
    )


def add_slices(own, starts, lengths, out):
    _slices(len(starts), False)(own, *_places(starts, lengths), out)


def strip_slices(content, own, starts, lengths, out):
    _slices(len(starts), True)(content, own, *_places(starts, lengths), out)


def _places(starts, lengths):
    return [int(value) for pair in zip(starts, lengths, strict=True) for value in pair]


@functools.cache
def _combination(count: int):
    """Return the GPU kernel with which `combine` computes a sum of ``count`` terms. The begins, lengths and factors of
    the terms are arguments of the kernel."""
    places = ", ".join(f"int64 start{k}, int64 length{k}, int64 factor{k}" for k in range(count))
    terms = "".join(
        f"if (i < length{k}) {{ long long term = factor{k} * own[start{k} + i];"
        " sum += 5 * (term >> 32) + (term & 0xFFFFFFFFll); }\n"
        for k in range(count)
    )
    return cupy.ElementwiseKernel(
        f"raw int32 own, {places}",
        "T out",
        f"long long sum = 0;\n{terms}"
        """
        sum %= 4294967291ll;
        if (sum < 0) sum += 4294967291ll;
        out = (T)(sum > 2147483645ll ? sum - 4294967291ll : sum);
        """,
        f"coding_combine_{count}",
    )


def combine(own, starts, lengths, coefficients, out):
    places = [int(value) for one in zip(starts, lengths, coefficients, strict=True) for value in one]
    _combination(len(starts))(own, *places, out)


_fingerprint = cupy.ElementwiseKernel(
    "raw int32 x, int64 length, int64 threads",
    "raw uint64 total",
    """
    unsigned long long sum = 0;
    for (long long place = i; place < length; place += threads) {
        sum += (unsigned long long)(2 * place + 1) * (unsigned long long)(long long)x[place];
    }
    atomicAdd((unsigned long long*)&total[0], sum);
    """,
    "coding_fingerprint",
)


def fingerprint(x) -> int:
    total = cupy.zeros(1, cupy.uint64)
    threads = min(x.size, FINGERPRINT_THREADS)
    _fingerprint(x, x.size, threads, total, size=threads)
    (found,) = total.get().tolist()
    return found - (1 << 64) * (found >> 63)


def prepare():
    """Do nothing, because GPU kernels are compiled at their first call, in a fraction of a second."""
