"""Base-(k+1) graphs, for every number of ranks. The graphs take turns, and after one turn all ranks have the exact
mean.

Source: Takezawa, Sato, Bao, Niwa, Yamada 2023, Beyond exponential graph: communication-efficient topologies for
decentralized learning via finite-time convergence, algorithms 1 to 3.
"""

from collections import defaultdict

import numpy as np


def base_graph(n: int, base: int) -> np.ndarray:
    """Return the mixing matrices of algorithm 3: float64 of shape [steps, n, n], symmetric and doubly stochastic.

    All elements of the product of the matrices are 1/n. A rank has at most ``base`` - 1 neighbours per step.
    """
    smooth = largest_smooth_divisor(n, base)
    simple = simple_base_graph(n, base)
    factored = simple_base_graph(n // smooth, base)
    rows = [list(range(begin, n, smooth)) for begin in range(smooth)]
    factored = [embedded(n, [(row, W) for row in rows]) for W in factored]
    columns = [list(range(begin, begin + smooth)) for begin in range(0, n, smooth)]
    factored += [embedded(n, [(column, W) for column in columns]) for W in hyper_hypercube(smooth, base)]
    shorter = min(simple, factored, key=len)
    return np.stack(shorter) if len(shorter) else np.ones((1, n, n))


def largest_smooth_divisor(n: int, base: int) -> int:
    """Return the largest divisor of n without a prime factor above ``base``."""
    left = n
    for factor in range(2, base + 1):
        while left % factor == 0:
            left //= factor
    return n // left


def hyper_hypercube(n: int, base: int) -> list[np.ndarray]:
    """Return the matrices of algorithm 1: in each step the ranks of each clique, at most ``base`` ranks, average their
    models.

    n must have no prime factor above ``base``.
    """
    steps, stride, left = [], 1, n
    while left > 1:
        size = max(factor for factor in range(2, base + 1) if left % factor == 0)
        W = np.zeros((n, n))
        for first in range(n):
            if first // stride % size == 0:
                clique = [first + number * stride for number in range(size)]
                W[np.ix_(clique, clique)] = 1 / size
        steps.append(W)
        stride, left = stride * size, left // size
    return steps


def simple_base_graph(n: int, base: int) -> list[np.ndarray]:
    """Return the matrices of algorithm 2.

    The ranks are divided into parts of digit * base^p ranks, one part per digit of n in this base, the largest part
    first. First each part averages. Then each part, one after the other, exchanges with all later ranks. After this
    exchange, each of the part's subsets of base^p ranks has the mean of the part and all later ranks. Finally each
    subset averages.
    """
    parts, left = [], n
    while left:
        size = 1
        while size * base <= left:
            size *= base
        begin, count = n - left, left // size
        parts.append((list(range(begin, begin + count * size)), count, size))
        left -= count * size
    later = defaultdict(list)
    for number, (part, count, size) in enumerate(parts[:-1]):
        later[number].append((range(part[0], n), trade(count, size, n - 1 - part[-1])))
        for k, W in enumerate(hyper_hypercube(size, base), start=number + 1):
            later[k] += [(part[begin : begin + size], W) for begin in range(0, len(part), size)]
    first = side_by_side(n, [(part, hyper_hypercube(len(part), base)) for part, _, _ in parts])
    return first + [embedded(n, later[k]) for k in sorted(later)]


def trade(count: int, size: int, others: int) -> np.ndarray:
    """Return the matrix of an exchange between ``count`` subsets of ``size`` ranks and the ``others`` ranks after them.

    If all ranks of the subsets have one model, the mean of each subset becomes the mean of all ranks. The mean of the
    other ranks becomes the mean of all ranks, too.
    """
    n = count * size + others
    weight, W = size / n, np.eye(n)
    for number in range(others):
        j, partners = count * size + number, range(number, count * size, size)
        W[j, j] = 1 - count * weight
        for i in partners:
            W[i, i], W[i, j], W[j, i] = 1 - weight, weight, weight
    return W


def side_by_side(n: int, groups: list[tuple[list[int], list[np.ndarray]]]) -> list[np.ndarray]:
    """Return the steps in which all groups of ranks take their own steps at once; a group waits when it has no more
    steps."""
    count = max(len(steps) for _, steps in groups)
    return [embedded(n, [(ranks, steps[k]) for ranks, steps in groups if k < len(steps)]) for k in range(count)]


def embedded(n: int, blocks: list[tuple[list[int], np.ndarray]]) -> np.ndarray:
    """Return the matrix of n ranks in which groups of ranks mix by their own matrices, and all other ranks keep their
    models."""
    W = np.eye(n)
    for ranks, block in blocks:
        W[np.ix_(ranks, ranks)] = block
    return W
