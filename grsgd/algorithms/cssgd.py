"""CSSGD: coded synchronous SGD."""

from dataclasses import replace
from functools import partial
from math import comb
from typing import Literal

from pydantic import Field, field_validator

from coding.fixed_point import FixedPoint, OutOfRange
from coding.placement import subset_placement
from coding.plan import packet_plan
from grsgd.algorithms.averaging import average_buffers
from grsgd.algorithms.base import Options, Traits
from grsgd.algorithms.common_batch import CommonBatchAlgorithm
from grsgd.algorithms.redundancy import allowed_redundancies, choose, measure
from grsgd.comm.coded.arrays import empty_like
from grsgd.comm.coded.multicast import TRANSPORTS
from grsgd.comm.coded.schemes import SCHEMES, Scheme


class SummingOptions(Options):
    """Options of the algorithms that sum int32 gradients of the blocks of a common batch."""

    transport: Literal["multicast", "unicast"] = Field(
        "multicast", description="a packet to several ranks: one broadcast in a communicator of theirs, or copies"
    )
    range: float = Field(
        10.0, gt=0, allow_inf_nan=False, description="R: gradients are int32 multiples of R / (2^31 - 1) in [-R, R]"
    )


class Summing(CommonBatchAlgorithm, name=None):
    """Synchronous SGD in which a `grsgd.comm.coded.schemes.Scheme` adds up the blocks' gradients."""

    traits = Traits(
        synchronous=True,
        family="coded",
        sends_gradients=True,
        exact_gradient=True,
        equal_models=True,
        supports_own_loop=False,
        rests_between_steps=True,
    )
    remembers = ("saturated", "overflow")
    scheme: Scheme

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.fixed_point = FixedPoint(self.options.range)
        self.saturated = OutOfRange(0, 0, 0.0, self.options.range)
        self.scheme = self.choose_scheme(
            TRANSPORTS[self.options.transport](self.comm),
            self.comm.size,
            self.options.r,
            self.comm.rank,
            self.x.array.size,
            self.fixed_point,
            partial(empty_like, self.x.array),
        )
        self.scheme.prepare()

    @property
    def overflow(self) -> OutOfRange:
        """Sums of gradients that did not fit."""
        return self.scheme.overflow

    @overflow.setter
    def overflow(self, overflow: OutOfRange):
        self.scheme.overflow = overflow

    def choose_scheme(self, *arguments) -> Scheme:
        """The scheme of these options."""
        raise NotImplementedError

    def blocks(self, batch):
        samples = self.scheme.samples(batch)
        return [(block, begin, end) for block, (begin, end) in zip(self.scheme.blocks, samples, strict=True)]

    def start(self):
        self.scheme.open()

    def block_gradient_ready(self, block):
        row = self.scheme.block_buffer(self.scheme.blocks.index(block))
        self.saturated = self.saturated.merged_with(self.fixed_point.encode(self.replica.grads.array, row))

    def step(self):
        yield from self.scheme.add_up()
        self.fixed_point.decode(self.scheme.total, self.replica.grads.array)
        self.update()

    def drain(self):
        self.scheme.close()

    def average(self):
        yield from average_buffers(self.uncounted_comm, self.replica)  # the parameters are equal already

    def warnings(self):
        found = {"gradients of blocks": self.saturated, "sums of gradients": self.overflow}
        lines = [f"{what} are wrong: {beyond}" for what, beyond in found.items() if beyond]
        if self.saturated.count and self.scheme.sends_sums:
            limit = self.saturated._replace(largest=self.saturated.largest * self.scheme.num_blocks).suggested_limit
            blocks = self.scheme.num_blocks
            lines.append(f"sums of {blocks} such blocks are sent: for them, a range of {limit:g} would do")
        return lines


class CSSGDOptions(SummingOptions):
    scheme: Literal["coded", "uncoded", "grouped-direct", "grouped-rs"] = Field(
        "coded", description="the paper's, its placement without coding, and two that sum before they send"
    )
    r: int | Literal["auto"] = Field(2, description="redundancy: ranks that compute each block; auto: the fastest")
    enumeration: Literal["groups", "paper"] = Field(
        "groups", description="of coded: paper is Algorithm 3 as written, with useless repeats"
    )

    @field_validator("r", mode="before")
    @classmethod
    def number_or_auto(cls, r):
        if r != "auto" and (not isinstance(r, int) or isinstance(r, bool) or r < 1):
            raise ValueError(f"allowed are 1 to the number of ranks, and 'auto'; found {r!r}")
        return r


class CSSGD(Summing, name="cssgd"):
    """Every block of a batch is computed by r ranks, so that one packet can tell r others something new. Rank i::

        G_q = gradient of block q, as int32, for every block q that i holds    # an r-subset of the ranks holds each
        for every group S of r+1 ranks with i in it:
            multicast to S - {i}: sum over t in S - {i} of i's slice of G_(S - {t})
            receive the others' packets; subtract what i knows; a slice of G_(S - {i}) is left
        g = sum of all G_q                                                     # exact, so the same on all ranks
        x = x - eta g

    Computes r times as much as without redundancy and sends C(n-1, r) / r M, a multicast counted once
    (`grsgd coding-cost`). The scheme uncoded sends the slices of every block as they are: C(n-1, r-1) / r M.

    The grouped schemes are ours: n/r groups of ranks compute a block each, and a rank sends 1/r M of its sum.
    grouped-direct multicasts it; grouped-rs lets rank j add up chunk j, and receives the least of all.
    """

    paper = (
        "Li, Xie, Mao, Xu, Zhu, Zhang 2021, A synchronous gradient descent algorithm based on distributed coding, "
        "Computer Engineering"
    )
    Options = CSSGDOptions

    @classmethod
    def check(cls, options, ranks):
        super().check(options, ranks)
        if options.r != "auto" and options.r > ranks:
            raise ValueError(f"r = {options.r} with {ranks} ranks; allowed are 1 to {ranks}, and 'auto'")
        if options.enumeration == "paper" and options.scheme != "coded":
            raise ValueError(f"enumeration = 'paper' with scheme = {options.scheme!r}; allowed with 'coded' only")
        if options.scheme == "coded" and options.r != "auto":
            packet_plan(ranks, options.r, options.enumeration)  # refuses what is too large
        elif options.scheme == "uncoded" and options.r != "auto":
            subset_placement(ranks, options.r).holders  # noqa: B018  likewise

    @classmethod
    def traits_of(cls, options):
        return replace(cls.traits, label=f"{cls.name} {options.scheme}")

    @classmethod
    def block_arrays(cls, options, ranks):
        r = 1 if options.r == "auto" else options.r
        return comb(ranks - 1, r - 1) if options.scheme in ("coded", "uncoded") else 1

    @classmethod
    def trial_options(cls, options):
        return options.model_copy(update={"r": 1}) if options.r == "auto" else None

    def choose_options(self, options, batch, gradient):
        n = self.comm.size
        costs = yield from measure(self.comm, self.driver, self.replica.grads.array, gradient)
        allowed = allowed_redundancies(options.scheme, n, batch)
        r, reason = choose(options.scheme, n, allowed, costs)
        return {"r": r}, reason

    def choose_scheme(self, *arguments):
        more = {"enumeration": self.options.enumeration} if self.options.scheme == "coded" else {}
        return SCHEMES[self.options.scheme](*arguments, **more)
