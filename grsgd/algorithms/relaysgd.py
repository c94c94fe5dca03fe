"""RelaySGD: ranks relay sums of models along a tree, so that each model reaches every other rank exactly once (Vogels
et al. 2021)."""

from typing import Literal

from pydantic import Field

from grsgd.algorithms.base import Algorithm, Options, Traits
from grsgd.comm.allreduce.pieces import power_of_two
from grsgd.lazy import LazyModule
from grsgd.models.flat import Flat

torch = LazyModule("torch")


class RelaySGDOptions(Options):
    tree: Literal["chain", "binary"] = Field(
        "chain",
        description="neighbours of rank i: chain: i - 1 and i + 1; binary: the parent and children in a binary tree",
    )


class RelaySGD(Algorithm, name="relaysgd"):
    """Each rank sends each neighbour a sum: its own model plus the last sums from its other neighbours. After an
    exchange of sums, a rank sets its model to the mean of its own model and all models in the received sums. Rank i
    computes::

        x' = x - eta grad(x)
        to each neighbour j:  m_ij = x' + sum of m_ki of the other neighbours k, of the last step
        x = (x' + sum_j m_ji) / (1 + sum_j c_ji)                  # c: how many models are in m

    The new model x of a rank is the mean of the models x' of all ranks. In the mean of all x', the x' of a neighbour is
    of the current step, and the x' from a distance of d hops is d - 1 steps old. With RelaySGD all ranks reach the same
    optimum even if the ranks' data differ. A rank sends M (the bytes of the model) to each neighbour per step, after
    the rank has computed its gradient. On average over all ranks, a rank sends 2(n-1)/n M per step (n: number of ranks,
    M: bytes of the model). In each step a rank waits for its slowest neighbour.
    """

    paper = "Vogels, He, Koloskova, Lin, Karimireddy, Stich, Jaggi 2021, RelaySum for decentralized deep learning"
    traits = Traits(synchronous=True, family="gossip", rests_between_steps=True, survives_deaths="together")
    Options = RelaySGDOptions
    remembers = ("exchanges", "relayed")

    def __init__(self, options, replica, optimizer, context):
        super().__init__(options, replica, optimizer, context)
        rank, n, size = self.comm.rank, self.comm.size, self.x.tensor.numel()
        self.exchanges = 0
        self.neighbours = neighbours(self.options.tree, rank, n)
        self.relayed, self.sums = (
            Flat.zeros(len(self.neighbours) * size, self.replica.dtype, self.replica.device) for _ in range(2)
        )
        """`relayed`: memory for the last sum of models that each neighbour has sent. `sums`: memory for the sum of
        models that this rank sends to each neighbour. The arrays `relayed` and `sums` each contain one sum per
        neighbour, in the order of the neighbours."""
        self.parts = [slice(number * size, (number + 1) * size) for number in range(len(self.neighbours))]
        self.share = power_of_two(1 / n) if self.replica.dtype is torch.float16 else 1.0
        """Factor by which models are multiplied before their addition, because a sum of float16 models may be out of
        range."""
        self.counts = [within_hops(self.options.tree, rank, j, n) for j in self.neighbours]
        """Numbers of models in the sums that each neighbour sends in the first step, in the second step, and so on."""

    @classmethod
    def arrays_held(cls, options, ranks):
        return 2 * max(len(neighbours(options.tree, rank, ranks)) for rank in range(ranks))

    def step(self):
        self.update()
        x, told, telling = self.x.tensor, self.relayed.tensor, self.sums.tensor
        for part in self.parts:
            torch.mul(x, self.share, out=telling[part])
            for other in self.parts:
                if other != part:
                    telling[part].add_(told[other])
        edges = list(zip(self.neighbours, self.parts, strict=True))
        receiving = [self.comm.Irecv(self.relayed.array[part], j) for j, part in edges]
        yield receiving + [self.comm.Isend(self.sums.array[part], j) for j, part in edges]
        x.mul_(self.share)
        for part, counts in zip(self.parts, self.counts, strict=True):
            x.add_(told[part])
            self.staleness.update(steps_old(counts, self.exchanges))
        models = 1 + sum(counts[min(self.exchanges, len(counts) - 1)] for counts in self.counts)
        x.div_(models * self.share)
        self.exchanges += 1


def neighbours(tree: str, rank: int, n: int) -> list[int]:
    """Return the neighbours of ``rank`` in the graph ``tree`` of ``n`` ranks, in ascending order."""
    found = (rank - 1, rank + 1) if tree == "chain" else ((rank - 1) // 2, 2 * rank + 1, 2 * rank + 2)
    return sorted({j for j in found if 0 <= j < n and j != rank})


def within_hops(tree: str, rank: int, neighbour: int, n: int) -> list[int]:
    """Return, for h = 0, 1, ..., the number of ranks beyond the edge from ``rank`` to ``neighbour`` that are at most h
    hops from ``neighbour``. The rank ``neighbour`` itself is counted, with h = 0. The last of the returned numbers
    counts all ranks beyond the edge from ``rank`` to ``neighbour``."""
    found, edge, counts = {rank, neighbour}, [neighbour], []
    while edge:
        counts.append(len(found) - 1)
        edge = [k for j in edge for k in neighbours(tree, j, n) if k not in found]
        found.update(edge)
    return counts


def steps_old(counts: list[int], k: int) -> dict[int, int]:
    """Return the number of models that arrive from a neighbour in step ``k``, by the age of the models in steps.
    ``counts`` has the numbers of models in the sums that the neighbour sends in the first step, the second step, and so
    on."""
    new = [later - before for before, later in zip([0, *counts], counts, strict=False)]
    return dict(enumerate(new[: k + 1]))
