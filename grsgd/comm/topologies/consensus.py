"""How fast mixing alone brings the models of all ranks together, on a topology."""

import numpy as np

from grsgd.comm.topologies.topology import Topology

EXACT = 1e-12
"""Differences from the mean, compared with those at the start, that are rounding alone."""
MOST_TURNS = 2**40


def spectral_gap(topology: Topology) -> float:
    """Return 1 less the factor by which differences between the models shrink a step, in the long run; 1 where none are
    left after one turn of the graphs.

    Of one matrix: 1 less the second largest modulus of its eigenvalues. Of several: the same of their product, of which
    as many roots are taken. The matrices are doubly stochastic.
    """
    largest = float(np.abs(np.linalg.eigvals(turn(topology) - 1 / topology.size)).max())
    return 1.0 if largest < EXACT else 1 - largest ** (1 / len(topology.matrices))


def steps_to_consensus(topology: Topology, left: float = EXACT) -> int | None:
    """Return after how many steps at most ``left`` of the differences between the models is left, by the 2-norm.

    None if that takes more than ``MOST_TURNS`` turns of the graphs. The matrices are doubly stochastic.
    """
    rest = np.eye(topology.size) - 1 / topology.size
    turns = [turn(topology) - 1 / topology.size]  # of 1, 2, 4, ... turns, less the mean
    while np.linalg.norm(turns[-1], 2) > left:
        if 2 ** len(turns) > MOST_TURNS:
            return None
        turns.append(turns[-1] @ turns[-1])
    steps = 0
    for power in range(len(turns) - 2, -1, -1):  # as many whole turns as are too few
        if np.linalg.norm(more := turns[power] @ rest, 2) > left:
            rest, steps = more, steps + 2**power * len(topology.matrices)
    while np.linalg.norm(rest, 2) > left:
        rest = topology.matrix(steps) @ rest
        steps += 1
    return steps


def turn(topology: Topology) -> np.ndarray:
    """Return the product of all matrices, the first one applied first."""
    product = np.eye(topology.size)
    for W in topology.matrices:
        product = W @ product
    return product


def is_doubly_stochastic(topology: Topology) -> bool:
    """Whether rows and columns of all matrices sum to 1, so that mixing keeps the mean."""
    return all(np.abs(W.sum(axis) - 1).max() <= 1e-9 for W in topology.matrices for axis in (0, 1))


def most_neighbours(topology: Topology) -> int:
    """Return to how many others a rank sends in a step, at most."""
    others = ~np.eye(topology.size, dtype=bool)
    return max(int(((W > 0) & others).sum(0).max()) for W in topology.matrices)
