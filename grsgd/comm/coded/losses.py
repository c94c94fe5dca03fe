"""The choice of datagrams that a receiver discards on purpose, to measure how losses slow down a run."""

import numpy as np


def lost_parts(share: float, burst: float, count: int, random: np.random.Generator) -> np.ndarray:
    """Draw at random which parts of a packet are lost. Return bool of shape [count], True for each lost part.

    ``share``: expected share of parts that are lost. ``burst``: mean number of parts that are lost in a row. The
    network is modelled as in Gilbert (1960), "Capacity of a burst-noise channel". The model has two states: in one
    state all parts are lost, and in the other state no part is lost.
    """
    begins, ends = share / (burst * (1 - share)), 1 / burst
    drawn = random.random(count + 1)
    lost, is_lossy = np.zeros(count, bool), drawn[-1] < share
    for part in range(count):
        lost[part] = is_lossy
        is_lossy = drawn[part] < (1 - ends if is_lossy else begins)
    return lost
