"""The bytes that each scheme sends, counted packet by packet, compared with formulas and with the paper's 1/n."""

from collections.abc import Callable
from fractions import Fraction
from functools import cache
from math import comb, lcm
from typing import NamedTuple

import numpy as np

from coding.fixed_point import FixedPoint
from experiments.runner import decide
from experiments.runner.outcome import BY_CONSTRUCTION, Case
from experiments.tables.section import Section
from experiments.tables.targets import Found
from grsgd.comm.coded.schemes import SCHEMES
from grsgd.comm.coded.without_redundancy import LocalSum, PerBlock

COUNTED = {"SSGD": LocalSum, "per block": PerBlock} | SCHEMES
MAX_NODES = 10
"""Greatest number of nodes for which packets are counted one by one."""
ASGD_NODES = 4
"""Least number of nodes on which SSGD by unicast and ASGD send different amounts; on 3 nodes, both send 6 gradients."""
Amount = Callable[[int, int], Fraction | int]
"""Function from n nodes and redundancy r to the amount that all nodes send, in units of a gradient."""


class Count(NamedTuple):
    """The amount that all ranks together send, in units of a gradient.

    A packet to several ranks counts once in ``once``, and once per receiver in ``per_receiver``.
    """

    once: Fraction
    per_receiver: Fraction

    def __str__(self):
        return f"{float(self.once):.4g} / {float(self.per_receiver):.4g}"


@cache
def count(name: str, n: int, r: int) -> Count:
    """Return the amount of all packets that all ranks would send in the scheme ``name``.

    The length of the gradient in this count is divisible by all numbers up to n, so that no packet is padded.
    """
    length = lcm(*range(1, n + 1))
    once = per_receiver = 0
    for rank in range(n):
        scheme = COUNTED[name](None, n, r, rank, length, FixedPoint(1.0), np.empty)
        for packet in scheme.packets:
            if packet.sender == rank:
                once += scheme.size(packet)
                per_receiver += scheme.size(packet) * len(packet.receivers)
    return Count(Fraction(once, length), Fraction(per_receiver, length))


def coded(n: int, r: int) -> Fraction:
    return count("coded", n, r).once


def uncoded(n: int, r: int) -> Fraction:
    return count("uncoded", n, r).per_receiver


def per_block(n: int, r: int) -> Fraction:
    return count("per block", n, r).per_receiver


FORMULAS: dict[str, tuple[Amount, Amount]] = {
    "(28) coded, a packet counts once = n C(n-1, r) / r": (coded, lambda n, r: Fraction(n * comb(n - 1, r), r)),
    "(29) uncoded, a packet counts per receiver = n C(n-1, r)": (uncoded, lambda n, r: n * comb(n - 1, r)),
    "(30) per block, a packet counts per receiver = (n-1) C(n, r)": (per_block, lambda n, r: (n - 1) * comb(n, r)),
    "(19) coded = (29) / r": (coded, lambda n, r: uncoded(n, r) / r),
    "(19) coded = (30) (n-r) / (r (n-1))": (coded, lambda n, r: per_block(n, r) * Fraction(n - r, r * (n - 1))),
}
"""Formulas of the paper for the sent amounts, as reconstructed from its text.

Each formula has two functions: one counts the amount packet by packet, and one computes the formula.
"""
NAIVE: dict[str, Amount] = {
    "the same blocks by unicast (29)": uncoded,
    "blocks without redundancy by unicast (30)": per_block,
    "the same blocks by multicast": lambda n, r: count("uncoded", n, r).once,
    "SSGD by unicast": lambda n, r: count("SSGD", n, r).per_receiver,
    "SSGD by multicast": lambda n, r: count("SSGD", n, r).once,
}
"""Methods that the paper may mean by "the naive method".

The amounts of naive methods are compared with CSSGD's amount, in which packets count once, as in the paper.
"""


def show(found: Found, section: Section):
    n, nodes = found.conditions.scale.tuning_ranks, range(2, MAX_NODES + 1)
    rows = [[r, *(count(name, n, r) for name in COUNTED)] for r in range(1, n + 1)]
    section.table(f"Sent by {n} nodes together, in gradients: once / per receiver.", ["r", *COUNTED], rows)
    cases = [
        decide.fact(
            all(counted(n, r) == formula(n, r) for n in nodes for r in range(1, n + 1)), text, kind=BY_CONSTRUCTION
        )
        for text, (counted, formula) in FORMULAS.items()
    ]
    accounting = (
        "packets of our plan, counted one by one and compared with our formulas, for "
        f"n = 2 to {MAX_NODES} and all r; nothing is sent"
    )
    section.finding("cssgd-load", accounting, cases)
    cases = [one_nth(name, amount, r, nodes) for name, amount in NAIVE.items() for r in (2, 3)]
    accounting = (
        "packets of all nodes: CSSGD's amount as a share of each naive method's amount, times n; the greatest value "
        f"for n = 3 to {MAX_NODES}"
    )
    section.finding(
        "cssgd-one-nth", accounting, cases, "Compared with the same blocks by unicast, the share is 1/r for all n."
    )
    ways = {"by unicast": NAIVE["SSGD by unicast"], "by multicast": NAIVE["SSGD by multicast"]}
    section.finding(
        "cssgd-ssgd-sends",
        "packets of all nodes for n gradients, SSGD compared with ASGD; in ASGD, a gradient goes to the server and a "
        "model comes back",
        [more_than_asgd(way, sent) for way, sent in ways.items()],
        "A medium that multicasts takes each node's gradient once.",
    )
    section.note("Lengths that r and n divide; else packets are padded by less than a number each.")


def more_than_asgd(way: str, sent: Amount) -> Case:
    """Return the case (comparison) which tests whether SSGD sends more than ASGD, on all numbers of nodes.

    SSGD and ASGD apply equally many gradients in this comparison. The estimate is the least ratio of SSGD's sent
    amount to ASGD's sent amount.
    """
    nodes = range(ASGD_NODES, MAX_NODES + 1)
    least = min(Fraction(sent(n, 1)) / (2 * n) for n in nodes)
    where = f"{way}, n = {ASGD_NODES} to {MAX_NODES}"
    return decide.fact(
        least > 1, where, "ASGD, gradient and model", estimate=float(least), unit="times as much at least"
    )


def one_nth(name: str, naive: Amount, r: int, nodes: range) -> Case:
    """Return the case (comparison) which tests whether CSSGD sends at most 1/n of the amount that a naive method sends.

    The estimate is n times the greatest ratio of CSSGD's sent amount to the naive method's.
    """
    most = max(n * coded(n, r) / naive(n, r) for n in nodes if r < n)
    return decide.fact(most <= 1, f"r = {r}", name, estimate=float(most), unit="times 1/n")
