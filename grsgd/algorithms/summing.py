"""Base class of synchronous SGD algorithms in which all ranks share a batch, and one of the schemes in
`grsgd.comm.coded` sums int32 gradients of the batch's blocks."""

from dataclasses import replace
from functools import partial
from typing import Literal

from pydantic import Field, field_validator, model_validator

from coding.fixed_point import FixedPoint, OutOfRange
from grsgd.algorithms.averaging import average_buffers
from grsgd.algorithms.base import Options, Traits
from grsgd.algorithms.central import Excluded
from grsgd.algorithms.common_batch import CommonBatchAlgorithm
from grsgd.algorithms.transport_trial import AUTO, BY_MPI, IP_MULTICAST, UNUSED, choose_transport
from grsgd.comm.coded.arrays import empty_like
from grsgd.comm.coded.ip_multicast import IpMulticast
from grsgd.comm.coded.multicast import TRANSPORTS, Multicast, Unicast
from grsgd.comm.coded.multicast_link import Settings
from grsgd.comm.coded.scheme import Scheme
from grsgd.lazy import LazyModule
from grsgd.text import ranks_in_words
from grsgd.units import rate as bytes_per_second

torch = LazyModule("torch")

INT64_SUM = 2
"""Number of bytes of an int64 array for the sum of all gradients, as a multiple of the bytes of the model in
float32."""


class SummingOptions(Options):
    """Options of algorithms that sum int32 gradients of the blocks of a batch that all ranks share."""

    transport: Literal[*TRANSPORTS, IP_MULTICAST, AUTO] = Field(
        "multicast",
        description="way to send a packet to several ranks: one broadcast of MPI, copies, or datagrams to an IP "
        "multicast group; auto: ip-multicast if datagrams reach all ranks, else multicast",
    )
    rate: str | None = Field(
        None,
        description="with ip-multicast: rate at which all ranks together may send, such as '100mbit'; by default "
        "measured at the start",
    )
    interface: str | None = Field(
        None,
        description="with ip-multicast: network interface of the hosts, by name, address, or network such as "
        "'10.0.0.0/24'; by default the interface towards the other hosts",
    )
    mtu: int | None = Field(
        None,
        ge=576,
        le=9000,
        description="with ip-multicast: bytes of the largest packet; by default the interface's MTU",
    )
    loss: float | None = Field(
        None, ge=0, le=0.2, description="with ip-multicast: share of the datagrams that each rank drops on purpose"
    )
    burst: float | None = Field(
        None, ge=1, le=1000, description="with loss: mean number of datagrams that are dropped in a row; 1 if not given"
    )
    range: float = Field(
        10.0,
        gt=0,
        allow_inf_nan=False,
        description="R: elements of gradients are rounded to multiples of R / (2^31 - 1) in [-R, R]",
    )

    @field_validator("rate")
    @classmethod
    def is_rate(cls, rate):
        if rate is not None:
            bytes_per_second(rate)
        return rate

    @model_validator(mode="after")
    def options_of_ip_multicast(self):
        given = next((name for name in UNUSED if getattr(self, name) is not None), None)
        if given and self.transport not in (IP_MULTICAST, AUTO):
            raise ValueError(f"{given} with transport = {self.transport!r}: needs transport = 'ip-multicast' or 'auto'")
        if self.burst is not None and not self.loss:
            raise ValueError(f"burst = {self.burst:g} without loss: give both options, or neither")
        return self

    def settings(self, seed: int) -> Settings:
        """Return the settings of IP multicast that the options describe. ``seed`` is the seed of the run."""
        rate = bytes_per_second(self.rate) if self.rate else None
        return Settings(rate, self.interface, self.mtu, self.loss or 0.0, self.burst or 1.0, seed)


