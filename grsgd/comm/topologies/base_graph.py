"""Graphs that take turns until all ranks have the exact mean of all, for every number of ranks: Base-(k+1) graphs.

Source: Takezawa, Sato, Bao, Niwa, Yamada 2023, Beyond exponential graph: communication-efficient topologies for
decentralized learning via finite-time convergence, algorithms 1 to 3.
"""

from collections import defaultdict

import numpy as np


def base_graph(n: int, base: int) -> np.ndarray:
    """Return the mixing matrices, float64 [steps, n, n], symmetric and doubly stochastic; their product is 1/n in all
    places.

    A rank has at most ``base`` - 1 neighbours in a step.
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
    """Algorithm 1: in each step cliques of at most ``base`` ranks average. n has no prime factor above ``base``."""
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
    """Algorithm 2. The ranks lie in parts of digit * base^p, one for each digit of n in this base, largest first.

    Each part averages. Then one part after the other trades with all that come after it, so that each of its subsets of
    base^p has the mean of all of these; after that each of them averages.
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
    """Return the matrix by which ``others`` ranks, and each of ``count`` subsets of ``size`` before them, get the mean
    of all of them, where each subset's ranks have one model."""
    n = count * size + others
    weight, W = size / n, np.eye(n)
    for number in range(others):
        j, partners = count * size + number, range(number, count * size, size)
        W[j, j] = 1 - count * weight
        for i in partners:
            W[i, i], W[i, j], W[j, i] = 1 - weight, weight, weight
    return W


def side_by_side(n: int, groups: list[tuple[list[int], list[np.ndarray]]]) -> list[np.ndarray]:
    """Return the steps in which each group of ranks takes its own, beside the others, and waits when it has no more."""
    count = max(len(steps) for _, steps in groups)
    return [embedded(n, [(ranks, steps[k]) for ranks, steps in groups if k < len(steps)]) for k in range(count)]


def embedded(n: int, blocks: list[tuple[list[int], np.ndarray]]) -> np.ndarray:
    """Return the matrix of n ranks in which some mix by matrices of their own, and the others keep what they have."""
    W = np.eye(n)
    for ranks, block in blocks:
        W[np.ix_(ranks, ranks)] = block
    return W
