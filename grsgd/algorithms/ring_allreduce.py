"""Synchronous SGD with an all-reduce of the gradients."""

from dataclasses import replace
from typing import Literal

from pydantic import Field, model_validator

from grsgd.algorithms.averaging import average_buffers
from grsgd.algorithms.base import GradientAlgorithm, Options, Traits
from grsgd.comm.allgather import ring_allgather
from grsgd.comm.allreduce import ALLREDUCE
from grsgd.comm.compression import CompressionOptions, ErrorFeedback, make_compressor


class RingAllreduceOptions(CompressionOptions, Options):
    variant: Literal["ring", "halving-doubling", "tree", "mpi"] = Field("ring", description="which all-reduce")

    @model_validator(mode="after")
    def compressed_by_allgather(self):
        if self.compresses and self.variant != "ring":
            raise ValueError(f'variant = "{self.variant}": compressed gradients go round a ring: they do not add up')
        return self


class RingAllreduce(GradientAlgorithm, name="ring_allreduce"):
    """Every step applies the mean gradient of all ranks, so all replicas stay bit-identical::

        g = grad(x)
        g = allreduce(g) / n
        x = x - eta g

    Sends 2(n-1)/n M a rank and step (ring). Waits for the slowest rank.

    With ``compression`` every rank sends its payload, of C bytes, to all others round the ring, and adds what it has
    left out to its next gradient (error feedback)::

        payload, e = encode(g + e)
        g = sum over ranks of decode(payload) / n

    That sends (n-1) C: payloads cannot be summed on the way.
    """

    paper = "Patarasuk, Yuan 2009, Bandwidth optimal all-reduce algorithms for clusters of workstations"
    traits = Traits(
        synchronous=True,
        family="all-reduce",
        sends_gradients=True,
        exact_gradient=True,
        rests_between_steps=True,
        survives_deaths="together",
    )
    Options = RingAllreduceOptions
    remembers = ("k", "e")

    def __init__(self, options, replica, optimizer, context):
        super().__init__(options, replica, optimizer, context)
        self.k = 0
        self.feedback = None
        if options.compresses and self.comm.size > 1:
            compressor = make_compressor(options, self.x)
            self.feedback = ErrorFeedback(compressor, (context.seed, self.comm.rank))
            self.e = self.feedback.e
            self.payloads = [compressor.payload() for _ in range(self.comm.size)]

    @classmethod
    def traits_of(cls, options):
        if options.compresses:
            return replace(cls.traits, label=f"{cls.name} {options.compression}", exact_gradient=False)
        if options.variant == "ring":
            return cls.traits
        survives = options.variant != "mpi" and cls.traits.survives_deaths
        return replace(cls.traits, label=f"{cls.name} {options.variant}", survives_deaths=survives)

    def reduce(self):
        if self.feedback is not None:
            yield from self.average_compressed(self.replica.grads.tensor)
        elif self.comm.size > 1:
            g = self.replica.grads.array
            yield from ALLREDUCE[self.options.variant](self.comm, g, scale=1 / self.comm.size)
        self.k += 1

    def average_compressed(self, g):
        """Schedule: set g to the mean of what all ranks make of the payloads of all, bit for bit the same."""
        self.feedback.encode(g, self.payloads[self.comm.rank].tensor, self.k)
        yield from ring_allgather(self.comm, [payload.array for payload in self.payloads])
        g.zero_()
        for payload in self.payloads:
            self.feedback.compressor.decode(payload.tensor, self.feedback.decoded)
            g.add_(self.feedback.decoded, alpha=1 / self.comm.size)

    def average(self):
        yield from average_buffers(self.uncounted_comm, self.replica)  # the parameters are equal already
