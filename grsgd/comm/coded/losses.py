"""The random choice of datagrams that a receiver discards on purpose, to measure how losses of datagrams slow down a
run."""

import numpy as np


def lost_parts(share: float, burst: float, count: int, random: np.random.Generator) -> np.ndarray:
    """Draw at random which parts of a packet a receiver discards. Return an array of bool of shape [count], which is
    True for each discarded part.

    ``share``: expected share of the parts that are discarded. ``burst``: mean number of successive parts that are
    discarded. The losses of the network are modelled as in Gilbert (1960), "Capacity of a burst-noise channel".
    Gilbert's model has two states: in one state every part is lost, and in the other state no part is lost.
    """
    begins, ends = share / (burst * (1 - share)), 1 / burst
    drawn = random.random(count + 1)
    lost, is_lossy = np.zeros(count, bool), drawn[-1] < share
    for part in range(count):
        lost[part] = is_lossy
        is_lossy = drawn[part] < (1 - ends if is_lossy else begins)
    return lost
