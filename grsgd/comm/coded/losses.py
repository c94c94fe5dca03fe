"""Datagrams that are lost on purpose, to measure the cost of losses."""

import numpy as np


def lost_parts(share: float, burst: float, count: int, random: np.random.Generator) -> np.ndarray:
    """Return, for each part of a packet, whether it is lost: bool of shape [count].

    ``share``: share of all parts that is lost. ``burst``: mean length of a run of lost parts. The channel has two
    states, as in Gilbert (1960), "Capacity of a burst-noise channel": one in which all parts are lost, and one in which
    no part is lost.
    """
    begins, ends = share / (burst * (1 - share)), 1 / burst
    drawn = random.random(count + 1)
    lost, is_lossy = np.zeros(count, bool), drawn[-1] < share
    for part in range(count):
        lost[part] = is_lossy
        is_lossy = drawn[part] < (1 - ends if is_lossy else begins)
    return lost
