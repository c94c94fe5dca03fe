"""Topologies, which are graphs whose nodes are the ranks. A topology determines to which other ranks each rank sends
its model, and with which weights each rank mixes the models."""

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path

import numpy as np

from grsgd import outside
from grsgd.comm.topologies.base_graph import base_graph
from grsgd.errors import UsageError
from grsgd.seeding import Purpose, generator

TOPOLOGIES: dict[str, Callable[[int], np.ndarray]] = {}
"""Functions that return the ``matrices`` of a `Topology` for a number of ranks, by the topology's name."""


class TopologyError(UsageError):
    """Error raised if a topology cannot be used. The message of `TopologyError` is the reason in one line."""


@dataclass(frozen=True)
class Topology:
    """A graph whose nodes are n ranks, or several such graphs used in successive steps, with the weights for mixing
    models.

    Step k uses the mixing matrix W = ``matrices[k % len(matrices)]``: rank i sets its model ``x_i`` to the sum of
    ``W[i, j] * x_j`` over all ranks j. The graph of a step has an edge from rank j to rank i if W[i, j] > 0. Algorithms
    that do not mix models by W use only the edges of the graph.

    Parameters
    ----------
    matrices
        Mixing matrix or matrices, float64 of shape [n, n] or [steps, n, n], finite and not negative.
    name
        Name of the topology in error messages.

    Raises
    ------
    TopologyError
        If some rank cannot be reached from another rank along the edges of all steps, because then models would never
        become equal.
    """

    matrices: np.ndarray
    name: str = ""

    def __post_init__(self):
        matrices = np.asarray(self.matrices, np.float64)
        if matrices.ndim not in (2, 3) or matrices.shape[-1] != matrices.shape[-2] or not matrices.size:
            raise TopologyError(f"mixing matrix of shape {matrices.shape}; a mixing matrix must be square")
        if not np.isfinite(matrices).all() or (matrices < 0).any():
            raise TopologyError("mixing matrix with negative or non-finite weights")
        object.__setattr__(self, "matrices", matrices.reshape(-1, *matrices.shape[-2:]))
        edges = self.edges()
        if not connected(edges) or not connected(edges.T):
            raise TopologyError("mixing matrix of a graph that is not connected: models would never become equal")

    @property
    def size(self) -> int:
        """Return the number of ranks in the topology."""
        return self.matrices.shape[1]

    def matrix(self, step: int) -> np.ndarray:
        """Return the mixing matrix of ``step``: float64 of shape [n, n]."""
        return self.matrices[step % len(self.matrices)]

    def edges(self, step: int | None = None) -> np.ndarray:
        """Return the graph of ``step``: bool of shape [n, n], which is True for an edge from the column's rank to the
        row's rank. If ``step`` is None, the returned graph has the edges of all steps."""
        return (self.matrices > 0).any(0) if step is None else self.matrix(step) > 0

    @cached_property
    def _neighbours(self) -> dict[int | None, tuple[list[list[int]], list[list[int]]]]:
        """Return the neighbours of all ranks, as a pair (receivers, senders), for each step and, with the key None, for
        all steps together. The lists ``receivers`` and ``senders`` each contain one list of ranks for every rank."""
        return {step: neighbours_of(self.edges(step)) for step in (None, *range(len(self.matrices)))}

    def out_neighbours(self, rank: int, step: int | None = None, without: Sequence[int] = ()) -> list[int]:
        """Return the sorted other ranks to which ``rank`` sends in ``step``, or in any step if ``step`` is None.

        ``without``: ranks that have no process. If ``rank`` sends to a rank in ``without``, the result contains,
        instead of that rank, the ranks to which it sends. For example, a ring without one of its ranks is again a ring.
        """
        if without:
            return bypassing(self.edges(step).T, rank, without)
        return list(self._neighbours[self._turn(step)][0][rank])

    def in_neighbours(self, rank: int, step: int | None = None, without: Sequence[int] = ()) -> list[int]:
        """Return the sorted other ranks that send to ``rank`` in ``step``, or in any step if ``step`` is None.

        ``without``: ranks that have no process. If a rank in ``without`` sends to ``rank``, the result contains,
        instead of that rank, the ranks that send to it.
        """
        if without:
            return bypassing(self.edges(step), rank, without)
        return list(self._neighbours[self._turn(step)][1][rank])

    def _turn(self, step: int | None) -> int | None:
        """Return the index in ``matrices`` of the mixing matrix of ``step``. If ``step`` is None, which stands for all
        steps together, return None."""
        return None if step is None else step % len(self.matrices)

    def require_stochastic(self, *kinds: str):
        """Raise TopologyError if the rows or columns of some mixing matrix do not sum to 1.
        ``kinds``: "row" if the rows must sum to 1, "column" if the columns must sum to 1, or both.

        If the rows of a mixing matrix sum to 1, each rank's new model is a weighted mean of the ranks' models. If the
        columns of a mixing matrix sum to 1, mixing does not change the sum of all models.
        """
        for W in self.matrices:
            for kind in kinds:
                sums = W.sum({"row": 1, "column": 0}[kind])
                worst = int(np.abs(sums - 1).argmax())
                if abs(sums[worst] - 1) > 1e-9:
                    raise self.refusal(f"mixing matrix whose {kind} {worst} sums to {sums[worst]:g}; the sum must be 1")

    def require_own_weights(self):
        """Raise TopologyError if some rank gives its own model the weight 0 in some step."""
        for W in self.matrices:
            for rank in np.flatnonzero(np.diag(W) == 0):
                raise self.refusal(f"mixing matrix in which rank {rank} gives its own model no weight")

    def require_symmetric(self):
        """Raise TopologyError if the graph of some step has an edge between two ranks but no edge back."""
        for W in self.matrices:
            for i, j in np.argwhere((W > 0) & (W.T == 0)):
                raise self.refusal(f"graph with an edge from rank {j} to rank {i} and no edge back")

    def require_fixed_symmetric_weights(self):
        """Raise TopologyError unless all steps use one symmetric matrix whose rows sum to 1."""
        if len(self.matrices) > 1:
            raise self.refusal("graph that changes from step to step; the graph must be the same in every step")
        self.require_stochastic("row")
        W = self.matrices[0]
        for i, j in np.argwhere(np.abs(W - W.T) > 1e-9):
            raise self.refusal(f"weights {W[i, j]:g} of rank {j} at rank {i} and {W[j, i]:g} back are not equal")

    def refusal(self, why: str) -> TopologyError:
        """Return the error for an algorithm that cannot use this topology. ``why``: the reason, with which the error's
        message ends."""
        return TopologyError(f"topology {self.name}: {why}")

    def sides(self) -> list[int] | None:
        """If the graph is bipartite, return a list with the side (0 or 1) of each rank. Every edge joins ranks of
        different sides, and rank 0 has side 0. If the graph is not bipartite, return None."""
        linked = self.edges() | self.edges().T
        side = {0: 0}
        found = [0]
        for i in found:
            for j in np.flatnonzero(linked[i]).tolist():
                if j not in side:
                    side[j] = 1 - side[i]
                    found.append(j)
                elif j != i and side[j] == side[i]:
                    return None
        return [side[rank] for rank in range(self.size)]


