"""Cutting a length into consecutive parts whose sizes differ by at most one.

Part k of n of a length is floor(k length / n) to floor((k + 1) length / n). Vectors, batches, blocks and groups of
ranks are all cut this way, so that what one module cuts fits what another one counts.
"""

import numpy as np


def part(k: int, parts: int, length: int) -> tuple[int, int]:
    """Begin and end of part ``k`` of ``parts``."""
    return k * length // parts, (k + 1) * length // parts


def sizes(length: int, parts: int) -> list[int]:
    """The size of every part, exact for any length."""
    return [end - begin for begin, end in (part(k, parts, length) for k in range(parts))]


def bounds(length: int, parts: int) -> np.ndarray:
    """Where the parts begin and end: int64 of shape [parts + 1]; part k is ``bounds[k]`` to ``bounds[k + 1]``."""
    return np.arange(parts + 1, dtype=np.int64) * length // parts
