"""Division of arrays into parts that ranks own, and into pieces that fit into the cache, for all-reduces. The decorator
`in_range` adapts an all-reduce to arrays of float16 and bfloat16.

A schedule is a generator that yields each object it waits for.
"""

import math
from functools import wraps

import numpy as np

from coding.partition import part
from grsgd.comm import tags
from grsgd.comm.allreduce.bfloat16 import bfloat16_allreduce

PIECE_BYTES = 1024 * 1024
"""Size in bytes of a piece of an array.

Pieces of 1 MiB were fastest, or nearly fastest, in measurements with arrays of 1 to 100 MiB. Smaller pieces need more
messages, and larger pieces do not fit into the cache.
"""


def power_of_two(scale: float) -> float:
    """Return the largest power of two that is not above ``scale``. Multiplication by a power of two does not round
    normal floating-point numbers."""
    return 2.0 ** math.floor(math.log2(scale))


def in_range(allreduce):
    """Decorate ``allreduce``, so that arrays of float16 are multiplied by a power of two near ``scale`` before the sum,
    and arrays of bfloat16 are summed by `bfloat16_allreduce`.

    Without a multiplication before the sum, a sum could be outside the range of float16 although the mean is inside.
    Arrays of other dtypes are multiplied by ``scale`` after the sum. A sum of n arrays of float32 overflows if the mean
    is above 3.4e38 / n.
    """

    @wraps(allreduce)
    def begin(comm, x, tag: int = tags.ARRAYS, scale: float = 1.0, **options):
        if x.dtype == np.uint16:  # the bits of numbers of bfloat16
            return bfloat16_allreduce(comm, x, tag, scale)
        if x.dtype != np.float16 or scale >= 1 or comm.size == 1:
            return allreduce(comm, x, tag, scale, **options)
        return divided_before(allreduce, comm, x, tag, scale, options)

    return begin


def divided_before(allreduce, comm, x, tag: int, scale: float, options: dict):
    """Schedule that sets x to ``scale`` times the sum of x over all ranks, by ``allreduce``. Before the sum, x is
    multiplied by p, the largest power of two that is not above ``scale``. After the sum, x is multiplied by ``scale`` /
    p."""
    share = power_of_two(scale)
    x *= share
    yield from allreduce(comm, x, tag, scale / share, **options)


def chunks(x, n: int) -> list:
    """Return ``n`` consecutive views of x whose lengths differ by at most one element."""
    return [x[begin:end] for begin, end in (part(c, n, x.size) for c in range(n))]


def cut(x, size: int) -> list:
    """Return consecutive views of x with ``size`` elements each. The last view may be shorter."""
    return [x[begin : begin + size] for begin in range(0, x.size, size)]


def add(x, y):
    """Add the array y to the array x, in place, in pieces that fit into the cache."""
    if x.nbytes <= PIECE_BYTES:
        x += y
        return
    size = max(1, PIECE_BYTES // x.itemsize)
    for piece, other in zip(cut(x, size), cut(y, size), strict=True):
        piece += other
