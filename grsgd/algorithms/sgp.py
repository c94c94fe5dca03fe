"""Stochastic gradient push, and its overlapped form (Assran et al. 2019)."""

from collections import deque

import torch
from pydantic import Field

from grsgd.algorithms.base import Algorithm, Options
from grsgd.comm.mailbox import HEADER, Letter


class SGPOptions(Options):
    tau: int = Field(0, ge=0, description="steps by which a message may be late; above 0 is overlapped SGP")


class SGP(Algorithm, name="sgp"):
    """Push-sum gossip along a directed exponential graph: in step k rank i sends to rank i + 2^(k mod log2 n)::

        x = x - eta grad(z)                                     # weight decay is at z, too
        send (x/2, w/2) to this step's out-neighbour
        x = x/2 + the x received;  w = w/2 + the w received     # of this step's in-neighbour, or of step k - tau
        z = x / w

    The push-sum weights w of all ranks and messages sum to n, and ``sum x`` changes by gradients only. Between steps
    the model holds z. Sends M + 8 bytes a step; waits for one in-neighbour, with tau > 0 only if it is tau steps
    behind.
    """

    paper = "Assran, Loizou, Ballas, Rabbat 2019, Stochastic gradient push for distributed deep learning"
    synchronous = True
    in_background = True
    Options = SGPOptions

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.w = 1.0
        self.k = 0
        self.hops = [2**j for j in range((self.comm.size - 1).bit_length())]
        self.receiving = deque()
        self.sending = deque()
        self.spare = []

    def step(self):
        x, n = self.x.tensor, self.comm.size
        if n == 1:
            self.update()
            return
        self.update_numerator()
        hop = self.hops[self.k % len(self.hops)]
        self.k += 1
        x.mul_(0.5)
        self.w /= 2
        self.push((self.comm.rank + hop) % n)
        self.expect((self.comm.rank - hop) % n)
        try:
            while len(self.receiving) > self.options.tau or (self.receiving and self.receiving[0][0].Test()):
                yield from self.merge()
        finally:  # z is what an early end leaves, too
            x.div_(self.w)
        while len(self.sending) > self.options.tau + 1:
            yield from self.sent()

    def update_numerator(self):
        """The optimizer's step at z, which the model holds. What it adds to z is added to x = w z, which is what the
        model holds then."""
        if self.w == 1:
            self.update()
            return
        rest = self.blank()
        torch.mul(self.x.tensor, self.w - 1, out=rest.x.tensor)
        self.update()
        self.x.tensor.add_(rest.x.tensor)
        self.spare.append(rest)

    def push(self, neighbour: int):
        letter = self.blank()
        letter.x.tensor.copy_(self.x.tensor)
        letter.weight, letter.step = self.w, self.k
        self.sending.append((self.under_way(self.comm.Isend(letter.buffer, neighbour, header=HEADER)), letter))

    def expect(self, neighbour: int):
        letter = self.blank()
        self.receiving.append((self.under_way(self.comm.Irecv(letter.buffer, neighbour)), letter))

    def under_way(self, message):
        """What to wait for: with tau > 0 the message moves while gradients are computed."""

        def transfer():
            yield message

        return self.driver.start(transfer()) if self.options.tau else message

    def merge(self):
        """Schedule: wait for the oldest message and add it to x and w."""
        message, letter = self.receiving.popleft()
        yield message
        self.x.tensor.add_(letter.x.tensor)
        self.w += letter.weight
        self.staleness[self.k - letter.step] += 1
        self.spare.append(letter)

    def sent(self):
        """Schedule: wait until the oldest message has left."""
        message, letter = self.sending.popleft()
        yield message
        self.spare.append(letter)

    def blank(self) -> Letter:
        return self.spare.pop() if self.spare else Letter(self.x)

    def drain(self):
        if self.comm.size > 1:
            self.x.tensor.mul_(self.w)
            try:
                while self.receiving:
                    yield from self.merge()
            finally:
                self.x.tensor.div_(self.w)
            while self.sending:
                yield from self.sent()

    @property
    def weight(self):
        return self.w

    def average(self):
        yield from self.weighted_average(self.w)