def bypassing(edges: np.ndarray, rank: int, without: Sequence[int]) -> list[int]:
    """Return the ranks that can be reached from ``rank`` by one edge, or by a path whose inner ranks are in
    ``without``, in ascending order.

    ``edges``: bool of shape [n, n], which is True for an edge from the row's rank to the column's rank. ``without``:
    ranks that have no process.
    """
    found, passed, looking = set(), {rank}, [rank]
    for at in looking:
        for next_rank in np.flatnonzero(edges[at]).tolist():
            if next_rank in passed:
                continue
            passed.add(next_rank)
            (looking.append if next_rank in without else found.add)(next_rank)
    return sorted(found)


def neighbours_of(edges: np.ndarray) -> tuple[list[list[int]], list[list[int]]]:
    """Return two lists (receivers, senders) of one list per rank: the ascending numbers of the ranks to which the rank
    sends, and from which it receives.

    ``edges``: bool of shape [n, n], which is True for an edge from the column's rank to the row's rank.
    """
    receivers: list[list[int]] = [[] for _ in edges]
    senders: list[list[int]] = [[] for _ in edges]
    for i, j in np.argwhere(edges).tolist():
        if i != j:
            receivers[j].append(i)
            senders[i].append(j)
    return receivers, senders


def connected(edges: np.ndarray) -> bool:
    """Return True if every rank can be reached from rank 0 along ``edges`` (bool of shape [n, n], True for an edge from
    the column's rank to the row's rank)."""
    receivers, _ = neighbours_of(edges)
    found, looking = {0}, [0]
    for rank in looking:
        new = [other for other in receivers[rank] if other not in found]
        found.update(new)
        looking += new
    return len(found) == len(edges)