class Summing(CommonBatchAlgorithm, name=None):
    """Base class of synchronous SGD in which a `grsgd.comm.coded.scheme.Scheme` sums the gradients of all blocks."""

    traits = Traits(
        synchronous=True,
        family="coded",
        sends_gradients=True,
        exact_gradient=True,
        equal_models=True,
        rests_between_steps=True,
        trains_bfloat16=True,
    )
    remembers = ("saturated", "overflow")
    scheme: Scheme

    @classmethod
    def arrays_in_32_bits(cls, options, ranks):
        return cls.arrays_held(options, ranks), 1  # one more array: the gradient in float32

    def __init__(self, options, replica, optimizer, context):
        super().__init__(options, replica, optimizer, context)
        self.fixed_point = self.make_fixed_point()
        self.wide = self.x.wide() if self.x.tensor.dtype is torch.bfloat16 else None
        """Memory in which a bfloat16 gradient is converted to float32 before it is converted to int32, or None if
        gradients are not of bfloat16."""
        self.saturated = OutOfRange(0, 0, 0.0, self.fixed_point.largest)
        self.transport = self.make_transport(context.seed)
        self.scheme = self.choose_scheme(
            self.transport,
            self.comm.size,
            self.options.r,
            self.comm.rank,
            self.x.array.size,
            self.fixed_point,
            partial(empty_like, self.x.array),
        )
        self.scheme.clock = self.driver.clock
        self.scheme.prepare()

    @classmethod
    def choose_options(cls, options, trial):
        chosen, reasons = yield from super().choose_options(options, trial)
        if options.transport in (IP_MULTICAST, AUTO):
            settings = options.settings(trial.context.seed)
            changes, why = yield from choose_transport(trial.context.comm, options.transport, settings, trial.on_gpu)
            chosen, reasons = chosen | changes, reasons | {"transport": why}
        return chosen, reasons

    @classmethod
    def options_by_mpi(cls, options):
        return BY_MPI if options.transport in (IP_MULTICAST, AUTO) else {}

    def make_transport(self, seed: int) -> Unicast:
        """Return the transport that the option ``transport`` names. On a simulated network, IP multicast is replaced by
        the simulated network's own broadcasts."""
        if self.options.transport == IP_MULTICAST and self.comm.backend.has_multicast is None:
            return IpMulticast(self.comm, self.options.settings(seed))
        return TRANSPORTS.get(self.options.transport, Multicast)(self.comm)

    @classmethod
    def traits_of(cls, options):
        return replace(cls.traits, supports_own_loop=options.transport in TRANSPORTS)

    @classmethod
    def option_behind(cls, options, trait):
        if trait == "supports_own_loop":
            return f"transport = {options.transport!r}", ", ".join(TRANSPORTS)
        return super().option_behind(options, trait)

    @property
    def overflow(self) -> OutOfRange:
        """Number of elements of summed gradients that did not fit into int32, and the largest magnitude of these
        elements."""
        return self.scheme.overflow

    @overflow.setter
    def overflow(self, overflow: OutOfRange):
        self.scheme.overflow = overflow

    def make_fixed_point(self) -> FixedPoint:
        """Return the object that converts gradients of blocks to int32 and sums back to real numbers."""
        return FixedPoint(self.options.range)

    @property
    def names_the_lost(self) -> bool:
        """Whether the warnings of this rank name the lost ranks. Only the lowest remaining rank names the lost ranks in
        its warnings."""
        return bool(self.lost) and self.comm.rank == min(set(range(self.comm.size)) - self.lost)

    def choose_scheme(self, *arguments) -> Scheme:
        """Return the `Scheme` object that sums the gradients of all blocks; ``arguments`` are the arguments for the
        object's class."""
        raise NotImplementedError

    @property
    def num_blocks(self):
        return self.scheme.num_blocks

    def blocks(self, batch):
        samples = self.scheme.samples(batch)
        return [(block, begin, end) for block, (begin, end) in zip(self.scheme.blocks, samples, strict=True)]

    def start(self):
        return self.scheme.open()

    def block_gradient_ready(self, block):
        row = self.scheme.block_buffer(self.scheme.blocks.index(block))
        grads = self.replica.grads
        if self.wide is not None:
            self.wide.tensor.copy_(grads.tensor)
            grads = self.wide
        self.saturated = self.saturated.merged_with(self.fixed_point.encode(grads.array, row))

    def before_backward(self):
        yield from self.scheme.look()
        self.needs_no_gradient = self.scheme.needs_no_blocks

    def reduce(self):
        yield from self.scheme.add_up()
        if self.scheme.is_left_behind:
            raise Excluded(f"rank {self.comm.rank} was silent for too long")
        grads = self.replica.grads
        self.fixed_point.decode(self.scheme.total, (self.wide or grads).array)
        if self.wide is not None:
            grads.tensor.copy_(self.wide.tensor)

    def drain(self):
        yield from self.scheme.close() or ()
        self.lost = self.scheme.lost
        if self.lost and self.comm.rank not in self.lost:
            self.uncounted_comm = self.uncounted_comm.subset(sorted(set(range(self.comm.size)) - self.lost))

    def average(self):
        yield from average_buffers(self.uncounted_comm, self.replica)  # all ranks already have equal parameters

    def warnings(self):
        silent = ranks_in_words(sorted(self.lost))
        lines = [f"went on without {silent}, silent in the end"] if self.names_the_lost else []
        found = {"gradients of blocks": self.saturated, "sums of gradients": self.overflow}
        lines += [f"{what} are wrong: {beyond}" for what, beyond in found.items() if beyond]
        if self.saturated.count and self.scheme.sends_sums:
            limit = self.saturated._replace(largest=self.saturated.largest * self.scheme.num_blocks).suggested_limit
            blocks = self.scheme.num_blocks
            lines.append(f"sums of {blocks} such blocks are sent: for them, a range of {limit:g} would do")
        return lines + self.transport.warnings()
