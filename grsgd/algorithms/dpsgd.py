"""Decentralized parallel SGD (Lian et al. 2017).

A schedule is a generator that yields each object it waits for.
"""

from collections.abc import Iterable

from pydantic import Field

from grsgd.algorithms.base import Options, Traits
from grsgd.algorithms.on_topology import OnTopology
from grsgd.comm.topologies import topology
from grsgd.models.mixing import mix


class DPSGDOptions(Options):
    topology: str = Field("ring", **topology.OPTION)
    period: int | None = Field(None, ge=1, description="number of steps from one exchange to the next; 1 by default")
    first_exchange: int | None = Field(
        None, ge=0, description="number of steps without an exchange at the start (late communication); 0 by default"
    )


class DPSGD(OnTopology, name="dpsgd"):
    """Each rank mixes its model with its neighbours' models in every step, and applies its own gradient::

        send x to the neighbours, receive theirs        # meanwhile:
        g = grad(x)                                     # at the model before mixing, and so is weight decay
        x = sum_j W[i, j] x_j - eta g                   # W: the topology's mixing matrix for this step

    With ``period`` and ``first_exchange`` some steps have no exchange of models. In steps without an exchange of
    models, the mixing matrix W is the identity matrix. Every run of `dpsgd` ends with one merge of all models. If
    ``first_exchange`` is beyond the last step of the run, the merge at the end is the run's only exchange of models.

    A rank sends M (the bytes of the model) to each neighbour per step, 2M on a ring. In each step a rank waits for its
    slowest neighbour. One straggler slows down all ranks: a rank at a distance of d edges from the straggler gets at
    most d steps ahead of the straggler.
    """

    paper = (
        "Lian, Zhang, Zhang, Hsieh, Zhang, Liu 2017, Can decentralized algorithms outperform centralized algorithms?; "
        "first_exchange: arXiv 2507.06542 (2025), a single global merging in decentralized learning"
    )
    traits = Traits(
        synchronous=True,
        family="gossip",
        in_background=True,
        rests_between_steps=True,
        survives_deaths="together",
        trains_bfloat16=True,
    )
    Options = DPSGDOptions
    remembers = ("k",)

    def __init__(self, options, replica, optimizer, context):
        super().__init__(options, replica, optimizer, context)
        self.received = {j: self.x.like() for j in self.topology.in_neighbours(self.comm.rank)}

    @classmethod
    def check_topology(cls, graph):
        graph.require_stochastic("row", "column")

    @classmethod
    def arrays_held(cls, options, ranks):
        return cls.most_neighbours(options, ranks)

    @property
    def exchange_number(self) -> int | None:
        """Number of the exchange of models in the current step, counted from 0, or None if the current step has no
        exchange."""
        number, rest = divmod(self.k - (self.options.first_exchange or 0), self.options.period or 1)
        return number if number >= 0 and not rest else None

    def before_backward(self):
        i, number = self.comm.rank, self.exchange_number
        if number is None:
            return
        incoming = {j: self.received[j].array for j in self.topology.in_neighbours(i, number)}
        receivers = self.topology.out_neighbours(i, number)
        self.exchange = self.driver.start(neighbour_exchange(self.comm, self.x.array, receivers, incoming))

    def step(self):
        i, number, weighted = self.comm.rank, self.exchange_number, []
        if number is not None:
            yield self.exchange
            W = self.topology.matrix(number)
            weighted = [(float(W[i, j]), self.received[j].tensor) for j in self.topology.in_neighbours(i, number)]
        self.k += 1
        if not weighted:
            self.update()
            return
        # The change of x by mixing is computed before the update, in the buffer of one received model.
        (weight, change), *others = weighted
        mix(change, weight, [*others, (float(W[i, i]) - 1, self.x.tensor)])
        self.update()
        self.x.tensor.add_(change)
        self.staleness[0] += len(weighted)


def neighbour_exchange(comm, x, receivers: Iterable[int], incoming: dict):
    """Generator that sends the array ``x`` to the ranks ``receivers``, and receives one array from each rank ``source``
    in ``incoming`` into ``incoming[source]``.

    The array ``x`` may be read but not written until the generator has ended.
    """
    receiving = [comm.Irecv(array, source) for source, array in incoming.items()]
    yield receiving + [comm.Isend(x, receiver) for receiver in receivers]
