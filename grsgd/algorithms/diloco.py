"""DiLoCo, in which local steps are followed by an outer step with momentum along the mean change of all models; and
Streaming DiLoCo.

A schedule is a generator that yields each object it waits for.
"""

from dataclasses import replace

from pydantic import Field, model_validator

from grsgd.algorithms.base import Options, Traits
from grsgd.algorithms.by_allreduce import ByAllreduce
from grsgd.algorithms.outer_state import OUTER_STATE_MEANING, OuterState, outer_memory
from grsgd.comm.allreduce import VARIANT_MEANING, Variant
from grsgd.comm.compression.compressors import CompressionOptions, make_compressor, payload_share
from grsgd.comm.compression.mean import CompressedMean
from grsgd.lazy import LazyModule
from grsgd.models.mixing import add_difference_of_buffers

torch = LazyModule("torch")


def outer_update(x_prev, u, mean, lr: float, momentum: float):
    """Move the model ``x_prev`` towards ``mean``, the mean of all models, by an outer step, in place. ``u`` is the
    momentum of the outer steps, which `outer_update` updates in place."""
    if (lr, momentum) == (1, 0):
        x_prev.copy_(mean)  # a copy is exact, but the formula below would round
    else:
        change = x_prev - mean
        u.mul_(momentum).add_(change)
        x_prev.sub_(change.add_(u, alpha=momentum), alpha=lr)


class OuterOptions(Options):
    H: int = Field(
        8, ge=1, description="number of steps between two averages of the same parameters; 500 in the DiLoCo paper"
    )
    outer_lr: float = Field(0.7, gt=0, description="learning rate of the outer step")
    outer_momentum: float = Field(0.9, ge=0, lt=1, description="Nesterov momentum of the outer step")


class DiLoCoOptions(CompressionOptions, OuterOptions):
    fragments: int = Field(
        1, ge=1, description="number of parts of the model; one part is averaged every H / fragments steps"
    )
    delay: int = Field(
        0, ge=0, description="number of local steps that a rank takes while a fragment is averaged in the background"
    )
    mix: float = Field(
        0.0,
        ge=0,
        lt=1,
        description="weight of a rank's own model in the mean of this model and the model after an outer step",
    )
    variant: Variant = Field("ring", description=VARIANT_MEANING)
    outer_state: OuterState | None = Field(None, description=OUTER_STATE_MEANING)

    @model_validator(mode="after")
    def fits(self):
        if self.H % self.fragments:
            raise ValueError(f"fragments = {self.fragments}: must divide H = {self.H}")
        if self.delay > self.H // self.fragments:
            raise ValueError(
                f"delay = {self.delay}: must not be more than H / fragments = {self.H // self.fragments}, for one "
                "fragment is averaged at a time"
            )
        if self.compresses and self.variant != "ring":
            raise ValueError(f'variant = "{self.variant}": must be "ring", for compressed payloads cannot be summed')
        if self.delay == self.H:
            raise ValueError(f"delay = {self.delay}: must be less than H, or no local step is ever averaged")
        return self


