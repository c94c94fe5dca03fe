"""Measurement of the seconds that this processor takes to encode and decode packets, in a short trial with packets as
long as in training."""

import statistics
import time
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from coding.fixed_point import accumulate
from coding.kernels import kernels

MAX_ELEMENTS = 1 << 20
"""Largest number of elements of a packet in the trial that measures coding times. Packets with more elements take the
same time per element, because packets of `MAX_ELEMENTS` elements do not fit into a cache either."""
WARM_UP, REPEATS = 1, 5


class CodecSeconds(NamedTuple):
    """Seconds per element that a processor takes for three operations: ``add``, ``encode`` and ``decode``.

    ``add``: seconds to add one of the rank's own blocks to the sum of all gradients. ``encode``: seconds to encode a
    packet. ``decode``: seconds to decode a received packet and to add the decoded slice to the sum of all gradients.
    """

    add: float
    encode: float
    decode: float


NOT_CODED = CodecSeconds(0.0, 0.0, 0.0)
"""Coding times of zero seconds, for simulated time, in which coding takes no time."""


def measure(scheme: str, r: int, length: int, empty: Callable) -> CodecSeconds:
    """Return the measured seconds per element of coding on this processor, with redundancy r and blocks of ``length``
    elements.

    With the scheme ``coded``, a packet is a sum of ``r`` slices, of which a receiver subtracts ``r - 1``. With all
    other schemes a packet is a plain copy of one slice. ``empty(size, dtype)`` returns a new array of ``size``
    elements. If ``empty`` makes arrays in GPU memory, the GPU is measured, else the CPU.
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
