"""Conversion of real numbers to int32, so that sums of converted numbers are exact and the same on all ranks.

A real number from -R to R is multiplied by S = (2^31 - 1) / R, so that [-R, R] becomes the whole range of int32: R ->
0x7FFFFFFF, -R -> 0x80000001, 0 -> 0. Two neighbouring representable numbers differ by one step, 1/S, where S is the
factor of the conversion to int32. Values are rounded to the nearest multiple of the step 1/S. Source: Li, Xie, Mao, Xu,
Zhu, Zhang 2021 (CSSGD). The program of the CSSGD paper's authors uses a range R (largest magnitude of a real number) of
about 21.5. The program of the CSSGD paper's authors rounds down, which shifts every value by half a step on average.

A sum of B quantised values differs from the exact sum by at most B/2 steps. A sum of quantised values may be computed
modulo 2^32, in any order, even if partial sums leave the range of int32. The final sum must lie in [-R, R], the range
that int32 represents, or be computed in int64 by `accumulate`. The function `wrap` counts the sums that do not fit into
int32.
"""

import math
from typing import NamedTuple

from coding.kernels import kernels

TOP = 2**31 - 1


class OutOfRange(NamedTuple):
    """Numbers of values that a conversion to int32 found outside [-limit, limit] or not finite. The truth value of an
    `OutOfRange` is False if all values were finite and within [-limit, limit].

    ``count``: number of finite values outside [-limit, limit]. ``largest``: the largest magnitude of the finite values
    outside [-limit, limit]. ``not_finite``: number of values that are NaN or infinite.
    """

    count: int
    not_finite: int
    largest: float
    limit: float

    def __bool__(self):
        return self.count + self.not_finite > 0

    @property
    def suggested_limit(self) -> float:
        """Return a limit R that would include all finite values: the power of two between twice and four times the
        largest magnitude."""
        return 2.0 ** math.ceil(math.log2(2 * self.largest)) if self.count else self.limit

    def merged_with(self, other: "OutOfRange") -> "OutOfRange":
        """Return an `OutOfRange` with the sums of the numbers in ``self`` and ``other``, and the larger of their
        largest magnitudes."""
        counts = self.count + other.count, self.not_finite + other.not_finite
        return OutOfRange(*counts, max(self.largest, other.largest), self.limit)

    def __str__(self):
        parts = [f"values that are not finite: {self.not_finite}"] if self.not_finite else []
        if self.count:
            parts.append(
                f"values beyond the range of {self.limit:g}: {self.count}, the largest {self.largest:g}; "
                f"a range of {self.suggested_limit:g} would do"
            )
        return "; ".join(parts) or f"all values are within the range of {self.limit:g}"


class FixedPoint:
    """Conversion between real numbers from -``limit`` to ``limit`` and int32. ``limit`` is called R in the docstring of
    the module `coding.fixed_point`. `FixedPoint` raises ValueError unless ``limit`` is positive and finite.

    ``most``: the largest magnitude of a converted number, in steps. Real numbers whose converted magnitude would exceed
    ``most`` are out of range. If ``most`` is smaller than the largest int32, sums of several converted numbers can stay
    in the range of int32.

    All arrays of the methods are one-dimensional, of NumPy or CuPy, and of equal length. The methods of `FixedPoint`
    write results into arrays that the caller passes.
    """

    def __init__(self, limit: float = 10.0, most: int = TOP):
        if not (math.isfinite(limit) and limit > 0):
            raise ValueError(f"range of {limit}: the range must be positive and finite")
        self.limit = float(limit)
        self.scale = TOP / self.limit
        self.step = self.limit / TOP
        self.largest = self.limit if most == TOP else most * self.step

    def encode(self, x, out) -> OutOfRange:
        """Write the values of ``x``, float32 or float64, as int32 into ``out``.

        A value outside the range becomes the nearer end of the range, and NaN becomes 0. Return the numbers of values
        outside the range and of values that are not finite.
        """
        return OutOfRange(*kernels(out).quantise(x, self.largest, self.scale, out), self.largest)

    def decode(self, q, out):
        """Convert the integers ``q`` (int32, or int64 for sums of many blocks) back to real numbers in ``out``, float32
        or float64."""
        kernels(out).dequantise(q, self.step, out)

    def wrap(self, total, out) -> OutOfRange:
        """Write the int64 array ``total`` modulo 2^32 into the int32 array ``out``. Return the number of elements of
        ``total`` that do not fit into int32."""
        count, largest = kernels(out).wrap(total, out)
        return OutOfRange(int(count), 0, int(largest) * self.step if count else 0.0, self.limit)


def accumulate(total, y):
    """Add the int32 array ``y`` to the int64 array ``total``, which has room for sums of many int32 values."""
    kernels(total).accumulate(total, y)
