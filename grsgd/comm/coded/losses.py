"""Datagrams that are lost on purpose, to see what that costs."""

import numpy as np


def lost_parts(share: float, burst: float, count: int, random: np.random.Generator) -> np.ndarray:
    """Return which of a packet's parts are lost, bool of shape [count]: a share of all, on average ``burst`` in a row.

    Two states, as of Gilbert (1960), "Capacity of a burst-noise channel": all is lost, or nothing is.
    """
    begins, ends = share / (burst * (1 - share)), 1 / burst
    drawn = random.random(count + 1)
    lost, is_lossy = np.zeros(count, bool), drawn[-1] < share
    for part in range(count):
        lost[part] = is_lossy
        is_lossy = drawn[part] < (1 - ends if is_lossy else begins)
    return lost
