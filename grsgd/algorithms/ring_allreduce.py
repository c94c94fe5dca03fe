"""Synchronous SGD in which an all-reduce computes the mean gradient of all ranks."""

from dataclasses import replace
from typing import Literal

from pydantic import Field, model_validator

from grsgd.algorithms.allreduce_trial import AUTO
from grsgd.algorithms.averaging import average_buffers
from grsgd.algorithms.base import GradientAlgorithm, Options, Traits
from grsgd.algorithms.buckets import BucketedMean
from grsgd.algorithms.by_allreduce import ByAllreduce
from grsgd.algorithms.outer_state import FeedbackOptions, outer_memory
from grsgd.algorithms.power_sgd import PowerSGD
from grsgd.comm.allreduce import ALLREDUCE, THROUGH_MEMORY, VARIANT_MEANING, Variant
from grsgd.comm.compression.compressors import Kind, make_compressor, payload_share
from grsgd.comm.compression.mean import CompressedMean

POWER_SGD, MATRIX_RANK = "power-sgd", 4


class RingAllreduceOptions(FeedbackOptions, Options):
    variant: Variant = Field("ring", description=VARIANT_MEANING)
    compression: Literal[Kind, "power-sgd"] | None = Field(
        None,
        description="compression of the sent gradients: the k largest values, k random values, or all values "
        "rounded, sent from every rank to every rank; or power-sgd: matrices of low rank, which all-reduces sum",
    )
    matrix_rank: int | None = Field(
        None, ge=1, description="with power-sgd: rank of the matrices that replace gradients; 4 by default"
    )
    buckets: int | None = Field(
        None,
        ge=1,
        description="number of parts of the gradient; a part is averaged while the backward pass computes further "
        "parts; by default the whole gradient is averaged after the backward pass",
    )

    @model_validator(mode="after")
    def compressed_by_allgather(self):
        if self.compresses and self.compression != POWER_SGD and self.variant != "ring":
            raise ValueError(f'variant = "{self.variant}": must be "ring", for compressed payloads cannot be summed')
        return self

    @model_validator(mode="after")
    def fits_buckets(self):
        if self.buckets is not None and self.compresses:
            raise ValueError(f'buckets = {self.buckets}: compression = "{self.compression}" needs whole gradients')
        if self.buckets is not None and self.variant in (*THROUGH_MEMORY, AUTO):
            allowed = ", ".join(variant for variant in ALLREDUCE if variant not in THROUGH_MEMORY)
            raise ValueError(f'variant = "{self.variant}": needs whole gradients; with buckets allowed: {allowed}')
        return self


class RingAllreduce(GradientAlgorithm, ByAllreduce, name="ring_allreduce"):
    """Every step applies the mean gradient of all ranks, so the models of all ranks stay equal bit for bit::

        g = grad(x)
        g = allreduce(g) / n
        x = x - eta g

    With the option variant = ring, each of n ranks sends 2(n-1)/n M per step (M: bytes of the gradient). In each step
    all ranks wait for the slowest rank.

    With ``compression`` every rank sends its compressed gradient (payload), of C bytes, round the ring to all other
    ranks. A rank adds the values that its payload leaves out to its next gradient (error feedback)::

        payload, e = encode(g + e)
        g = sum over ranks of decode(payload) / n

    With ``compression`` a rank sends (n-1) C bytes per step (n: number of ranks, C: bytes of a compressed gradient),
    because ranks cannot sum compressed gradients on the way. The matrices that the compression ``power-sgd`` sends can
    be summed on the way: see power_sgd.py.

    With ``buckets`` each bucket (part of the gradient g) is averaged by its own all-reduce in the background, as soon
    as the backward pass has computed the bucket: see buckets.py. All buckets of a gradient together have as many bytes
    as the whole gradient. A ring cuts a bucket into other chunks than the whole gradient, so with three or more ranks
    the sums may be rounded differently with buckets.
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
        trains_bfloat16=True,
    )
    Options = RingAllreduceOptions
    remembers = ("k", "e", "Q")

    def __init__(self, options, replica, optimizer, context):
        super().__init__(options, replica, optimizer, context)
        self.compressed = self.power_sgd = self.buckets = None
        self.memory = outer_memory(self.x, options.outer_state)
        if self.comm.size == 1:
            return
        if options.buckets is not None:
            self.buckets = BucketedMean(replica, self.driver, options.buckets, self.allreduce)
        if not options.compresses:
            return
        self.room, self.e = self.memory.room(self.x), self.memory.like(self.x).tensor
        if options.compression == POWER_SGD:
            self.power_sgd = PowerSGD(replica.trained, options.matrix_rank or MATRIX_RANK, context.seed, self.e)
            self.Q = self.power_sgd.Q
        else:
            self.compressed = CompressedMean(self.comm, make_compressor(options, self.e), context.seed, self.e)

    @classmethod
    def traits_of(cls, options):
        traits, words = super().traits_of(options), [cls.name]
        if not options.compresses and options.variant == "ring" and options.buckets is None:
            return traits
        if options.compresses:
            words.append(options.compression)
            traits = replace(traits, exact_gradient=False, only_allreduces=False)
        elif options.variant != "ring":
            words.append(options.variant)
        if options.buckets is not None:
            words.append("buckets")
            early = {"sends_early": True, "in_background": True}
            traits = replace(traits, **early, only_allreduces=False, survives_deaths=False)
        return replace(traits, label=" ".join(words))

    @classmethod
    def arrays_held(cls, options, ranks):
        if not options.compresses:
            return 0
        return 1.25 if options.compression == POWER_SGD else 2 + ranks * payload_share(options)

    @classmethod
    def arrays_apart(cls, options, ranks):
        return 0, cls.arrays_held(options, ranks) + (1 if options.compresses else 0)

    @classmethod
    def option_behind(cls, options, trait):
        return ("buckets", "none, or device = cpu") if trait == "sends_early" else super().option_behind(options, trait)

    def start(self):
        if self.options.variant in THROUGH_MEMORY and self.comm.size > 1 and not self.is_compressed:
            self.replica.move_gradients((yield from self.in_place(self.replica.grads)))

    def gradient_ready(self, parameter):
        if self.buckets is not None:
            self.buckets.gradient_ready(parameter)

    def reduce(self):
        grads, size = self.replica.grads, self.x.tensor.numel()
        if self.buckets is not None:
            yield from self.buckets.finish()
        elif self.is_compressed:
            part = slice(size)
            held = yield from self.memory.take(grads, self.room, part)
            if self.power_sgd is not None:
                yield from self.power_sgd.average(held.tensor[part], self.allreduce)
            else:
                yield from self.compressed.average(held.tensor[part], self.k)
            self.memory.put(held, grads, part)
        elif self.comm.size > 1:
            yield from self.allreduce(grads.array)
        if (self.buckets is not None or self.is_compressed) and grads.array.size > size:
            yield from self.allreduce(grads.array[size:])  # values after the gradients, from a user's own loop
        self.k += 1

    @property
    def is_compressed(self) -> bool:
        return self.power_sgd is not None or self.compressed is not None

    def average(self):
        yield from average_buffers(self.uncounted_comm, self.replica)  # all ranks already have equal parameters
