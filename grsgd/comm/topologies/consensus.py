"""The speed at which mixing alone brings the models of all ranks together, on a topology."""

import numpy as np

from grsgd.comm.topologies.topology import Topology

EXACT = 1e-12
"""Relative size of differences from the mean (1: the initial differences). Smaller differences count as rounding
errors."""
MAX_TURNS = 2**40


def spectral_gap(topology: Topology) -> float:
    """Return 1 minus the factor by which differences between models shrink per step, in the long run.

    The gap is 1 if no differences are left after one turn of the graphs, in which each matrix is used once. For one
    matrix, the factor is the second largest modulus of its eigenvalues. For m matrices, the factor is the m-th root of
    the second largest modulus of the eigenvalues of their product. The matrices must be doubly stochastic.
    """
    largest = float(np.abs(np.linalg.eigvals(turn(topology) - 1 / topology.size)).max())
    return 1.0 if largest < EXACT else 1 - largest ** (1 / len(topology.matrices))


def steps_to_consensus(topology: Topology, left: float = EXACT) -> int | None:
    """Return the number of steps after which at most ``left`` of the differences between the models is left, by the
    2-norm.

    The result is None if more than ``MAX_TURNS`` turns of the graphs are needed. The matrices must be doubly
    stochastic.
    """
    rest = np.eye(topology.size) - 1 / topology.size
    turns = [turn(topology) - 1 / topology.size]  # the matrices of 1, 2, 4, ... turns, less the mean
    while np.linalg.norm(turns[-1], 2) > left:
        if 2 ** len(turns) > MAX_TURNS:
            return None
        turns.append(turns[-1] @ turns[-1])
    steps = 0
    for power in range(len(turns) - 2, -1, -1):  # count the whole turns that leave too much
        if np.linalg.norm(more := turns[power] @ rest, 2) > left:
            rest, steps = more, steps + 2**power * len(topology.matrices)
    while np.linalg.norm(rest, 2) > left:
        rest = topology.matrix(steps) @ rest
        steps += 1
    return steps


def turn(topology: Topology) -> np.ndarray:
    """Return the product of all matrices; the first matrix is applied first."""
    product = np.eye(topology.size)
    for W in topology.matrices:
        product = W @ product
    return product


def is_doubly_stochastic(topology: Topology) -> bool:
    """Return whether rows and columns of all matrices sum to 1, so that mixing keeps the mean."""
    return all(np.abs(W.sum(axis) - 1).max() <= 1e-9 for W in topology.matrices for axis in (0, 1))


def most_neighbours(topology: Topology) -> int:
    """Return the largest number of other ranks to which a rank sends in a step."""
    others = ~np.eye(topology.size, dtype=bool)
    return max(int(((W > 0) & others).sum(0).max()) for W in topology.matrices)
