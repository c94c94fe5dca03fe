"""Arrays in parts: those that ranks own, and cache-sized ones to add up."""

from coding.partition import part

PIECE_BYTES = 1024 * 1024
"""Size of a piece. 1 MiB was best or near it from 1 to 100 MiB; smaller costs messages, larger leaves the cache."""


def chunks(x, n: int) -> list:
    """Return x in n parts whose sizes differ by at most one."""
    return [x[begin:end] for begin, end in (part(c, n, x.size) for c in range(n))]


def cut(x, size: int) -> list:
    """Return x in parts of ``size`` elements, the last one shorter."""
    return [x[begin : begin + size] for begin in range(0, x.size, size)]


def add(x, y):
    """Add y to x in cache-sized pieces."""
    if x.nbytes <= PIECE_BYTES:
        x += y
        return
    size = max(1, PIECE_BYTES // x.itemsize)
    for piece, other in zip(cut(x, size), cut(y, size), strict=True):
        piece += other
