"""GoSGD: gossip with sum weights to random ranks (Blot et al. 2016, 2019)."""

from pydantic import Field

from grsgd.algorithms.base import Algorithm, Options
from grsgd.comm.communicator import ANY_RANK
from grsgd.comm.mailbox import Mailbox

SMALLEST_WEIGHT = 1e-200
"""A rank that gives its weight away faster than it gets any stops before halving it to nothing: while a rank that has
ended waits for a pause of another's, it takes in whatever it is sent."""


class GoSGDOptions(Options):
    p: float = Field(0.1, ge=0, le=1, description="probability of a push after a step")
    inbox_capacity: int = Field(2, ge=1, description="models that may wait for the next step; pushes wait then")


class GoSGD(Algorithm, name="gosgd"):
    """Each rank trains without ever waiting and now and then pushes its weighted model to a random other rank::

        for (y, b) in inbox:
            x = (a x + b y)/(a + b);  a = a + b
        x = x - eta grad(x)
        with probability p:
            a = a/2;  send (x, a) to a random rank      # not while the last message to it is under way

    The weights a start with 1 (the paper: 1/n) and those of all ranks and messages sum to n at any moment, so
    ``sum a x`` changes by gradients only. Sends p (M + 8 bytes) a rank and step.
    """

    paper = "Blot, Picard, Thome, Cord 2019, Distributed optimization for deep learning with gossip exchange"
    synchronous = False
    in_background = True
    Options = GoSGDOptions

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.a = 1.0
        self.k = 0
        self.coin = self.random()
        self.others = [rank for rank in range(self.comm.size) if rank != self.comm.rank]
        capacity = self.options.inbox_capacity
        self.mailbox = Mailbox(self.comm, self.x, self.others, self.others, capacity, self.combine, hold=True)

    def start(self):
        self.collecting = self.driver.start(self.mailbox.collect(ANY_RANK))

    def before_backward(self):
        for letter in self.mailbox.drain():
            self.merge(letter)

    def step(self):
        self.update()
        self.k += 1
        if self.others and self.coin.random() < self.options.p:
            self.push(self.others[self.coin.integers(len(self.others))])

    def merge(self, letter):
        y, b = letter.x.tensor, letter.weight
        self.x.tensor.lerp_(y, b / (self.a + b))
        self.a += b
        self.staleness[self.k - letter.step] += 1

    def push(self, j: int):
        if self.mailbox.ready(j) and self.a > SMALLEST_WEIGHT:
            self.a /= 2
            self.mailbox.post(j, self.x, self.a, self.k)

    def combine(self, older, newer):
        """Put the older of two messages into the newer: so many come in the end that they would fill the memory."""
        newer.x.tensor.lerp_(older.x.tensor, older.weight / (older.weight + newer.weight))
        newer.weight = older.weight + newer.weight

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
