"""CSSGD: coded synchronous SGD.

A schedule is a generator that yields each object it waits for.
"""

from dataclasses import replace
from functools import partial
from math import comb
from typing import Literal

import numpy as np
from pydantic import Field, field_validator

from coding.fixed_point import TOP, FixedPoint
from coding.placement import subset_placement
from coding.plan import packet_plan
from coding.prime_field import HALF
from grsgd.algorithms.before_run import Load
from grsgd.algorithms.redundancy import allowed_redundancies, choose, decided_by_one, measure
from grsgd.algorithms.summing import INT64_SUM, Summing, SummingOptions
from grsgd.comm.coded.arrays import empty_like
from grsgd.comm.coded.schemes import SCHEMES
from grsgd.comm.coded.streams import AHEAD
from grsgd.comm.coded.tolerant import MIN_LAG, TolerantSum

PATIENCE = 0.8
"""Time for which a run waits for silent ranks at the end of training if no option sets the time, as a fraction of
comm.timeout. When the time `PATIENCE` is over, the run ends without the silent ranks."""

CODING_UNIT = "s", "spent by the lowest rank on encoding and decoding packets, within communicate_seconds"
USED_UNIT = "steps", "number of steps in which the lowest rank decoded the sum with a message of this rank"


class CSSGDOptions(SummingOptions):
    scheme: Literal["coded", "uncoded", "grouped-direct", "grouped-rs", "tolerant"] = Field(
        "coded",
        description="coded: the scheme of the CSSGD paper; uncoded: the same placement of blocks, without coding; "
        "grouped: two schemes that sum blocks before sending; tolerant: a scheme whose steps end without silent ranks",
    )
    r: int | Literal["auto"] = Field(
        2,
        description="redundancy: number of ranks that compute each block; auto: the r with the shortest predicted step",
    )
    enumeration: Literal["groups", "paper"] = Field(
        "groups",
        description="with scheme coded: which packets are sent; groups: each needed packet once; paper: as in "
        "Algorithm 3 of the CSSGD paper, with useless repeats",
    )

    silent: int | None = Field(
        None,
        ge=0,
        description="with scheme tolerant: number of silent ranks without which a step may end, less than r; "
        "default: 1",
    )
    lag: int | None = Field(
        None,
        ge=1,
        description="with scheme tolerant: number of steps by which a rank may lag before the other ranks go on "
        "without this rank; by default the number of steps that fit into messages of 256 MiB, from 8 to 1000",
    )
    end_timeout: float | None = Field(
        None,
        gt=0,
        description="with scheme tolerant: seconds to wait for silent ranks at the end of training; by default 0.8 "
        "times comm.timeout",
    )

    @property
    def silent_ranks(self) -> int:
        """Number of ranks whose messages are not needed to end a step."""
        return 1 if self.silent is None else self.silent

    @field_validator("r", mode="before")
    @classmethod
    def number_or_auto(cls, r):
        if r != "auto" and (not isinstance(r, int) or isinstance(r, bool) or r < 1):
            raise ValueError(f"allowed are 1 to the number of ranks, and 'auto'; found {r!r}")
        return r


