"""Topologies: graphs over the ranks. A topology determines which rank sends its model to which other ranks, and with
which weights a rank mixes models."""

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
"""Every named topology, as a function that is given the number of ranks and returns the ``matrices`` of a
`Topology`."""


class TopologyError(UsageError):
    """Error raised if a topology cannot be used. The error's message gives the reason in one line."""


@dataclass(frozen=True)
class Topology:
    """A graph over n ranks, or several graphs used in successive steps, with the weights by which models mix along the
    edges.

    Step k uses the mixing matrix W = ``matrices[k % len(matrices)]``: rank i mixes ``x_i <- sum_j W[i, j] x_j``. The
    graph of the step has an edge from j to i if W[i, j] > 0. An algorithm that does not mix models by W uses only the
    edges.

    Parameters
    ----------
    matrices
        Mixing matrix or matrices, float64 of shape [n, n] or [steps, n, n], finite and not negative.
    name
        Name of the topology in error messages.

    Raises
    ------
    TopologyError
        If some rank cannot be reached from another rank along the edges of all steps. If a rank cannot be reached, the
        models of all ranks would never become equal.
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
        """Return the graph of ``step`` as bool of shape [n, n], True for an edge from the column's rank to the row's
        rank. If ``step`` is None, the graph has the edges of all steps."""
        return (self.matrices > 0).any(0) if step is None else self.matrix(step) > 0

    @cached_property
    def _neighbours(self) -> dict[int | None, tuple[list[list[int]], list[list[int]]]]:
        """Return a pair (receivers, senders) for each step, and for the key None a pair for all steps together.
        ``receivers`` and ``senders`` each have one list of ranks per rank."""
        return {step: neighbours_of(self.edges(step)) for step in (None, *range(len(self.matrices)))}

    def out_neighbours(self, rank: int, step: int | None = None, without: Sequence[int] = ()) -> list[int]:
        """Return the other ranks to which ``rank`` sends in ``step``, or in any step if ``step`` is None, ascending.

        ``without``: ranks that have no process. If ``rank`` sends to a rank in ``without``, the result has the
        receivers of that rank in its place. For example, a ring from which one rank is left out is a ring again.
        """
        if without:
            return bypassing(self.edges(step).T, rank, without)
        return list(self._neighbours[self._turn(step)][0][rank])

    def in_neighbours(self, rank: int, step: int | None = None, without: Sequence[int] = ()) -> list[int]:
        """Return the other ranks that send to ``rank`` in ``step``, or in any step if ``step`` is None, ascending.

        ``without``: ranks that have no process. If a rank in ``without`` sends to ``rank``, the result has the senders
        to that rank in its place.
        """
        if without:
            return bypassing(self.edges(step), rank, without)
        return list(self._neighbours[self._turn(step)][1][rank])

    def _turn(self, step: int | None) -> int | None:
        """Return the index in ``matrices`` of the mixing matrix of ``step``. Return None if ``step`` is None, which
        stands for all steps together."""
        return None if step is None else step % len(self.matrices)

    def require_stochastic(self, *kinds: str):
        """Raise TopologyError unless the rows or columns of every mixing matrix sum to 1. ``kinds`` has "row" if rows
        must sum to 1, and "column" if columns must sum to 1.

        If the rows of a mixing matrix sum to 1, each rank's new model is a weighted mean of models. If the columns sum
        to 1, mixing keeps the sum of all models.
        """
        for W in self.matrices:
            for kind in kinds:
                sums = W.sum({"row": 1, "column": 0}[kind])
                worst = int(np.abs(sums - 1).argmax())
                if abs(sums[worst] - 1) > 1e-9:
                    raise self.refusal(f"mixing matrix whose {kind} {worst} sums to {sums[worst]:g}; the sum must be 1")

    def require_own_weights(self):
        """Raise TopologyError unless every rank gives its own model a weight above 0 in every step."""
        for W in self.matrices:
            for rank in np.flatnonzero(np.diag(W) == 0):
                raise self.refusal(f"mixing matrix in which rank {rank} gives its own model no weight")

    def require_symmetric(self):
        """Raise TopologyError unless, in every step, the graph has an edge from j to i for each edge from rank i to
        rank j."""
        for W in self.matrices:
            for i, j in np.argwhere((W > 0) & (W.T == 0)):
                raise self.refusal(f"graph with an edge from rank {j} to rank {i} and no edge back")

    def require_fixed_symmetric_weights(self):
        """Raise TopologyError unless every step uses the same symmetric matrix, whose rows sum to 1."""
        if len(self.matrices) > 1:
            raise self.refusal("graph that changes from step to step; the graph must be the same in every step")
        self.require_stochastic("row")
        W = self.matrices[0]
        for i, j in np.argwhere(np.abs(W - W.T) > 1e-9):
            raise self.refusal(f"weights {W[i, j]:g} of rank {j} at rank {i} and {W[j, i]:g} back are not equal")

    def refusal(self, why: str) -> TopologyError:
        """Return the error that an algorithm raises if it cannot use this topology. ``why`` is the reason, the end of
        the message."""
        return TopologyError(f"topology {self.name}: {why}")

    def sides(self) -> list[int] | None:
        """Return a list with the side of each rank, 0 or 1, in a bipartite graph. Every edge joins a rank of side 0 and
        a rank of side 1, and rank 0 has side 0. Return None if the graph is not bipartite."""
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
    """Return the ranks that can be reached from ``rank`` by one edge or by a path through ranks in ``without``,
    ascending.

    ``edges``: bool of shape [n, n], True for an edge from the row's rank to the column's rank. ``without``: ranks that
    have no process.
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
    """Return two lists with one ascending list of ranks per rank: the other ranks to which the rank sends, and the
    other ranks from which the rank receives.

    ``edges``: bool of shape [n, n], an edge from the column's rank to the row's rank.
    """
    receivers: list[list[int]] = [[] for _ in edges]
    senders: list[list[int]] = [[] for _ in edges]
    for i, j in np.argwhere(edges).tolist():
        if i != j:
            receivers[j].append(i)
            senders[i].append(j)
    return receivers, senders


