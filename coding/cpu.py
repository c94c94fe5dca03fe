"""Kernels (compiled loops) for NumPy arrays, compiled by numba. Each kernel passes over memory once and releases
Python's global interpreter lock."""

import numpy as np
from numba import njit

CACHED_ELEMENTS = 1 << 15
"""Number of elements of a packet to which a kernel adds slices at a time, so that these elements stay in a cache."""

compiled = njit(nogil=True, cache=True)


def quantise(x, limit: float, scale: float, out) -> tuple[int, int, float]:
    """Set out = round(scale * clip(x, -limit, limit)), and out = 0 where x is NaN. ``x`` is float32 or float64, and
    ``out`` int32 of the same length.

    Return the number of values beyond ``limit``, the number of values that are not finite, and the largest magnitude of
    the values beyond ``limit``.
    """
    bits = x.view(np.int32 if x.itemsize == 4 else np.int64)
    largest = _quantise(x, bits, np.iinfo(bits.dtype).max, limit, scale, out)
    if np.array(largest, bits.dtype).view(x.dtype) <= limit:
        return 0, 0, 0.0
    return _beyond(x, limit)


@compiled
def _quantise(x, bits, magnitude, limit, scale, out):
    """Quantise ``x`` to integers in ``out``. Return the largest magnitude in ``x``, as the bits of a floating-point
    number.

    If the bits of magnitudes are compared as integers, a larger magnitude has larger bits, and NaN is above infinity.
    """
    largest = bits.dtype.type(0)
    for i in range(x.size):
        b = bits.dtype.type(bits[i] & magnitude)
        largest = b if b > largest else largest
        value = np.float64(x[i])
        value = value if value == value else 0.0
        value = limit if value > limit else value
        value = -limit if value < -limit else value
        out[i] = np.int32(np.rint(value * scale))
    return largest


@compiled
def _beyond(x, limit):
    count, not_finite, largest = 0, 0, 0.0
    for value in x:
        if not np.isfinite(value):
            not_finite += 1
        elif abs(value) > limit:
            count += 1
            largest = max(largest, abs(np.float64(value)))
    return count, not_finite, largest


@compiled
def dequantise(q, step, out):
    """Set ``out`` to ``q`` times ``step``, where ``q`` is int32 or int64, and ``out`` float32 or float64."""
    for i in range(q.size):
        out[i] = q[i] * step


@compiled
def accumulate(total, y):
    """Set total = total + y, where ``total`` is int64 and ``y`` int32."""
    for i in range(total.size):
        total[i] += y[i]


@compiled
def wrap(total, out):
    """Set out = total modulo 2^32, where ``total`` is int64 and ``out`` int32.

    Return the number of elements of ``total`` outside the range of int32, and the largest magnitude of all elements.
    """
    top = np.int64(2**31 - 1)
    count, largest = np.int64(0), np.int64(0)
    for i in range(total.size):
        magnitude = abs(total[i])
        count += magnitude > top
        largest = magnitude if magnitude > largest else largest
        out[i] = np.int32(total[i])
    return count, largest


def add_slices(own, starts, lengths, out):
    """Set out[i] to the sum of own[starts[k] + i] over all slices k with i < lengths[k], modulo 2^32. ``own`` and
    ``out`` are int32."""
    _combine(own[starts[0] : starts[0] + lengths[0]], own, starts[1:], lengths[1:], 1, out)


def strip_slices(content, own, starts, lengths, out):
    """Set out[i] to content[i] minus the sum of own[starts[k] + i] over all slices k with i < lengths[k], modulo 2^32.
    ``content``, ``own`` and ``out`` are int32."""
    _combine(content, own, starts, lengths, -1, out)


@compiled
def _combine(first, own, starts, lengths, sign, out):
    """Set ``out`` to ``first`` plus ``sign`` times the sum of the slices of ``own`` that ``starts`` and ``lengths``
    describe. Two slices are added at a time, because reading several arrays from memory at once is faster than reading
    one array after the other."""
    common = min(first.size, out.size)
    for length in lengths:
        common = min(common, length)
    odd = starts.size % 2
    for begin in range(0, common, CACHED_ELEMENTS):
        end = min(begin + CACHED_ELEMENTS, common)
        piece, source = out[begin:end], first[begin:end]
        if starts.size == 0:
            piece[:] = source
        elif odd:
            a = own[starts[0] + begin : starts[0] + end]
            for i in range(piece.size):
                piece[i] = source[i] + sign * a[i]
        else:
            a, b = own[starts[0] + begin : starts[0] + end], own[starts[1] + begin : starts[1] + end]
            for i in range(piece.size):
                piece[i] = source[i] + sign * (a[i] + b[i])
        for k in range(2 - odd, starts.size, 2):
            a, b = own[starts[k] + begin : starts[k] + end], own[starts[k + 1] + begin : starts[k + 1] + end]
            for i in range(piece.size):
                piece[i] += sign * (a[i] + b[i])
    # at most one element remains, because the lengths of slices differ by at most one
    for i in range(common, out.size):
        total = np.int64(first[i]) if i < first.size else 0
        for k in range(starts.size):
            if i < lengths[k]:
                total += sign * own[starts[k] + i]
        out[i] = np.int32(total)


@compiled
def combine(own, starts, lengths, coefficients, out):
    """Set out[i] to the sum of coefficients[k] * own[starts[k] + i] over all k with i < lengths[k], modulo
    `coding.prime_field.P`.

    ``own``: int32. ``coefficients``: int64 with values in the range of int32. ``out``: int32 or int64. The kernel
    writes each sum as the number nearest to 0 that equals the sum modulo P.
    """
    prime = np.int64(2**32 - 5)
    sums = np.empty(min(CACHED_ELEMENTS, out.size), np.int64)
    for begin in range(0, out.size, CACHED_ELEMENTS):
        end = min(begin + CACHED_ELEMENTS, out.size)
        sums[: end - begin] = 0
        for k in range(starts.size):
            stop = min(end, lengths[k])
            if stop > begin:
                source, factor = own[starts[k] + begin : starts[k] + stop], coefficients[k]
                for i in range(source.size):
                    term = factor * np.int64(source[i])  # the magnitude of term is less than 2^62
                    # the number added to sums[i] is congruent to term modulo P, and its magnitude is less than 2^34
                    sums[i] += 5 * (term >> 32) + (term & 0xFFFFFFFF)
        for i in range(end - begin):
            value = sums[i] % prime
            out[begin + i] = value - prime if value > prime // 2 else value


@compiled
def fingerprint(x):
    """Return the sum over i of (2i + 1) x[i] modulo 2^64, as int64. ``x`` is int32.

    Arrays that differ in exactly one element have different fingerprints.
    """
    total = np.int64(0)
    for i in range(x.size):
        total += np.int64(2 * i + 1) * x[i]
    return total


def prepare():
    """Compile all kernels. Compiling the kernels takes seconds, unless an earlier process has stored the compiled
    kernels in numba's cache."""
    element, total = np.zeros(1, np.int32), np.zeros(1, np.int64)
    for real in (np.zeros(1, np.float32), np.zeros(1, np.float64)):
        quantise(real, 1.0, 1.0, element)
        quantise(real + 2, 1.0, 1.0, element)
        dequantise(element, 1.0, real)
        dequantise(total, 1.0, real)
    accumulate(total, element)
    wrap(total, element)
    start, length = np.zeros(1, np.int64), np.ones(1, np.int64)
    add_slices(element, start, length, element)
    strip_slices(element, element, start, length, element)
    combine(element, start, length, length, element)
    combine(element, start, length, length, total)
    fingerprint(element)
