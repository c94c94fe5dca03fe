"""Decentralized parallel SGD (Lian et al. 2017)."""

from pydantic import Field

from grsgd.algorithms.base import Algorithm, Options
from grsgd.comm import topology
from grsgd.comm.exchange import neighbour_exchange
from grsgd.mixing import mix


class DPSGDOptions(Options):
    topology: str = Field("ring", description="ring, exponential, full, or a file with a doubly stochastic matrix")


class DPSGD(Algorithm, name="dpsgd"):
    """Every step mixes the model with the neighbours' and applies the own gradient::

        send x to the neighbours, receive theirs        # meanwhile:
        g = grad(x)                                     # at the model before mixing, and so is weight decay
        x = sum_j W[i, j] x_j - eta g

    Sends M to each neighbour a step, 2M on a ring. Waits for the slower neighbour, so one straggler slows the whole
    graph down after a lead of at most its distance.
    """

    paper = (
        "Lian, Zhang, Zhang, Hsieh, Zhang, Liu 2017, Can decentralized algorithms outperform centralized algorithms?"
    )
    synchronous = True
    in_background = True
    Options = DPSGDOptions

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        W = topology.build(self.options.topology, self.comm.size)
        rank = self.comm.rank
        self.receivers = W.receivers(rank)
        self.neighbours = {j: self.x.like() for j in W.sources(rank)}
        self.incoming = {j: neighbour.array for j, neighbour in self.neighbours.items()}
        self.own_weight = float(W.matrix[rank, rank])
        self.weighted = [(float(W.matrix[rank, j]), neighbour.tensor) for j, neighbour in self.neighbours.items()]

    @classmethod
    def check(cls, options, ranks):
        super().check(options, ranks)
        topology.build(options.topology, ranks)

    def before_backward(self):
        self.exchange = self.driver.start(neighbour_exchange(self.comm, self.x.array, self.receivers, self.incoming))

    def step(self):
        yield self.exchange
        if not self.weighted:
            self.update()
            return
        # What mixing changes, of x before the update, in place of a model that has been received.
        (weight, change), *others = self.weighted
        mix(change, weight, [*others, (self.own_weight - 1, self.x.tensor)])
        self.update()
        self.x.tensor.add_(change)
        self.staleness[0] += len(self.weighted)