def connected(edges: np.ndarray) -> bool:
    """Return whether every rank can be reached from rank 0 along ``edges``: bool of shape [n, n], True for an edge from
    the column's rank to the row's rank."""
    receivers, _ = neighbours_of(edges)
    found, looking = {0}, [0]
    for rank in looking:
        new = [other for other in receivers[rank] if other not in found]
        found.update(new)
        looking += new
    return len(found) == len(edges)


def equal_weights(n: int, senders: Callable[[int], Iterable[int]]) -> np.ndarray:
    """Return the mixing matrix in which each rank mixes its own model and the models of the ranks ``senders(rank)``
    with equal weights. The ranks that ``senders`` returns are taken modulo ``n``."""
    W = np.zeros((n, n))
    for i in range(n):
        mixed = sorted({i} | {j % n for j in senders(i)})
        W[i, mixed] = 1 / len(mixed)
    return W


def powers_of_two(n: int) -> list[int]:
    """Return the powers of two below ``n``, ascending from 1."""
    return [1 << k for k in range((n - 1).bit_length())]


def named(name: str):
    """Return a decorator that registers a function in `TOPOLOGIES` as the topology ``name``."""

    def register(function):
        TOPOLOGIES[name] = function
        return function

    return register


@named("ring")
def ring(n: int) -> np.ndarray:
    """Return the mixing matrix of a ring: each rank mixes its own model and the models of its two neighbours with
    weight 1/3 each. If ``n`` is 2, each rank mixes two models with weight 1/2 each."""
    return equal_weights(n, lambda i: (i - 1, i + 1))


@named("directed-ring")
def directed_ring(n: int) -> np.ndarray:
    """Return the mixing matrix of a directed ring: rank i sends its model to rank i + 1, modulo ``n``."""
    return equal_weights(n, lambda i: (i - 1,))


@named("exponential")
def exponential(n: int) -> np.ndarray:
    """Return the mixing matrix of the directed graph in which rank i sends to the ranks i + 1, i + 2, i + 4, ... in
    every step (Assran 2019)."""
    return equal_weights(n, lambda i: (i - hop for hop in powers_of_two(n)))


@named("one-peer-exponential")
def one_peer_exponential(n: int) -> np.ndarray:
    """Return the mixing matrices of directed graphs in which rank i sends to one rank per step: i + 1, i + 2, i + 4,
    ... (Assran 2019).

    After the graph with the largest power of two below ``n``, the graphs begin again with i + 1.
    """
    return np.stack([equal_weights(n, lambda i, hop=hop: (i - hop,)) for hop in powers_of_two(n) or [0]])


@named("full")
def full(n: int) -> np.ndarray:
    """Return the mixing matrix in which each rank mixes the models of all ranks with weight 1/n. All models are equal
    after one step."""
    return equal_weights(n, lambda i: range(n))


@named("hypercube")
def hypercube(n: int) -> np.ndarray:
    """Return the mixing matrix of a hypercube: each rank mixes with the ranks whose numbers differ from its own number
    in exactly one binary digit."""
    if n & (n - 1):
        raise TopologyError(f"a hypercube of {n} ranks; the number of ranks must be a power of two")
    return equal_weights(n, lambda i: (i ^ hop for hop in powers_of_two(n)))


