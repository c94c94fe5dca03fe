"""Who exchanges models with whom, and with which weights: the mixing matrix."""

import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np


class TopologyError(ValueError):
    """A mixing matrix that cannot be used; one line saying what is wrong with it."""


@dataclass(frozen=True)
class Topology:
    """A mixing matrix W, float64 of shape [n, n]: rank i mixes ``x_i <- sum_j W[i, j] x_j``.

    Raises TopologyError unless W is doubly stochastic (which keeps the mean of the models) and its graph connected
    (which lets them reach consensus).
    """

    matrix: np.ndarray

    def __post_init__(self):
        W = self.matrix
        if W.ndim != 2 or W.shape[0] != W.shape[1]:
            raise TopologyError(f"mixing matrix of shape {W.shape}; it must be square")
        if not np.isfinite(W).all() or (W < 0).any():
            raise TopologyError("mixing matrix with negative or non-finite weights")
        for axis, what in ((1, "row"), (0, "column")):
            sums = W.sum(axis)
            worst = int(np.abs(sums - 1).argmax())
            if abs(sums[worst] - 1) > 1e-9:
                raise TopologyError(f"mixing matrix whose {what} {worst} sums to {sums[worst]:g}; it must sum to 1")
        hears = W > 0
        reached = np.arange(self.size) == 0
        while (more := reached | hears[:, reached].any(1)).sum() > reached.sum():
            reached = more
        if not reached.all():  # from rank 0; W is doubly stochastic, so what can be reached can also be returned from
            raise TopologyError("mixing matrix of a graph that is not connected: its parts would never agree")

    @property
    def size(self) -> int:
        return len(self.matrix)

    def sources(self, rank: int) -> list[int]:
        """Ranks whose models ``rank`` mixes in, without itself, ascending."""
        return [int(j) for j in np.flatnonzero(self.matrix[rank]) if j != rank]

    def receivers(self, rank: int) -> list[int]:
        """Ranks that mix in the model of ``rank``, without itself, ascending."""
        return [int(i) for i in np.flatnonzero(self.matrix[:, rank]) if i != rank]

    @property
    def spectral_gap(self) -> float:
        """1 - the second largest modulus among W's eigenvalues: the higher, the faster the ranks agree."""
        moduli = np.sort(np.abs(np.linalg.eigvals(self.matrix)))
        return float(1 - moduli[-2]) if self.size > 1 else 1.0


def ring(n: int) -> Topology:
    """Each rank mixes with its two neighbours, 1/3 each (1/2 with the only one when n = 2)."""
    return circulant(n, {0, 1, -1})


def exponential(n: int) -> Topology:
    """Directed: rank i hears from i - 1, i - 2, i - 4, ... with equal weights (Assran 2019)."""
    return circulant(n, {0} | {-(1 << k) for k in range((n - 1).bit_length())})


def full(n: int) -> Topology:
    """Everyone with everyone, 1/n each: one step reaches consensus."""
    return circulant(n, set(range(n)))


def from_file(path: str | Path) -> Topology:
    """A mixing matrix from a text file, a row per line, numbers parted by blanks or commas."""
    try:
        text = Path(path).read_text()
        return Topology(np.loadtxt(text.replace(",", " ").splitlines(), ndmin=2))
    except (OSError, ValueError) as error:
        raise TopologyError(f"{path}: {error}") from None


def circulant(n: int, offsets: set[int]) -> Topology:
    """Equal weights on i + offset for every distinct offset modulo n."""
    columns = sorted({offset % n for offset in offsets})
    W = np.zeros((n, n))
    for i in range(n):
        W[i, [(i + offset) % n for offset in columns]] = 1 / len(columns)
    return Topology(W)


TOPOLOGIES = {"ring": ring, "exponential": exponential, "full": full}


def build(name: str, n: int) -> Topology:
    """The topology ``name`` (a name of `TOPOLOGIES` or a matrix file) for n ranks; raises TopologyError."""
    if name in TOPOLOGIES:
        return TOPOLOGIES[name](n)
    if not os.path.isfile(name):  # false, too, where no file can have that name
        raise TopologyError(f"{name!r} is neither a matrix file nor one of {', '.join(TOPOLOGIES)}")
    topology = from_file(name)
    if topology.size != n:
        raise TopologyError(f"{name} is a mixing matrix for {topology.size} ranks; this job has {n}")
    return topology
