"""GRSGD: Gossip Ring SGD (Zhou, Tu, Ren 2023)."""

from typing import ClassVar, Literal

from pydantic import Field

from grsgd.algorithms.base import Options
from grsgd.algorithms.push_sum import PushSum
from grsgd.comm import topology


class GRSGDOptions(Options):
    """The paper's text could not be had beyond its abstract: all of these are inferred (docs/algorithms.md)."""

    renamed_values: ClassVar[dict[str, dict[str, str]]] = {
        "policy": {"succ": "successor", "alt": "alternate", "rand2": "random"},
        "merge": {"sumweight": "push-sum", "half": "average"},
        "inbox_full": {"hold": "wait"},
    }

    topology: str = Field("ring", **topology.OPTION)
    policy: Literal["successor", "alternate", "random"] = Field(
        "random", description="which neighbour to push to: the next one by number, all in turn, or a random one"
    )
    H: int | None = Field(None, ge=1, description="local steps between two pushes; by default data.replication")
    merge: Literal["push-sum", "average"] = Field(
        "push-sum", description="weighted merge, which keeps the mean, or x = (x + y)/2, which does not"
    )
    inbox_capacity: int = Field(2, ge=1, description="models of one neighbour that may wait for the next step")
    inbox_full: Literal["wait", "merge"] = Field(
        "wait", description="a full inbox: its neighbour waits with the next push, or the two oldest are merged"
    )


class GRSGD(PushSum, name="grsgd"):
    """Push-sum along a ring, every H steps::

        for (y, b) in inbox:
            x = (a x + b y)/(a + b);  a = a + b
        x = x - eta grad(x);  k = k + 1
        if k % H == 0 and the last message to neighbour j has been delivered:
            a = a/2;  send (x, a) to j                  # a random neighbour, or as ``policy`` says

    Sends M + 8 bytes per push.
    """

    paper = (
        "Zhou, Tu, Ren 2023, Asynchronous distributed training algorithm based on Gossip (English: Tu, Zhou, Ren 2022, "
        "Computer Communications 195)"
    )
    Options = GRSGDOptions

    def __init__(self, options, replica, optimizer, context):
        super().__init__(options, replica, optimizer, context)
        self.H = options.H or context.replication
        self.weighted = self.options.merge == "push-sum"
        self.mailbox = self.make_mailbox(backpressure=self.options.inbox_full == "wait")

    def begin(self):
        self.receive_from(self.mailbox.sources)

    def due(self):
        return self.k % self.H == 0

    def choose(self, neighbours):
        i, n = self.comm.rank, self.comm.size
        upwards = sorted(neighbours, key=lambda j: (j - i) % n)  # on a ring: the successor, the predecessor
        if self.options.policy == "random":
            return upwards[self.rng.integers(len(upwards))]
        return upwards[self.pushes % len(upwards) if self.options.policy == "alternate" else 0]