@named("torus")
def torus(n: int) -> np.ndarray:
    """Return the mixing matrix of a torus: each rank mixes with its four neighbours on a grid that is closed in both
    directions.

    The sides of the grid are as equal as ``n`` allows.
    """
    width = max(width for width in range(1, n + 1) if n % width == 0 and width * width <= n)
    return equal_weights(
        n, lambda i: (i - width, i + width, i - i % width + (i - 1) % width, i - i % width + (i + 1) % width)
    )


@named("erdos-renyi")
def erdos_renyi(n: int) -> np.ndarray:
    """Return the mixing matrix of a random graph, in which two ranks are neighbours with probability 2 ln(n)/n.

    Random graphs are drawn until a drawn graph is connected. For a given ``n`` the graph is the same in every run. The
    edges have the weights of Metropolis and Hastings, because ranks have different numbers of neighbours.
    """
    random = generator(Purpose.RANDOM_GRAPH, 0, n)
    while True:
        edges = np.triu(random.random((n, n)) < 2 * np.log(n) / n, 1)
        edges |= edges.T
        if connected(edges):
            return metropolis_weights(edges)


def metropolis_weights(edges: np.ndarray) -> np.ndarray:
    """Return the symmetric mixing matrix in which the weight of an edge is 1 / (1 + the larger number of neighbours of
    the edge's two ranks).

    The weights on the diagonal make each row sum to 1. ``edges``: symmetric bool of shape [n, n].
    """
    degrees = edges.sum(1)
    W = np.where(edges, 1 / (1 + np.maximum.outer(degrees, degrees)), 0.0)
    return W + np.diag(1 - W.sum(1))


@named("base-2")
def base_2(n: int) -> np.ndarray:
    """Return the mixing matrices of graphs in which a rank has at most one neighbour per step (Takezawa 2023). After
    each graph was used once, every rank's model is the mean of all models."""
    return base_graph(n, 2)


@named("base-3")
def base_3(n: int) -> np.ndarray:
    """Return mixing matrices like `base_2`. A rank has at most two neighbours per step, and the models reach their mean
    in fewer steps than with `base_2`, or in equally many."""
    return base_graph(n, 3)


@named("base-5")
def base_5(n: int) -> np.ndarray:
    """Return mixing matrices like `base_2`. A rank has at most four neighbours per step."""
    return base_graph(n, 5)


OPTION = {
    "description": f"{', '.join(TOPOLOGIES)}, a file with mixing matrices, or FILE.py:NAME",
    "examples": list(TOPOLOGIES),
}
"""Description of the option ``topology`` for all algorithms that have it."""


def from_file(path: str | Path) -> Topology:
    """Return the topology in the text file ``path``. Raise TopologyError if the file is not a matrix of numbers or
    cannot be read.

    The file has one line per row of the mixing matrix, with numbers separated by blanks or commas. If steps use
    different matrices, the file has the rows of the first matrix, then the rows of the second matrix, and so on.
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
    """Return the topology ``name`` for ``n`` ranks. Raise TopologyError if ``name`` is unknown or has no graph for
    ``n`` ranks.

    ``name`` is a name in `TOPOLOGIES`, the path of a file with mixing matrices, or FILE.py:NAME for a function in a
    Python file.
    """
    if name in TOPOLOGIES:
        return of_function(TOPOLOGIES[name], n, name)
    if outside.is_outside(name) and not os.path.isfile(name):
        return of_function(outside.load(name, "topologies"), n, name)
    if not os.path.isfile(name):  # isfile() also returns False for a name that no file can have
        raise TopologyError(f"{name!r} is neither a matrix file nor one of {', '.join(TOPOLOGIES)}")
    found = os.stat(name)
    topology = of_file(name, found.st_mtime_ns, found.st_size)
    if topology.size != n:
        raise TopologyError(f"{name} is a mixing matrix for {topology.size} ranks; this job has {n} ranks")
    return topology


def is_for_any_number(name: str) -> bool:
    """Return whether the topology ``name`` exists for every number of ranks."""
    return (name in TOPOLOGIES and name != "hypercube") or outside.is_outside(name)


@lru_cache(maxsize=16)
def of_function(function: Callable[[int], np.ndarray], n: int, name: str) -> Topology:
    """Return the topology that ``function`` makes for ``n`` ranks. The topology is cached, so that all ranks of a
    simulation share one object."""
    return Topology(function(n), name)


@lru_cache(maxsize=16)
def of_file(path: str, modified: int, size: int) -> Topology:
    """Return the topology in the file ``path``. The topology is cached until the file's time of change or size differs,
    so that all ranks of a simulation share one object."""
    return from_file(path)
