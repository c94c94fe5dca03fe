"""Functions that divide a number of elements (length) into consecutive parts whose sizes differ by at most one.

Part k of n parts of a length reaches from floor(k length / n) to floor((k + 1) length / n). Vectors, batches, blocks
and groups of ranks are all divided by the functions of this module, so all modules agree on the parts.
"""

import numpy as np


def part(k: int, parts: int, length: int) -> tuple[int, int]:
    """Return the begin and the end of part ``k`` if ``length`` is divided into ``parts`` parts."""
    return k * length // parts, (k + 1) * length // parts


def sizes(length: int, parts: int) -> list[int]:
    """Return the size of every part if ``length`` is divided into ``parts`` parts. The sizes are computed with Python's
    integers, so they are exact for any ``length``."""
    return [end - begin for begin, end in (part(k, parts, length) for k in range(parts))]


def bounds(length: int, parts: int) -> np.ndarray:
    """Return the bounds of all parts if ``length`` is divided into ``parts`` parts: int64 of shape [parts + 1]. If
    ``bounds`` is the returned array, part k reaches from ``bounds[k]`` up to, but without, ``bounds[k + 1]``."""
    return np.arange(parts + 1, dtype=np.int64) * length // parts