class CSSGD(Summing, name="cssgd"):
    """Every block of a batch is computed by r ranks, so one packet contains new information for r other ranks. Rank i
    computes::

        G_q = gradient of block q, as int32, for every block q that i holds    # an r-subset of the ranks holds each
        for every group S of r+1 ranks with i in it:
            multicast to S - {i}: sum over t in S - {i} of i's slice of G_(S - {t})
            receive the others' packets; subtract the slices that i knows; a slice of G_(S - {i}) is left
        g = sum of all G_q                                                     # exact, so the same on all ranks
        x = x - eta g

    Each rank computes the gradients of r times as many samples as without redundancy. Per step each of n ranks sends
    C(n-1, r) / r M bytes, if a multicast to several ranks counts once (see `grsgd coding-cost`). M is the number of
    bytes of a gradient, and C the binomial coefficient. With the scheme uncoded each rank sends the slices of its
    blocks without coding, C(n-1, r-1) / r M bytes per step.

    The schemes grouped-direct and grouped-rs are not from the CSSGD paper, but were designed in this project. In the
    schemes grouped-direct and grouped-rs the n ranks form n/r groups. All ranks of a group compute the same block, and
    each rank sends its own part, M/r bytes, of the group's gradient. With grouped-direct each rank multicasts its part
    of the group's gradient. With grouped-rs rank j receives chunk j of all groups' gradients, adds up these chunks, and
    multicasts the sum. If there are more than two groups, ranks receive fewer bytes with grouped-rs than with
    grouped-direct.

    With the scheme tolerant a step ends with the exact sum of all gradients even if any s = ``silent`` ranks send
    nothing::

        G_q as above, for the r blocks q = i, i - 1, ... i - r + 1 (modulo n)
        send to all others: f_i = a combination of the parts of these G_q, 1 / (r - s) M, modulo a prime
        when the f of any n - s ranks are there: g = their combination = sum of all G_q
        x = x - eta g
    """

    paper = (
        "Li, Xie, Mao, Xu, Zhu, Zhang 2021, A synchronous gradient descent algorithm based on distributed coding, "
        "Computer Engineering; Tandon, Lei, Dimakis, Karampatziakis 2017, Gradient coding, and Ye, Abbe 2018, "
        "Communication-computation efficient gradient coding (tolerant)"
    )
    Options = CSSGDOptions

    @classmethod
    def check(cls, options, ranks):
        super().check(options, ranks)
        if options.scheme == "tolerant":
            check_tolerant(options)
        elif found := [name for name in ("silent", "lag", "end_timeout") if getattr(options, name) is not None]:
            raise ValueError(f"{found[0]} with scheme = {options.scheme!r}; allowed with 'tolerant' only")
        if options.r != "auto" and options.r > ranks:
            raise ValueError(f"r = {options.r} with {ranks} ranks; allowed are 1 to {ranks}, and 'auto'")
        if options.enumeration == "paper" and options.scheme != "coded":
            raise ValueError(f"enumeration = 'paper' with scheme = {options.scheme!r}; allowed with 'coded' only")
        if options.scheme == "coded" and options.r != "auto":
            packet_plan(ranks, options.r, options.enumeration)  # packet_plan raises an error if the plan is too large
        elif options.scheme == "uncoded" and options.r != "auto":
            subset_placement(ranks, options.r).holders  # noqa: B018  raises an error if the table is too large

    @classmethod
    def traits_of(cls, options):
        traits = replace(super().traits_of(options), label=f"{cls.name} {options.scheme}")
        if options.r == "auto":
            traits = replace(traits, supports_own_loop=False)
        if options.scheme == "tolerant":
            return replace(
                traits,
                supports_own_loop=False,
                in_background=True,
                rests_between_steps=False,
                tolerates_lost_ranks=True,
                tolerates_silent_ranks=True,
            )
        return traits

    @classmethod
    def option_behind(cls, options, trait):
        if trait == "supports_own_loop" and options.r == "auto":
            return "r = 'auto'", "1 to the number of ranks"
        if trait == "supports_own_loop" and options.scheme == "tolerant":
            return "scheme = 'tolerant'", "the other schemes"
        return super().option_behind(options, trait)

    @classmethod
    def arrays_held(cls, options, ranks):
        r = 1 if options.r == "auto" else options.r
        if options.scheme == "tolerant":
            messages = (AHEAD + 1) * ranks + MIN_LAG
            return INT64_SUM + r + -(-messages // (r - options.silent_ranks))
        blocks = comb(ranks - 1, r - 1) if options.scheme in ("coded", "uncoded") else 1
        return INT64_SUM + blocks + ranks / r

    @classmethod
    def choose_options(cls, options, trial):
        chosen, reasons = yield from super().choose_options(options, trial)
        if options.r == "auto":
            alone = trial.make(cls, options.model_copy(update=chosen | {"r": 1}))
            chosen["r"], reasons["redundancy"] = yield from alone.choose_redundancy(trial.load_of(alone))
        return chosen, reasons

    def choose_redundancy(self, load: Load):
        """Generator, called on all ranks at once, that returns the redundancy r with the shortest predicted step, and
        the reason for the choice. The algorithm object on which `choose_redundancy` is called must have the option r =
        1."""
        scheme, n, length = self.options.scheme, self.comm.size, self.x.array.size
        allowed = allowed_redundancies(scheme, n, load.batch)
        empty = partial(empty_like, self.x.array)
        measured = yield from measure(scheme, allowed, self.transport, self.driver, load, length, empty)
        r, reason = choose(scheme, n, allowed, length, measured)
        return (yield from decided_by_one(self.comm, r)), reason

    @property
    def is_tolerant(self) -> bool:
        """Whether steps can end without the messages of silent ranks (scheme tolerant)."""
        return self.options.scheme == "tolerant"

    def make_fixed_point(self):
        # The range is reduced, because a sum of n blocks must be a number of the finite field.
        return FixedPoint(self.options.range, HALF // self.comm.size if self.is_tolerant else TOP)

    @property
    def left_out(self):
        return self.scheme.made if self.is_tolerant else 0

    def extra(self):
        if self.is_tolerant:
            return {"messages_used": (self.scheme.used, USED_UNIT)}
        seconds = self.scheme.coding_seconds
        return {"coding_seconds": (np.array([seconds]), CODING_UNIT)} if seconds else {}

    def choose_scheme(self, *arguments):
        if self.is_tolerant:
            options, patience = self.options, self.options.end_timeout or PATIENCE * self.driver.timeout
            return TolerantSum(self.comm, self.driver, *arguments[1:], options.silent_ranks, options.lag, patience)
        more = {"enumeration": self.options.enumeration} if self.options.scheme == "coded" else {}
        return SCHEMES[self.options.scheme](*arguments, **more)


def check_tolerant(options: CSSGDOptions):
    """Raise ValueError if ``options`` contain values that are not allowed with the scheme tolerant."""
    if options.r == "auto":
        raise ValueError("r = 'auto' with scheme = 'tolerant'; allowed is a number: the best r depends on stragglers")
    if options.transport not in ("multicast", "unicast"):
        raise ValueError(f"transport = {options.transport!r}: scheme = 'tolerant' sends copies: leave transport out")
    if options.silent_ranks >= options.r:
        raise ValueError(f"silent = {options.silent_ranks} with r = {options.r}; allowed are 0 to {options.r - 1}")
