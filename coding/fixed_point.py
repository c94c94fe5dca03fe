"""Real numbers as int32, so that sums are exact and the same on all ranks.

A real number from -R to R is multiplied by S = (2^31 - 1) / R, so that [-R, R] becomes the whole range of int32: R ->
0x7FFFFFFF, -R -> 0x80000001, 0 -> 0. One step is 1/S. Values are rounded to the nearest step. Source: Li, Xie, Mao, Xu,
Zhu, Zhang 2021 (CSSGD). The authors' program has R of about 21.5 and rounds down, which shifts every block by half a
step.

A sum of B quantised values differs from the exact sum by at most B/2 steps. The sum may be computed modulo 2^32, in any
order: partial sums may leave the range and return to it. The true total must lie in [-R, R], or be kept in int64
(`accumulate`); `wrap` detects totals outside.
"""

import math
from typing import NamedTuple

from coding.kernels import kernels

TOP = 2**31 - 1


class OutOfRange(NamedTuple):
    """Numbers of values outside [-limit, limit]. The truth value of an instance is False if no value is outside.

    ``largest``: the largest magnitude of the values outside. ``not_finite``: number of values that are NaN or infinite,
    which ``count`` does not include.
    """

    count: int
    not_finite: int
    largest: float
    limit: float

    def __bool__(self):
        return self.count + self.not_finite > 0

    @property
    def suggested_limit(self) -> float:
        """Return a range R with room for larger values: the power of two between twice and four times the largest
        magnitude."""
        return 2.0 ** math.ceil(math.log2(2 * self.largest)) if self.count else self.limit

    def merged_with(self, other: "OutOfRange") -> "OutOfRange":
        """Return the sum of this result and ``other``."""
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
    """The int32 format for real numbers from -``limit`` to ``limit``, which is R in the module's docstring. Raises
    ValueError unless ``limit`` is positive.

    ``most``: the largest magnitude of a result, in steps; larger values are out of range. With a smaller ``most``, sums
    of several results stay in the range of int32.

    All arrays are one-dimensional, NumPy or CuPy, and of equal length; results are written into arrays of the caller.
    """

    def __init__(self, limit: float = 10.0, most: int = TOP):
        if not (math.isfinite(limit) and limit > 0):
            raise ValueError(f"range of {limit}: it must be positive and finite")
        self.limit = float(limit)
        self.scale = TOP / self.limit
        self.step = self.limit / TOP
        self.largest = self.limit if most == TOP else most * self.step

    def encode(self, x, out) -> OutOfRange:
        """Quantise x, float32 or float64, into ``out``, int32.

        A value outside the range becomes the nearer end of the range, and NaN becomes 0. Return the numbers of values
        outside and of values that are not finite.
        """
        return OutOfRange(*kernels(out).quantise(x, self.largest, self.scale, out), self.largest)

    def decode(self, q, out):
        """Write the real values of q, int32 or int64 (a total of many blocks), into ``out``, float32 or float64."""
        kernels(out).dequantise(q, self.step, out)

    def wrap(self, total, out) -> OutOfRange:
        """Write ``total``, int64, modulo 2^32 into ``out``, int32. Return the number of totals that this changes."""
        count, largest = kernels(out).wrap(total, out)
        return OutOfRange(int(count), 0, int(largest) * self.step if count else 0.0, self.limit)


def accumulate(total, y):
    """Add the int32 array ``y`` to the int64 array ``total``, which has room for sums of many int32 values."""
    kernels(total).accumulate(total, y)
