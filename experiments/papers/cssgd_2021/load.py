"""The traffic of the schemes, counted packet by packet, and the formulas that it is held against."""

from collections.abc import Callable
from fractions import Fraction
from functools import cache
from math import comb, lcm
from typing import NamedTuple

import numpy as np

from coding.fixed_point import FixedPoint
from coding.plan import packet_plan
from grsgd.comm.coded.schemes import SCHEMES, LocalSum, PerBlock

OURS = "not in it"
"""The number of a formula that is not the paper's."""
COUNTED = {"SSGD": LocalSum, "per block": PerBlock} | SCHEMES


class Count(NamedTuple):
    """All ranks together, in units of M. once, per_receiver: what is sent, by how a packet to several ranks counts;
    received: what comes in, found from the receivers' side."""

    once: Fraction
    per_receiver: Fraction
    received: Fraction


@cache
def count(name: str, n: int, r: int) -> Count:
    """Every packet that the ranks' schemes would send, of a gradient whose length all numbers up to n divide."""
    length = lcm(*range(1, n + 1))
    once = per_receiver = received = 0
    for rank in range(n):
        scheme = COUNTED[name](None, n, r, rank, length, FixedPoint(1.0), np.empty)
        for packet in scheme.packets:
            size = scheme.size(packet)
            if packet.sender == rank:
                once += size
                per_receiver += size * len(packet.receivers)
            else:
                received += size
    return Count(*(Fraction(words, length) for words in (once, per_receiver, received)))


class Formula(NamedTuple):
    """A number of the paper, or of ours. counted, formula: functions of n and r."""

    number: str
    what: str
    counted: Callable[[int, int], Fraction | int]
    text: str
    formula: Callable[[int, int], Fraction | int]

    def equal(self, cases) -> int:
        """Return in how many of the cases both are the same."""
        return sum(self.counted(n, r) == self.formula(n, r) for n, r in cases)


def once(name: str):
    return lambda n, r: count(name, n, r).once


def per_receiver(name: str):
    return lambda n, r: count(name, n, r).per_receiver


def received(name: str):
    return lambda n, r: count(name, n, r).received


def blocks_of_a_rank(n: int, r: int) -> int:
    return packet_plan(n, r).placement.blocks(0).size


def groups_of(n: int):
    """Return the number of groups of ranks that compute the same; one group sends nothing."""
    return lambda r: 0 if r >= n else -(-n // r)


FORMULAS = (
    Formula("(6)", "blocks", lambda n, r: len(packet_plan(n, r).placement.holders), "C(n, r)", comb),
    Formula("(20)", "blocks of a node", blocks_of_a_rank, "C(n-1, r-1)", lambda n, r: comb(n - 1, r - 1)),
    Formula("(21)", "coded, received by all", received("coded"), "n C(n-1, r)", lambda n, r: n * comb(n - 1, r)),
    Formula(
        "(25)",
        "groups that exchange",
        lambda n, r: len(packet_plan(n, r).groups),
        "C(n, r+1)",
        lambda n, r: comb(n, r + 1),
    ),
    Formula(
        "(27), (28)",
        "coded, once",
        once("coded"),
        "C(n, r+1) (r+1) / r",
        lambda n, r: Fraction(comb(n, r + 1) * (r + 1), r),
    ),
    Formula("(28)", "coded, once", once("coded"), "n C(n-1, r) / r", lambda n, r: Fraction(n * comb(n - 1, r), r)),
    Formula("(29)", "uncoded, per receiver", per_receiver("uncoded"), "n C(n-1, r)", lambda n, r: n * comb(n - 1, r)),
    Formula(
        "(30)", "per block, per receiver", per_receiver("per block"), "(n-1) C(n, r)", lambda n, r: (n - 1) * comb(n, r)
    ),
    Formula(
        "(19)",
        "coded, once",
        once("coded"),
        "uncoded, per receiver / r",
        lambda n, r: per_receiver("uncoded")(n, r) / r,
    ),
    Formula(
        "(19)",
        "coded, once",
        once("coded"),
        "per block, per receiver (n-r) / (r (n-1))",
        lambda n, r: per_receiver("per block")(n, r) * Fraction(n - r, r * (n - 1)),
    ),
    Formula(OURS, "coded, per receiver", per_receiver("coded"), "n C(n-1, r)", lambda n, r: n * comb(n - 1, r)),
    Formula(OURS, "uncoded, once", once("uncoded"), "C(n, r)", lambda n, r: comb(n, r) if r < n else 0),
    Formula(OURS, "SSGD, once", once("SSGD"), "n", lambda n, r: n),
    Formula(OURS, "SSGD, per receiver", per_receiver("SSGD"), "n (n-1)", lambda n, r: n * (n - 1)),
    Formula(OURS, "grouped-direct, once", once("grouped-direct"), "q", lambda n, r: groups_of(n)(r)),
    Formula(
        "not in it",
        "grouped-direct, per receiver",
        per_receiver("grouped-direct"),
        "n (q-1)",
        lambda n, r: n * max(groups_of(n)(r) - 1, 0),
    ),
    Formula(OURS, "grouped-rs, once", once("grouped-rs"), "q", lambda n, r: groups_of(n)(r)),
    Formula(
        "not in it",
        "grouped-rs, per receiver",
        per_receiver("grouped-rs"),
        "n + q - 2",
        lambda n, r: n + groups_of(n)(r) - 2 if r < n else 0,
    ),
)
