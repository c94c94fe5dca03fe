"""Tables of the measurements, and verdicts on the savings if one packet reaches several receivers."""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from scipy import special
from tabulate import tabulate

from experiments.multicast.measure import MediumNumbers, MediumRun
from experiments.multicast.methods import AGAIN, IP, LOSSES, RING, Method, methods

Results = Mapping[MediumRun, MediumNumbers]
"""The numbers (`MediumNumbers`) of each run."""
TIMES_AS_FAST = 3.4
"""Expected ratio of a ring all-reduce's step time to CSSGD's on 4 ranks with redundancy 3, if communication dominates.

The expected ratio is three quarters of 4.5, the factor by which CSSGD sends fewer bytes than the ring all-reduce.
"""
SLOWER_AT_MOST = dict(zip(LOSSES, (0.10, 0.30), strict=True))
"""Greatest expected increase of a step's time by lost datagrams (0.10 means 10 %), by the fraction that is lost."""
BYTES_WITHIN, GROUPED_WITHIN, SAME_WITHIN = 0.03, 0.10, 0.03
"""Greatest allowed relative deviations: of CSSGD's bytes, of grouped schemes' bytes, and of the control's time."""
WIRE_BYTES = 8928 / (8928 + 42 + 28 + 14)
"""Fraction of an Ethernet frame that is payload, for datagrams of 9000 bytes.

The part of the frame that is not payload consists of the headers of grsgd, IP, UDP and Ethernet.
"""
HEADERS = ["method", "ms a step", "times as fast as the ring", "M sent a step", "counted", "sent again"]


MIN_FOR_INTERVAL = 5
"""Least number of rounds for which a 95 % interval is computed; with fewer rounds, tables have the range.

The range of the rounds contains the true median with a probability of 50 % (two rounds), 75 % (three) or 88 % (four).
"""
CONFIDENCE = 0.95


class Interval(NamedTuple):
    """A ratio over several rounds (mean or median), with the two ends of its interval and the number of rounds.

    With five rounds or more, ``middle`` is the geometric mean. With five rounds or more, ``low`` to ``high`` is the 95
    % interval of ``middle``, by Student's t distribution of the logarithms. With fewer than five rounds, ``middle`` is
    the median, and ``low`` to ``high`` is the range of the rounds.
    """

    middle: float
    low: float
    high: float
    rounds: int

    def __str__(self):
        return f"{self.middle:.2f} ({self.kind}{self.low:.2f} to {self.high:.2f})"

    @property
    def kind(self) -> str:
        """Return "range " if ``low`` to ``high`` is the range of the rounds, and "" if it is a 95 % interval."""
        return "range " if self.rounds < MIN_FOR_INTERVAL else ""


def interval(ratios: Sequence[float]) -> Interval:
    rounds, ratios = len(ratios), np.asarray(ratios, float)
    if rounds < MIN_FOR_INTERVAL:
        return Interval(float(np.median(ratios)), float(ratios.min()), float(ratios.max()), rounds)
    logs = np.log(ratios)
    half = special.stdtrit(rounds - 1, (1 + CONFIDENCE) / 2) * logs.std(ddof=1) / np.sqrt(rounds)
    middle, low, high = np.exp(logs.mean() + half * np.array([0, -1, 1])).tolist()
    return Interval(middle, low, high, rounds)


def sample(results: Results, ranks: int, title: str, what: str) -> np.ndarray:
    """Return the values of the field ``what`` of `MediumNumbers` for a method, one value per round."""
    rounds = sorted(point.round for point in results if point[:2] == (ranks, title))
    return np.array([getattr(results[MediumRun(ranks, title, number)], what) for number in rounds])


def ratio(results: Results, ranks: int, title: str, reference: str) -> Interval:
    """Return a step's seconds in the method ``reference``, divided by the seconds in ``title``, paired by round."""
    ours, theirs = (sample(results, ranks, name, "seconds") for name in (title, reference))
    rounds = min(len(ours), len(theirs))
    return interval(theirs[:rounds] / ours[:rounds])


def table(results: Results, ranks: int) -> str:
    rows = []
    for method in methods(ranks):
        seconds, sent, expected, repaired = (
            sample(results, ranks, method.title, what) for what in ("seconds", "models", "expected", "repaired")
        )
        rows.append(
            [
                method.title,
                f"{1e3 * np.median(seconds):.0f}",
                str(ratio(results, ranks, method.title, RING)),
                f"{np.median(sent):.2f}",
                f"{expected[0]:.2f}",
                f"{np.median(repaired) / 1024:.0f} KiB" if method.transport == IP else "",
            ]
        )
    return tabulate(rows, HEADERS, tablefmt="github", colalign=("left", *["right"] * 5), disable_numparse=True)


def verdicts(results: Results, ranks: int) -> Iterator[str]:
    """Yield sentences with the verdicts on the time and the bytes of each method."""
    compared = {method.title: method for method in methods(ranks)}
    again = ratio(results, ranks, AGAIN, RING)
    same = word(abs(again.middle - 1) <= SAME_WITHIN)
    yield f"Control: the ring against itself: {again} times as fast, {SAME_WITHIN:.0%} allowed: {same}."
    coded = next(each for each in compared.values() if each.transport == IP)
    found = ratio(results, ranks, coded.title, RING)
    wanted = f", at least {TIMES_AS_FAST} wanted: {word(found.low >= TIMES_AS_FAST)}" if ranks == 4 else ""
    yield f"{coded.title} is {found} times as fast as the ring{wanted}."
    copies = ratio(results, ranks, f"{coded.title}, MPI", RING)
    yield f"Control: the same packets by MPI's broadcast, which sends copies: {copies} times as fast."
    yield on_bytes(results, ranks, coded)
    for method in compared.values():
        if method.scheme.startswith("grouped"):
            yield on_group(results, ranks, method)
    for loss in LOSSES:
        lossy = ratio(results, ranks, coded.title, f"{coded.title}, {loss:.0%} lost")
        most = 1 + SLOWER_AT_MOST[loss]
        yield (
            f"With {loss:.0%} of the datagrams lost a step takes {lossy} times as long, at most {most:.2f} wanted: "
            f"{word(lossy.high <= most)}."
        )


def on_bytes(results: Results, ranks: int, method: Method) -> str:
    """Return a sentence that compares the bytes of network interfaces with the counted bytes, headers included."""
    sent, counted = (sample(results, ranks, method.title, what) for what in ("models", "expected"))
    found = interval(sent / (counted / WIRE_BYTES))
    more, low, high = (100 * (share - 1) for share in found[:3])
    holds = max(abs(low), abs(high)) <= 100 * BYTES_WITHIN
    return (
        f"Interfaces send {more:+.1f} % ({found.kind}{low:+.1f} to {high:+.1f}) against the "
        f"bytes counted once, with headers, {BYTES_WITHIN:.0%} wanted: {word(holds)}."
    )


def on_group(results: Results, ranks: int, method: Method) -> str:
    """Return a sentence that compares the bytes of a grouped scheme with the bytes of n/r models.

    n is the number of ranks, and r is the redundancy.
    """
    promised = ranks / method.r
    found = interval(sample(results, ranks, method.title, "models") / promised)
    holds = abs(found.low - 1) <= GROUPED_WITHIN and abs(found.high - 1) <= GROUPED_WITHIN
    return (
        f"{method.title} sends {found} times the n/r = {promised:g} M that it promises, {GROUPED_WITHIN:.0%} wanted: "
        f"{word(holds)}."
    )


def word(holds: bool) -> str:
    return "holds" if holds else "does not hold"
