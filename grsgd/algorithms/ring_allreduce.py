"""Synchronous SGD with an all-reduce of the gradients."""

from dataclasses import replace
from functools import partial
from typing import Literal

from pydantic import Field, model_validator

from grsgd.algorithms.averaging import average_buffers
from grsgd.algorithms.base import GradientAlgorithm, Options, Traits
from grsgd.algorithms.power_sgd import PowerSGD
from grsgd.comm.allreduce import ALLREDUCE
from grsgd.comm.compressed_mean import CompressedMean
from grsgd.comm.compression import CompressionOptions, Kind, make_compressor

POWER_SGD, MATRIX_RANK = "power-sgd", 4


class RingAllreduceOptions(CompressionOptions, Options):
    variant: Literal["ring", "halving-doubling", "tree", "mpi"] = Field("ring", description="which all-reduce")
    compression: Literal[Kind, "power-sgd"] | None = Field(
        None,
        description="of the gradients: the k largest values or k random ones, or all, rounded, which all tell all; or "
        "matrices of a low rank, which all-reduces sum",
    )
    matrix_rank: int | None = Field(
        None, ge=1, description="power-sgd: the rank of what is left of a gradient that is a matrix; 4 by default"
    )

    @model_validator(mode="after")
    def compressed_by_allgather(self):
        if self.compresses and self.compression != POWER_SGD and self.variant != "ring":
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

    That sends (n-1) C: payloads cannot be summed on the way. What ``power-sgd`` sends can: see power_sgd.py.
    """

    paper = "Patarasuk, Yuan 2009, Bandwidth optimal all-reduce algorithms for clusters of workstations"
    traits = Traits(
        synchronous=True,
        family="all-reduce",
        sends_gradients=True,
        exact_gradient=True,
        equal_models=True,
        only_allreduces=True,
        rests_between_steps=True,
        survives_deaths="together",
    )
    Options = RingAllreduceOptions
    remembers = ("k", "e", "Q")

    def __init__(self, options, replica, optimizer, context):
        super().__init__(options, replica, optimizer, context)
        self.k = 0
        self.compressed = self.power_sgd = None
        if self.comm.size == 1 or not options.compresses:
            return
        if options.compression == POWER_SGD:
            self.power_sgd = PowerSGD(replica, options.matrix_rank or MATRIX_RANK, context.seed)
            self.e, self.Q = self.power_sgd.e, self.power_sgd.Q
        else:
            self.compressed = CompressedMean(self.comm, make_compressor(options, self.x.tensor), context.seed)
            self.e = self.compressed.e

    @classmethod
    def traits_of(cls, options):
        if not options.compresses and options.variant == "ring":
            return cls.traits
        return replace(
            cls.traits,
            label=f"{cls.name} {options.compression if options.compresses else options.variant}",
            exact_gradient=not options.compresses,
            only_allreduces=not options.compresses,
            survives_deaths=options.variant != "mpi" and cls.traits.survives_deaths,
        )

    def reduce(self):
        allreduce = partial(ALLREDUCE[self.options.variant], self.comm, scale=1 / self.comm.size)
        grads, size = self.replica.grads, self.x.tensor.numel()
        if self.power_sgd is not None:
            yield from self.power_sgd.average(grads.tensor[:size], allreduce)
        elif self.compressed is not None:
            yield from self.compressed.average(grads.tensor[:size], self.k)
        elif self.comm.size > 1:
            yield from allreduce(grads.array)
        if self.is_compressed and grads.array.size > size:
            yield from allreduce(grads.array[size:])  # what own loops have behind the gradients
        self.k += 1

    @property
    def is_compressed(self) -> bool:
        return self.power_sgd is not None or self.compressed is not None

    def average(self):
        yield from average_buffers(self.uncounted_comm, self.replica)  # the parameters are equal already