class DiLoCo(ByAllreduce, name="diloco"):
    """Each rank takes H local steps, with an optimizer such as AdamW. After every H local steps, an outer step with
    Nesterov momentum follows the mean change of all ranks' models::

        x = inner optimizer's step;  k = k + 1
        if k % H == 0:
            d = x_prev - allreduce(x) / n                    # the pseudo-gradient
            u = outer_momentum u + d
            x_prev = x_prev - outer_lr (d + outer_momentum u)
            x = x_prev

    Streaming DiLoCo averages the fragments of x one after the other, H / fragments steps apart. The outer step of a
    fragment comes `delay` steps after the fragment's all-reduce has begun, and training goes on during the all-reduce.
    The outer step of a fragment sets x = mix x + (1 - mix) x_prev. A fragment of the model is a contiguous part of the
    vector of all parameters.

    With ``compression`` each rank sends x - x_prev as a compressed payload, with error feedback, and all ranks average
    the decoded payloads.

    With outer_lr = 1 and outer_momentum = 0 DiLoCo is local SGD. The inner optimizer's state is not averaged. With the
    option variant = ring, each of n ranks sends 2(n-1)/(nH) M per step (M: bytes of the model). Every H / fragments
    steps a rank waits for the slowest rank, but only if the slowest rank is more than `delay` steps behind.
    """

    paper = (
        "Douillard, Feng, Rusu, Chhaparia, Donchev, Kuncoro, Ranzato, Szlam, Shen 2023, DiLoCo: Distributed low-"
        "communication training of language models; fragments, delay: Douillard et al. 2025, Streaming DiLoCo"
    )
    traits = Traits(
        synchronous=True, family="local", rests_between_steps=True, survives_deaths="together", trains_bfloat16=True
    )
    Options = DiLoCoOptions
    remembers = ("k", "u", "x_prev", "mean", "buffers", "buffers_sent", "fragment", "due", "e")

    def __init__(self, options, replica, optimizer, context):
        super().__init__(options, replica, optimizer, context)
        size = self.x.tensor.numel()
        self.fragment = 0
        self.due = -1
        """Number of the step after which the average that is being computed is merged into the fragment, or -1 if no
        average is being computed."""
        self.memory = outer_memory(self.x, options.outer_state)
        self.u, self.x_prev = (self.memory.wide(self.x).tensor for _ in range(2))
        self.mean, self.buffers = self.memory.like(self.x), self.replica.buffers.like()
        """Copies of the model's parameters and buffers, which are averaged over all ranks while training goes on."""
        self.buffers_sent = self.replica.buffers.like().tensor
        self.parts = [
            slice(size * number // options.fragments, size * (number + 1) // options.fragments)
            for number in range(options.fragments)
        ]
        self.copied = self.exchange = None
        """``copied``: pollable that is true when the fragment has been copied, or None; until then the model must not
        change. ``exchange``: handle of the background task that averages the fragment, or None if no average is being
        computed."""
        self.compressed = []
        """One object per fragment that averages compressed pseudo-gradients over all ranks; the list is empty without
        compression."""
        if self.comm.size > 1 and options.compresses:
            self.e = self.memory.like(self.x).tensor
            self.compressed = [
                CompressedMean(self.comm, make_compressor(options, self.e[part]), context.seed, self.e[part])
                for part in self.parts
            ]

    @classmethod
    def traits_of(cls, options):
        rests = options.delay == 0
        traits = replace(super().traits_of(options), rests_between_steps=rests, in_background=not rests)
        return replace(traits, label=f"{cls.name} {options.compression}") if options.compresses else traits

    @classmethod
    def arrays_held(cls, options, ranks):
        return 5 + ranks * payload_share(options) if options.compresses else 3

    @classmethod
    def arrays_in_32_bits(cls, options, ranks):
        return 2, 0  # the momentum, and the model after the last outer step

    def start(self):
        self.x_prev.copy_(self.x.tensor)
        if not self.compressed:
            self.mean = yield from self.in_place(self.mean)

    def step(self):
        if self.copied is not None:
            yield self.copied
        self.update()
        self.k += 1
        if self.k == self.due:
            if self.exchange is not None:
                yield self.exchange
            yield from self.outer_step()
        interval = self.options.H // self.options.fragments
        if self.k % interval == 0:
            self.fragment = (self.k // interval - 1) % self.options.fragments
            self.copied = self.memory.begin_copy(self.x, self.mean, self.part)
            if self.fragment == 0:
                self.buffers.tensor.copy_(self.replica.buffers.tensor)
                self.buffers_sent.copy_(self.buffers.tensor)
            self.due = self.k + self.options.delay
            if self.options.delay:
                self.exchange = self.driver.start(self.average_with_all())
            else:
                yield from self.average_with_all()
                yield from self.outer_step()

    def average_with_all(self):
        """Generator that averages the current fragment of the model over all ranks. The model's buffers are averaged
        together with the first fragment of the model."""
        if self.copied is not None:
            yield self.copied
        if self.compressed:
            mean, x_prev = self.mean.tensor[self.part], self.x_prev[self.part]
            change = mean - x_prev
            yield from self.compressed[self.fragment].average(change, self.k)
            torch.add(x_prev, change, out=mean)
        else:
            yield from self.allreduce(self.mean.array[self.part])
        if self.fragment == 0:
            yield from self.replica.average_buffers(self.allreduce, self.buffers)

    @property
    def part(self) -> slice:
        """Slice of the parameter vector that is the current fragment."""
        return self.parts[self.fragment]

    def outer_step(self):
        x_prev, u, mean = (tensor[self.part] for tensor in (self.x_prev, self.u, self.mean.tensor))
        outer_update(x_prev, u, mean, self.options.outer_lr, self.options.outer_momentum)
        held = yield from self.memory.take(self.x, self.mean, self.part)
        held.tensor[self.part].lerp_(x_prev.to(held.tensor.dtype), 1 - self.options.mix)
        self.memory.put(held, self.x, self.part)
        if self.fragment == 0:
            self.take_over_buffers()
        self.due, self.exchange, self.copied = -1, None, None

    def take_over_buffers(self):
        """Set the model's buffers to the averaged buffers, plus the changes of this rank's buffers since they were
        copied for the average."""
        buffers = self.replica.buffers.tensor
        if self.options.delay:
            add_difference_of_buffers(buffers, self.buffers.tensor, self.buffers_sent)
        else:
            buffers.copy_(self.buffers.tensor)  # a copy does not round, but an addition would

    def drain(self):
        if self.exchange is not None:
            yield self.exchange