def equal_weights(n: int, senders: Callable[[int], Iterable[int]]) -> np.ndarray:
    """Return the mixing matrix in which each rank mixes its own model and the models of the ranks ``senders(rank)``,
    all with equal weights. Numbers that ``senders`` returns are taken modulo ``n``."""
    W = np.zeros((n, n))
    for i in range(n):
        mixed = sorted({i} | {j % n for j in senders(i)})
        W[i, mixed] = 1 / len(mixed)
    return W


def powers_of_two(n: int) -> list[int]:
    """Return the powers of two below ``n`` in ascending order, beginning with 1."""
    return [1 << k for k in range((n - 1).bit_length())]


def named(name: str):
    """Return a decorator that stores a function in `TOPOLOGIES` as the topology ``name``."""

    def register(function):
        TOPOLOGIES[name] = function
        return function

    return register


@named("ring")
def ring(n: int) -> np.ndarray:
    """Return the mixing matrix of a ring: each rank gives its own model and the models of its two neighbours the weight
    1/3 each. If ``n`` is 2, each of the two models has the weight 1/2."""
    return equal_weights(n, lambda i: (i - 1, i + 1))


@named("directed-ring")
def directed_ring(n: int) -> np.ndarray:
    """Return the mixing matrix of a directed ring, in which rank i sends its model only to rank i + 1, modulo ``n``."""
    return equal_weights(n, lambda i: (i - 1,))


@named("exponential")
def exponential(n: int) -> np.ndarray:
    """Return the mixing matrix of the directed graph in which, in every step, rank i sends to the ranks i + 1, i + 2, i
    + 4, ... (Assran 2019)."""
    return equal_weights(n, lambda i: (i - hop for hop in powers_of_two(n)))


@named("one-peer-exponential")
def one_peer_exponential(n: int) -> np.ndarray:
    """Return the mixing matrices of directed graphs in which rank i sends to one rank per step: to i + 1 in the first
    step, to i + 2 in the second, to i + 4 in the third, ... (Assran 2019).

    When the largest power of two below ``n`` has been used, the sequence of graphs begins again with i + 1.
    """
    return np.stack([equal_weights(n, lambda i, hop=hop: (i - hop,)) for hop in powers_of_two(n) or [0]])


@named("full")
def full(n: int) -> np.ndarray:
    """Return the mixing matrix of the complete graph, in which each rank mixes the models of all ranks with the weight
    1/n. With this matrix, all models are equal after one step."""
    return equal_weights(n, lambda i: range(n))


@named("hypercube")
def hypercube(n: int) -> np.ndarray:
    """Return the mixing matrix of a hypercube, in which a rank's neighbours are the ranks whose numbers differ from its
    own in exactly one binary digit."""
    if n & (n - 1):
        raise TopologyError(f"a hypercube of {n} ranks; the number of ranks must be a power of two")
    return equal_weights(n, lambda i: (i ^ hop for hop in powers_of_two(n)))


@named("torus")
def torus(n: int) -> np.ndarray:
    """Return the mixing matrix of a torus, in which each rank has four neighbours on a grid that is closed in both
    directions.

    The two sides of the grid have lengths as equal as ``n`` allows.
    """
    width = max(width for width in range(1, n + 1) if n % width == 0 and width * width <= n)
    return equal_weights(
        n, lambda i: (i - width, i + width, i - i % width + (i - 1) % width, i - i % width + (i + 1) % width)
    )


@named("erdos-renyi")
def erdos_renyi(n: int) -> np.ndarray:
    """Return the mixing matrix of a random graph, in which any two ranks are neighbours with probability 2 ln(n)/n.

    The function draws random graphs until a graph is connected. For the same ``n``, the graph is the same in every run.
    Ranks have different numbers of neighbours, so the edges have the weights of `metropolis_weights`.
    """
    random = generator(Purpose.RANDOM_GRAPH, 0, n)
    while True:
        edges = np.triu(random.random((n, n)) < 2 * np.log(n) / n, 1)
        edges |= edges.T
        if connected(edges):
            return metropolis_weights(edges)


