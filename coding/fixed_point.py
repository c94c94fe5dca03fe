"""Real numbers as int32, so that sums are exact and the same on all ranks.

S = (2^31 - 1) / R maps [-R, R] onto the whole range: R -> 0x7FFFFFFF, -R -> 0x80000001, 0 -> 0, one step is 1/S.
Values are rounded to the nearest step. Source: Li, Xie, Mao, Xu, Zhu, Zhang 2021 (CSSGD), whose program has R of about
21.5 and rounds down, which shifts every block by half a step.

A sum of B quantised values is off by B/2 steps at most. It may be added modulo 2^32, in any order: partial sums may
wrap round and come back. The true total must lie in [-R, R], or be kept in int64 (`accumulate`); `wrap` finds out.
"""

import math
from typing import NamedTuple

from coding.kernels import kernels

TOP = 2**31 - 1


class OutOfRange(NamedTuple):
    """How many values did not fit into [-limit, limit]; false if all did.

    ``largest``: the largest magnitude of those that did not. ``not_finite`` values (NaN, infinities) are not in
    ``count``.
    """

    count: int
    not_finite: int
    largest: float
    limit: float

    def __bool__(self):
        return self.count + self.not_finite > 0

    @property
    def suggested_limit(self) -> float:
        """A range with room to spare: the power of two from twice up to four times the largest magnitude."""
        return 2.0 ** math.ceil(math.log2(2 * self.largest)) if self.count else self.limit

    def merged_with(self, other: "OutOfRange") -> "OutOfRange":
        """Both taken together."""
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
    """int32 for the real numbers from -limit to limit (the R above). Raises ValueError unless it is positive.

    ``most``: the largest magnitude of a result, in steps; values beyond it are out of range. So sums of several results
    cannot be beyond theirs.

    All arrays are one-dimensional, NumPy or CuPy, and of one length; results go into arrays of the caller's.
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

        Values beyond the range become its ends, NaN becomes 0. Returns how many there were.
        """
        return OutOfRange(*kernels(out).quantise(x, self.largest, self.scale, out), self.largest)

    def decode(self, q, out):
        """The values of q, int32 or int64 (a total of many blocks), into ``out``, float32 or float64."""
        kernels(out).dequantise(q, self.step, out)

    def wrap(self, total, out) -> OutOfRange:
        """``total``, int64, into ``out``, int32, modulo 2^32. Returns how many totals this changes."""
        count, largest = kernels(out).wrap(total, out)
        return OutOfRange(int(count), 0, int(largest) * self.step if count else 0.0, self.limit)


def accumulate(total, y):
    """total = total + y without overflow; int64 and int32."""
    kernels(total).accumulate(total, y)
