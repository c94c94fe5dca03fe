"""Functions that compute how fast mixing by a topology makes the models of all ranks equal."""

import numpy as np

from grsgd.comm.topologies.topology import Topology

EXACT = 1e-12
"""Fraction of the initial differences between models below which the remaining differences count as rounding errors."""
MAX_TURNS = 2**40


def spectral_gap(topology: Topology) -> float:
    """Return the spectral gap of ``topology``: 1 minus the factor by which one mixing step reduces the differences
    between models in the long run.

    If no differences are left when each mixing matrix has been used once, the spectral gap is 1. If the topology has
    one matrix, the factor is the second largest modulus of the matrix's eigenvalues. If the topology has m matrices,
    the factor is the m-th root of the second largest modulus of the eigenvalues of the matrices' product. The mixing
    matrices of ``topology`` must be doubly stochastic.
    """
    largest = float(np.abs(np.linalg.eigvals(turn(topology) - 1 / topology.size)).max())
    return 1.0 if largest < EXACT else 1 - largest ** (1 / len(topology.matrices))


def steps_to_consensus(topology: Topology, left: float = EXACT) -> int | None:
    """Return the number of mixing steps after which the 2-norm of the differences between models is at most ``left``
    times the initial norm.

    If each mixing matrix would have to be used more than ``MAX_TURNS`` times, return None. The mixing matrices of
    ``topology`` must be doubly stochastic.
    """
    rest = np.eye(topology.size) - 1 / topology.size
    # list of the powers 1, 2, 4, ... of the product of all matrices, each without the part that computes the mean
    turns = [turn(topology) - 1 / topology.size]
    while np.linalg.norm(turns[-1], 2) > left:
        if 2 ** len(turns) > MAX_TURNS:
            return None
        turns.append(turns[-1] @ turns[-1])
    steps = 0
    # add up the largest number of uses of all matrices after which the differences are still above `left`
    for power in range(len(turns) - 2, -1, -1):
        if np.linalg.norm(more := turns[power] @ rest, 2) > left:
            rest, steps = more, steps + 2**power * len(topology.matrices)
    while np.linalg.norm(rest, 2) > left:
        rest = topology.matrix(steps) @ rest
        steps += 1
    return steps


def turn(topology: Topology) -> np.ndarray:
    """Return the product of all mixing matrices of ``topology``: float64 of shape [n, n]. The matrix of the first step
    is the rightmost factor of the product."""
    product = np.eye(topology.size)
    for W in topology.matrices:
        product = W @ product
    return product


def is_doubly_stochastic(topology: Topology) -> bool:
    """Return True if the rows and the columns of all mixing matrices of ``topology`` sum to 1, so that mixing does not
    change the mean of the models."""
    return all(np.abs(W.sum(axis) - 1).max() <= 1e-9 for W in topology.matrices for axis in (0, 1))


def most_neighbours(topology: Topology) -> int:
    """Return the largest number of other ranks to which any rank sends in one step of ``topology``."""
    others = ~np.eye(topology.size, dtype=bool)
    return max(int(((W > 0) & others).sum(0).max()) for W in topology.matrices)