def metropolis_weights(edges: np.ndarray) -> np.ndarray:
    """Return the symmetric mixing matrix in which an edge has the weight 1 / (1 + d), where d is the larger of the
    numbers of neighbours of the edge's two ranks.

    The weights on the matrix's diagonal are chosen such that each row sums to 1. ``edges``: the graph, as a symmetric
    bool array of shape [n, n].
    """
    degrees = edges.sum(1)
    W = np.where(edges, 1 / (1 + np.maximum.outer(degrees, degrees)), 0.0)
    return W + np.diag(1 - W.sum(1))


@named("base-2")
def base_2(n: int) -> np.ndarray:
    """Return the mixing matrices of a base-2 graph (Takezawa 2023), in which a rank has at most one neighbour per step.
    When each matrix has been used once, every rank's model is the mean of all initial models."""
    return base_graph(n, 2)


@named("base-3")
def base_3(n: int) -> np.ndarray:
    """Return the mixing matrices of a base-3 graph, which is similar to `base_2`. In each step a rank has at most two
    neighbours, and the models reach their mean in no more steps than with `base_2`."""
    return base_graph(n, 3)


@named("base-5")
def base_5(n: int) -> np.ndarray:
    """Return the mixing matrices of a base-5 graph, which is similar to `base_2`. In each step a rank has at most four
    neighbours."""
    return base_graph(n, 5)


OPTION = {
    "description": f"{', '.join(TOPOLOGIES)}, a file with mixing matrices, or FILE.py:NAME",
    "examples": list(TOPOLOGIES),
}
"""Description and examples of the option ``topology``, for all algorithms that have this option."""


def from_file(path: str | Path) -> Topology:
    """Return the topology in the text file ``path``. Raise TopologyError if the file cannot be read or contains no
    matrix.

    The file has one line per row of the mixing matrix, with numbers separated by blanks or commas. If steps use
    different matrices, the file contains the rows of the first matrix, then the rows of the second matrix, and so on.
    """
    try:
        text = Path(path).read_text()
        rows = np.loadtxt(text.replace(",", " ").splitlines(), ndmin=2)
        if not rows.size:
            raise ValueError("the file contains no numbers")
        n = rows.shape[1]
        return Topology(rows if len(rows) % n else rows.reshape(-1, n, n), str(path))
    except (OSError, ValueError) as error:
        raise TopologyError(f"{path}: {error}") from None


def build(name: str, n: int) -> Topology:
    """Return the topology ``name`` for ``n`` ranks. Raise TopologyError if the topology ``name`` is unknown or does not
    exist for ``n`` ranks.

    ``name``: a name in `TOPOLOGIES`, the path of a file with mixing matrices, or FILE.py:NAME for a function in a
    Python file.
    """
    if name in TOPOLOGIES:
        return of_function(TOPOLOGIES[name], n, name)
    if outside.is_outside(name) and not os.path.isfile(name):
        return of_function(outside.load(name, "topologies"), n, name)
    if not os.path.isfile(name):  # isfile() returns False even for a name that no file can have
        raise TopologyError(f"{name!r} is neither a matrix file nor one of {', '.join(TOPOLOGIES)}")
    found = os.stat(name)
    topology = of_file(name, found.st_mtime_ns, found.st_size)
    if topology.size != n:
        raise TopologyError(f"{name} is a mixing matrix for {topology.size} ranks; this job has {n} ranks")
    return topology


def is_for_any_number(name: str) -> bool:
    """Return True if the topology ``name`` exists for every number of ranks."""
    return (name in TOPOLOGIES and name != "hypercube") or outside.is_outside(name)


@lru_cache(maxsize=16)
def of_function(function: Callable[[int], np.ndarray], n: int, name: str) -> Topology:
    """Return the topology whose matrices are the result of ``function`` for ``n`` ranks. The topology is cached, so
    that all ranks of a simulation share one object."""
    return Topology(function(n), name)


@lru_cache(maxsize=16)
def of_file(path: str, modified: int, size: int) -> Topology:
    """Return the topology that is defined in the file ``path``. The topology is cached until the file's size or time of
    modification changes, so that all ranks of a simulation share one object."""
    return from_file(path)
