"""Synchronous SGD with an all-reduce of the gradients."""

from dataclasses import replace
from typing import Literal

from pydantic import Field

from grsgd.algorithms.averaging import average_buffers
from grsgd.algorithms.base import GradientAlgorithm, Options, Traits
from grsgd.comm.allreduce import ALLREDUCE


class RingAllreduceOptions(Options):
    variant: Literal["ring", "halving-doubling", "tree", "mpi"] = Field("ring", description="which all-reduce")


class RingAllreduce(GradientAlgorithm, name="ring_allreduce"):
    """Every step applies the mean gradient of all ranks, so all replicas stay bit-identical::

        g = grad(x)
        g = allreduce(g) / n
        x = x - eta g

    Sends 2(n-1)/n M a rank and step (ring). Waits for the slowest rank.
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
    remembers = ()

    @classmethod
    def traits_of(cls, options):
        if options.variant == "ring":
            return cls.traits
        survives = options.variant != "mpi" and cls.traits.survives_deaths
        return replace(cls.traits, label=f"{cls.name} {options.variant}", survives_deaths=survives)

    def reduce(self):
        if self.comm.size > 1:
            g = self.replica.grads.array
            yield from ALLREDUCE[self.options.variant](self.comm, g, scale=1 / self.comm.size)

    def average(self):
        yield from average_buffers(self.uncounted_comm, self.replica)  # the parameters are equal already
