"""Base-(k+1) graphs, topologies that exist for every number of ranks. Each step uses another graph, and when each graph
has been used once, the models of all ranks are the exact mean of the initial models.

Source: Takezawa, Sato, Bao, Niwa, Yamada 2023, Beyond exponential graph: communication-efficient topologies for
decentralized learning via finite-time convergence, algorithms 1 to 3.
"""

from collections import defaultdict

import numpy as np


def base_graph(n: int, base: int) -> np.ndarray:
    """Return the mixing matrices of a base-(k+1) graph for ``n`` ranks: float64 of shape [steps, n, n], symmetric and
    doubly stochastic. The matrices are computed by algorithm 3 of Takezawa 2023.

    All elements of the product of the returned matrices are 1/n, so that the models become their mean. In each step, a
    rank has at most ``base`` - 1 neighbours.
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
    """Return the largest divisor of ``n`` that has no prime factor above ``base``."""
    left = n
    for factor in range(2, base + 1):
        while left % factor == 0:
            left //= factor
    return n // left


def hyper_hypercube(n: int, base: int) -> list[np.ndarray]:
    """Return the mixing matrices of a hyper-hypercube for ``n`` ranks (algorithm 1 of Takezawa 2023). In each step, the
    ranks form cliques of at most ``base`` ranks, and the ranks of each clique average their models.

    The number ``n`` must have no prime factor above ``base``.
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
    """Return the mixing matrices of a simple base-(k+1) graph for ``n`` ranks (algorithm 2 of Takezawa 2023).

    The ranks are divided into parts, one part per nonzero digit of ``n`` in base ``base``, beginning with the largest
    part. The part for the digit at position p has digit * base^p ranks. In the first steps, the ranks of each part
    average their models with each other. In the following steps, the parts one after the other exchange models with all
    ranks in later parts. After the exchange of a part, each subset of base^p ranks of this part has, as its mean, the
    mean of the part and of all later parts. In the last steps, the ranks of each subset of base^p ranks average their
    models.
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
    """Return the mixing matrix of an exchange between ``count`` subsets of ``size`` ranks each and the ``others`` ranks
    that follow them.

    If all ranks of the subsets have equal models before the exchange, the exchange makes the mean of each subset equal
    to the mean of all ranks. After the exchange, the mean of the models of the ``others`` ranks is also the mean of all
    ranks.
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
    """Return mixing matrices for ``n`` ranks in groups: matrix number k lets every group take step k of its own
    matrices. A group with fewer matrices than another group keeps its models unchanged in the last steps."""
    count = max(len(steps) for _, steps in groups)
    return [embedded(n, [(ranks, steps[k]) for ranks, steps in groups if k < len(steps)]) for k in range(count)]


def embedded(n: int, blocks: list[tuple[list[int], np.ndarray]]) -> np.ndarray:
    """Return the mixing matrix for ``n`` ranks in which each group of ranks in ``blocks`` mixes by its own matrix.
    Ranks that belong to no group keep their models."""
    W = np.eye(n)
    for ranks, block in blocks:
        W[np.ix_(ranks, ranks)] = block
    return W
