"""How long this processor takes to encode and decode packets, by a short trial on arrays as long as real packets."""

import statistics
import time
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from coding.fixed_point import accumulate
from coding.kernels import kernels

MAX_ELEMENTS = 1 << 20
"""Longer packets take as long an element: they lie in no cache."""
WARM_UP, REPEATS = 1, 5


class CodecSeconds(NamedTuple):
    """Seconds an element: to ``add`` an own block to the sum, to ``encode`` a packet, and to ``decode`` one and add it
    to the sum."""

    add: float
    encode: float
    decode: float


NOT_CODED = CodecSeconds(0.0, 0.0, 0.0)
"""Where coding takes no time: simulated time leaves it out."""


def measure(scheme: str, r: int, length: int, empty: Callable) -> CodecSeconds:
    """Return what this processor takes with redundancy r, of blocks of ``length`` elements.

    A packet of the scheme coded has r slices, of which a receiver takes r - 1 out again; the others' are copied as they
    are. ``empty(size, dtype)`` makes an array, and so decides where all this is done.
    """
    slices = r if scheme == "coded" else 1
    size = max(1, min(-(-length // r), MAX_ELEMENTS))
    own, content, total = empty(slices * size, "int32"), empty(size, "int32"), empty(size, "int64")
    own.fill(1)
    content.fill(1)
    total.fill(0)
    cuts = np.arange(slices, dtype=np.int64) * size, np.full(slices, size, np.int64)
    known = tuple(each[1:] for each in cuts)

    def encode():
        if scheme == "coded":
            kernels(content).add_slices(own, *cuts, content)
        else:
            content[:] = own

    def decode():
        if scheme == "coded":
            kernels(content).strip_slices(content, own, *known, content)
        accumulate(total, content)

    actions = [(lambda: accumulate(total, own[:size]), total), (encode, content), (decode, total)]
    return CodecSeconds(*(seconds_of(action, changed) / size for action, changed in actions))


def seconds_of(action: Callable[[], None], changed) -> float:
    """Return the median seconds of an action, until the array that it has changed is there."""
    taken = []
    for _ in range(WARM_UP + REPEATS):
        begin = time.perf_counter()
        action()
        int(changed[0])  # a GPU may be at it still
        taken.append(time.perf_counter() - begin)
    return statistics.median(taken[WARM_UP:])
