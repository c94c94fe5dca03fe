"""Measurement of the seconds that this processor takes to encode and decode packets, in a short trial with packets of
the real length."""

import statistics
import time
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from coding.fixed_point import accumulate
from coding.kernels import kernels

MAX_ELEMENTS = 1 << 20
"""Largest number of elements of a packet in the trial. Longer packets take the same time per element, because packets
of `MAX_ELEMENTS` elements do not fit into a cache either."""
WARM_UP, REPEATS = 1, 5


class CodecSeconds(NamedTuple):
    """Seconds per element of three operations on packets.

    ``add``: add a block that the rank has computed to the sum. ``encode``: encode a packet. ``decode``: decode a packet
    and add the result to the sum.
    """

    add: float
    encode: float
    decode: float


NOT_CODED = CodecSeconds(0.0, 0.0, 0.0)
"""Coding times of zero seconds, for simulated time, in which coding takes no time."""


def measure(scheme: str, r: int, length: int, empty: Callable) -> CodecSeconds:
    """Return the measured seconds per element of coding on this processor, with redundancy r and blocks of ``length``
    elements.

    A packet of the scheme coded has r slices, of which a receiver subtracts r - 1. Packets of other schemes are only
    copied. ``empty(size, dtype)`` makes an array. If ``empty`` makes arrays in GPU memory, the GPU is measured, else
    the CPU.
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
    """Return the median seconds from the call of ``action`` until the array ``changed``, which ``action`` writes, is
    complete."""
    taken = []
    for _ in range(WARM_UP + REPEATS):
        begin = time.perf_counter()
        action()
        int(changed[0])  # int() waits until a GPU has ended its computation
        taken.append(time.perf_counter() - begin)
    return statistics.median(taken[WARM_UP:])
