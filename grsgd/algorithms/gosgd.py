"""GoSGD: gossip with sum weights to random ranks (Blot et al. 2016, 2019)."""

from pydantic import Field

from grsgd.algorithms.base import Options
from grsgd.algorithms.push_sum import PushSum
from grsgd.comm.communicator import ANY_RANK
from grsgd.comm.compression.compressors import RoundingOptions
from grsgd.comm.topologies import topology


class GoSGDOptions(RoundingOptions, Options):
    topology: str = Field("full", **topology.OPTION)
    p: float = Field(0.1, ge=0, le=1, description="probability that a rank pushes its model after a step")
    inbox_capacity: int = Field(
        2,
        ge=1,
        description="number of received models that may wait for a rank's next step; further pushes to this rank wait",
    )


class GoSGD(PushSum, name="gosgd"):
    """Each rank pushes its model to a random neighbour after randomly chosen steps, by push-sum::

        for (y, b) in inbox:
            x = (a x + b y)/(a + b);  a = a + b
        x = x - eta grad(x)
        with probability p:
            a = a/2; send (x, a) to a random neighbour # not while the last message to this neighbour is under way

    The push-sum weight a of each rank starts with 1 (in the GoSGD paper with 1/n). A rank sends p (M + 8 bytes) per
    step on average (M: bytes of the model).
    """

    paper = "Blot, Picard, Thome, Cord 2019, Distributed optimization for deep learning with gossip exchange"
    Options = GoSGDOptions

    def __init__(self, options, replica, optimizer, context):
        super().__init__(options, replica, optimizer, context)
        # Without backpressure, the messages that arrive at a slow rank might fill the slow rank's memory.
        self.mailbox = self.make_mailbox(backpressure=True)

    @classmethod
    def streams(cls, options, ranks):
        return 1

    def begin(self):
        self.receive_from([ANY_RANK])

    def due(self):
        return self.comm.size > 1 and self.rng.random() < self.options.p

    def choose(self, neighbours):
        return neighbours[self.rng.integers(len(neighbours))]
