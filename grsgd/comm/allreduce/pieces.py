"""Division of arrays: into the parts that ranks own, and into cache-sized pieces that are added one by one.

A schedule is a generator that yields each object it waits for.
"""

import math
from functools import wraps

import numpy as np

from coding.partition import part
from grsgd.comm import tags
from grsgd.comm.allreduce.bfloat16 import bfloat16_allreduce

PIECE_BYTES = 1024 * 1024
"""Size of a piece in bytes.

1 MiB was the fastest size, or near it, for arrays of 1 to 100 MiB. Smaller pieces need more messages, and larger pieces
do not fit into the cache.
"""


def power_of_two(scale: float) -> float:
    """Return the largest power of two that is not above ``scale``; multiplying by this power rounds no normal
    number."""
    return 2.0 ** math.floor(math.log2(scale))


def in_range(allreduce):
    """Return ``allreduce``, changed for arrays of float16: arrays of float16 are multiplied by a power of two near
    ``scale`` before the sum.

    The mean may be in the range of float16 although the sum is not. Arrays of other dtypes are multiplied after the
    sum, so their results and speed are unchanged. A sum of float32 overflows if the mean of n ranks is above 3.4e38 /
    n.
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
    """Schedule that sets x to ``scale`` times its sum, by ``allreduce``. Before the sum, x is multiplied by p, the
    largest power of two that is not above ``scale``. The sum is multiplied by ``scale`` / p."""
    share = power_of_two(scale)
    x *= share
    yield from allreduce(comm, x, tag, scale / share, **options)


def chunks(x, n: int) -> list:
    """Return x in ``n`` parts whose sizes differ by at most one element."""
    return [x[begin:end] for begin, end in (part(c, n, x.size) for c in range(n))]


def cut(x, size: int) -> list:
    """Return x in parts of ``size`` elements; the last part may be shorter."""
    return [x[begin : begin + size] for begin in range(0, x.size, size)]


def add(x, y):
    """Add y to x in cache-sized pieces."""
    if x.nbytes <= PIECE_BYTES:
        x += y
        return
    size = max(1, PIECE_BYTES // x.itemsize)
    for piece, other in zip(cut(x, size), cut(y, size), strict=True):
        piece += other
