"""Functions that divide arrays for all-reduces: into parts that ranks own, and into pieces that fit into the
processor's cache. The decorator `in_range` adapts an all-reduce to arrays of float16 and bfloat16.

A schedule is a generator that yields each object (such as a request of a message) for which the schedule waits.
"""

import math
from functools import wraps

import numpy as np

from coding.partition import part
from grsgd.comm import tags
from grsgd.comm.allreduce.bfloat16 import bfloat16_allreduce

PIECE_BYTES = 1024 * 1024
"""Size in bytes of each piece into which an all-reduce cuts an array.

Pieces of 1 MiB were fastest, or nearly fastest, in measurements with arrays of 1 to 100 MiB. Pieces below 1 MiB need
more messages, and pieces above 1 MiB do not fit into the processor's cache.
"""


def power_of_two(scale: float) -> float:
    """Return the largest power of two that is not above ``scale``. Multiplication by a power of two does not round
    normal floating-point numbers."""
    return 2.0 ** math.floor(math.log2(scale))


def in_range(allreduce):
    """Decorate ``allreduce`` for arrays of 16-bit floats: float16 arrays are multiplied by a power of two near
    ``scale`` before the sum, and bfloat16 arrays are summed by `bfloat16_allreduce`.

    Without the multiplication before the sum, a sum of float16 arrays could overflow although the mean does not. Arrays
    of all other dtypes are multiplied by ``scale`` after the sum. A sum of n float32 arrays overflows if the mean is
    above 3.4e38 / n.
    """

    @wraps(allreduce)
    def begin(comm, x, tag: int = tags.ARRAYS, scale: float = 1.0, **options):
        if x.dtype == np.uint16:  # a uint16 array contains the bits of bfloat16 numbers
            return bfloat16_allreduce(comm, x, tag, scale)
        if x.dtype != np.float16 or scale >= 1 or comm.size == 1:
            return allreduce(comm, x, tag, scale, **options)
        return divided_before(allreduce, comm, x, tag, scale, options)

    return begin


def divided_before(allreduce, comm, x, tag: int, scale: float, options: dict):
    """Generator (schedule) that sets x to ``scale`` times the sum of x over all ranks, and computes the sum by the
    schedule ``allreduce``. Before the sum, each rank multiplies x by p, the largest power of two that is not above
    ``scale``. After the sum, each rank multiplies x by ``scale`` / p."""
    share = power_of_two(scale)
    x *= share
    yield from allreduce(comm, x, tag, scale / share, **options)


def chunks(x, n: int) -> list:
    """Return ``n`` consecutive views of x whose lengths differ by at most one element."""
    return [x[begin:end] for begin, end in (part(c, n, x.size) for c in range(n))]


def cut(x, size: int) -> list:
    """Return consecutive views of x with ``size`` elements each. The last view may have fewer than ``size``
    elements."""
    return [x[begin : begin + size] for begin in range(0, x.size, size)]


def add(x, y):
    """Add the array y to the array x, in place, in pieces that fit into the processor's cache."""
    if x.nbytes <= PIECE_BYTES:
        x += y
        return
    size = max(1, PIECE_BYTES // x.itemsize)
    for piece, other in zip(cut(x, size), cut(y, size), strict=True):
        piece += other
