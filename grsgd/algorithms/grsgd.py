"""GRSGD: Gossip Ring SGD (Zhou, Tu, Ren 2023)."""

from typing import Literal

from pydantic import Field

from grsgd.algorithms.base import Algorithm, Options
from grsgd.comm.mailbox import Mailbox

SMALLEST_WEIGHT = 1e-200
"""A rank that gives its weight away faster than it gets any (``inbox_full = "merge"``, a neighbour that pauses) stops
before halving it to nothing."""


class GRSGDOptions(Options):
    """The paper's text could not be had beyond its abstract: all of these are inferred (docs/algorithms.md)."""

    policy: Literal["succ", "alt", "rand2"] = Field(
        "rand2", description="where to push: the successor, both neighbours in turn, or a random one of both"
    )
    H: int | None = Field(None, ge=1, description="local steps between two pushes; by default rho")
    merge: Literal["sumweight", "half"] = Field(
        "sumweight", description="weighted merge, which keeps the mean, or x = (x + y)/2, which does not"
    )
    inbox_capacity: int = Field(2, ge=1, description="models of one neighbour that may wait for the next step")
    inbox_full: Literal["hold", "merge"] = Field(
        "hold", description="a full inbox: its neighbour waits with the next push, or the two oldest are merged"
    )


class GRSGD(Algorithm, name="grsgd"):
    """Each rank trains without ever waiting and pushes its weighted model to a neighbour on the ring::

        for (y, b) in inbox:
            x = (a x + b y)/(a + b);  a = a + b
        x = x - eta grad(x);  k = k + 1
        if k % H == 0 and the last message to neighbour j has arrived:
            a = a/2;  send (x, a) to j

    At any moment the weights a of all ranks and messages sum to n, so ``sum a x`` changes by gradients only, however
    late or one-sided the messages are. The final model is ``sum a x / n`` once all messages have arrived.
    Sends M + 8 bytes a push.
    """

    paper = "Zhou, Tu, Ren 2023, GRSGD: gossip ring SGD (English: Tu, Zhou, Ren 2022, Computer Communications 195)"
    synchronous = False
    in_background = True
    Options = GRSGDOptions

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        i, n = self.comm.rank, self.comm.size
        self.a = 1.0
        self.k = 0
        self.H = self.options.H or self.options.rho
        self.coin = self.random()
        successor, predecessor = (i + 1) % n, (i - 1) % n
        one_way = self.options.policy == "succ"
        self.neighbours = [successor] if one_way else [successor, predecessor]
        sources = [predecessor] if one_way else [successor, predecessor]
        self.mailbox = Mailbox(
            self.comm,
            self.x,
            receivers=sorted(set(self.neighbours) - {i}),
            sources=sorted(set(sources) - {i}),
            capacity=self.options.inbox_capacity,
            combine=self.combine,
            hold=self.options.inbox_full == "hold",
        )

    def start(self):
        self.collecting = [self.driver.start(self.mailbox.collect(source)) for source in self.mailbox.sources]

    def before_backward(self):
        for letter in self.mailbox.drain():
            self.merge(letter)

    def step(self):
        self.update()
        self.k += 1
        if self.k % self.H == 0 and self.comm.size > 1:
            self.push(self.next_neighbour())

    def merge(self, letter):
        y, b = letter.x.tensor, letter.weight
        if self.options.merge == "sumweight":
            self.x.tensor.lerp_(y, b / (self.a + b))
            self.a += b
        else:
            self.x.tensor.lerp_(y, 0.5)
        self.staleness[self.k - letter.step] += 1

    def push(self, j: int):
        if self.mailbox.ready(j) and self.a > SMALLEST_WEIGHT:
            if self.options.merge == "sumweight":
                self.a /= 2
            self.mailbox.post(j, self.x, self.a, self.k)

    def next_neighbour(self) -> int:
        if self.options.policy == "rand2":
            return self.neighbours[self.coin.integers(2)]
        return self.neighbours[(self.k // self.H - 1) % len(self.neighbours)]

    def combine(self, older, newer):
        """A full inbox: put the older of two messages into the newer, as if they had been one."""
        y, b = older.x.tensor, older.weight
        if self.options.merge == "sumweight":
            newer.x.tensor.lerp_(y, b / (b + newer.weight))
            newer.weight = b + newer.weight
        else:
            newer.x.tensor.lerp_(y, 0.5)

    def drain(self):
        yield from self.mailbox.close()
        yield self.collecting
        for letter in self.mailbox.drain():
            self.merge(letter)

    @property
    def weight(self):
        return self.a

    def average(self):
        yield from self.weighted_average(self.a)
        self.a = 1.0
