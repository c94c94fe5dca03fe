"""Classes for the outcome of a table or figure of a paper: its contents, and its findings on the paper's claims.

An outcome is stored as JSON.
"""

import json
from collections import Counter
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from experiments.runner.run_spec import SIMULATED
from grsgd.files import atomic_write
from grsgd.text import printable

SUPPORTED, ALIKE, REFUTED, INCONCLUSIVE = "supported", "no difference", "refuted", "inconclusive"
VERDICTS = SUPPORTED, ALIKE, REFUTED, INCONCLUSIVE
"""The verdicts of a comparison (`Case`) on the direction of a claimed effect."""
AGREES, MORE, LESS = "agrees", "more", "less"
"""Results for the paper's number: a comparison's 95 % interval contains the number, lies above it, or lies below it."""
EVIDENCE, CONTROL, BY_CONSTRUCTION = "evidence", "control", "true by construction"
OFF = "simulated, with an error of more than 10 %"
"""Kinds of comparisons (cases) for a claim.

Only comparisons of the kind evidence count for the verdict on a claim. A control shows whether a cause that the paper
does not claim has the same effect. A comparison is true by construction if the code allows no other result. A
comparison is of the kind `OFF` if its simulated times differ from measured times by more than 10 %, so that only
measured times decide.
"""
AT_LEAST, AT_MOST = "at least", "at most"
"""Kinds of bounds of an effect, for estimates from trainings of which some missed their target accuracy."""
DIFFERENCE, EQUIVALENCE, THRESHOLD, EXACT = "difference", "equivalence", "threshold", "exact"
"""Kinds of statistical tests: of a difference, of being worse by at most a margin, and of a threshold.

``EXACT`` stands for a fact that needs no test.
"""
OPPOSITES = {"less": "more", "fewer": "more", "more": "less", "higher": "lower", "lower": "higher"}
OPPOSITES |= {"faster": "slower", "slower": "faster", "earlier": "later", "later": "earlier"}
"""Words in the units of effects, with the words that replace them if the effect is negative."""


@dataclass(frozen=True)
class Table:
    """A table of texts for a page.

    ``caption`` describes the contents of a row of the table, and states the units.
    """

    caption: str
    headers: list[str]
    rows: list[list[str]]


@dataclass(frozen=True)
class Figure:
    """A figure of an outcome (the results for one table or figure of a paper).

    ``svg``: name of the SVG file in the folder of the outcome. ``times``: True if the figure shows times. ``shows``:
    the quantity that the figure shows, a key of `show.QUANTITIES`.
    """

    caption: str
    svg: str
    times: bool = True
    shows: str = "times"


@dataclass(frozen=True)
class Case:
    """One comparison under one condition, with its verdict on a claim.

    condition: text such as "one rank 4 times slower, n = 8". baseline: the algorithm that is compared with; "" if
    there is none. verdict: one of ``VERDICTS``. estimate: the effect in ``unit``, positive in the claimed direction;
    None if it is unknown. low, high: limits of the effect's 95 % interval; None for a missing limit. unit: text such
    as "% less time", "points", "% fewer bytes". seeds: number of pairs, or number of seeds of the smaller sample; 0
    for an exact comparison. source: source of the times (for example simulated or measured); "" if there are none.
    kind: ``EVIDENCE``, ``CONTROL``, ``BY_CONSTRUCTION`` or ``OFF``.

    bound: ``AT_LEAST`` or ``AT_MOST`` if the estimate is a bound of the effect, else "". p: two-sided p value of no
    effect, or of an effect of exactly the margin or threshold; None without a test. ``p`` is below 0.05 if the verdict
    is significant, and is not corrected for the number of comparisons. simulator_error: difference of simulated from
    measured times, in words. note: reason why the verdict is "inconclusive", and seeds that are left out. test:
    ``DIFFERENCE``, ``EQUIVALENCE``, ``THRESHOLD`` or ``EXACT``. criterion: the condition under which the claim is
    supported, in words. zone: the effect in ``unit`` up to which both algorithms count as alike. number: the paper's
    number, in ``unit``; None if there is none. on_number: ``AGREES``, ``MORE``, ``LESS``, or "" if the number or its
    position is unknown.

    pairs: True if runs with the same seed, which share random numbers, were compared in pairs. seeds_needed: number of
    seeds with which a comparison of this effect and spread decides with a probability of 80 %; None if no number of
    seeds does. spread_low, spread_high: range of the effect over calibrations at different times and the simulator's
    error; None if it is unknown. rates_low, rates_high: range of the effect if one of the algorithms had a learning
    rate next to its tuned one; None if it is unknown or has no limit. ours, theirs: labels of the compared algorithms,
    separated by commas.
    """

    condition: str
    baseline: str
    verdict: str
    estimate: float | None
    low: float | None
    high: float | None
    unit: str
    seeds: int
    source: str = SIMULATED
    kind: str = EVIDENCE
    bound: str = ""
    p: float | None = None
    simulator_error: str = ""
    note: str = ""
    test: str = EXACT
    criterion: str = ""
    zone: float = 0.0
    number: float | None = None
    on_number: str = ""
    pairs: bool = False
    seeds_needed: int | None = None
    spread_low: float | None = None
    spread_high: float | None = None
    rates_low: float | None = None
    rates_high: float | None = None
    ours: str = ""
    theirs: str = ""

    def text(self) -> str:
        """Return the estimate with its interval and number of seeds: ``12.3 % less time (9.0 to 15.1, 5 seeds)``.

        If the estimate is a bound, the text has the interval's limit instead of the estimate: ``at least 9.0 % less
        time (5 seeds)``.
        """
        if self.estimate is None:
            return "not known"
        if self._is_against():
            return self._turned().text()
        seeds = _count(self.seeds, "pair" if self.pairs else "seed") if self.seeds else ""
        behind = ", ".join(filter(None, [self._interval() if self._limit is None else "", seeds]))
        return " ".join(filter(None, [self.bound, self._number(self._named), self.unit, f"({behind})" * bool(behind)]))

    @property
    def _limit(self) -> float | None:
        """The remaining limit of the 95 % interval if the estimate is a bound, else None."""
        return {AT_LEAST: self.low, AT_MOST: self.high}.get(self.bound)

    @property
    def _named(self) -> float | None:
        """Number that `text` states: the estimate, or the limit of the interval if the estimate is a bound."""
        return self.estimate if self._limit is None else self._limit

    def spread(self) -> str:
        """Return the range of the effect over calibrations and the simulator's error, as text; "" if it is unknown."""
        return self._from_to(self.spread_low, self.spread_high)

    def over_rates(self) -> str:
        """Return the range of the effect over learning rates next to the tuned ones, as text; "" if it is unknown."""
        return self._from_to(self.rates_low, self.rates_high)

    def _from_to(self, low: float | None, high: float | None) -> str:
        whole = replace(self, low=low, high=high)
        return (whole._turned() if self._is_against() else whole)._interval()

    def _is_against(self) -> bool:
        """Return True if the number that `text` states is negative and its unit has an opposite, such as "more"."""
        return self._named is not None and self._named < 0 and self.turned_unit() != self.unit

    def turned_unit(self) -> str:
        """Return the unit of an effect in the opposite direction, or the same unit if the unit has no opposite."""
        return " ".join(OPPOSITES.get(word, word) for word in self.unit.split(" "))

    def _turned(self) -> "Case":
        """Return the comparison with the opposite unit, such as "% more time" in place of "% less time"."""
        low, high = (None if limit is None else -limit for limit in (self.high, self.low))
        bound = {AT_LEAST: AT_MOST, AT_MOST: AT_LEAST}.get(self.bound, "")
        return replace(self, estimate=-self.estimate, low=low, high=high, unit=self.turned_unit(), bound=bound)

    def _interval(self) -> str:
        low, high = (None if limit is None else self._number(limit) for limit in (self.low, self.high))
        if low is None and high is None:
            return ""
        if low is None or high is None:
            return f"{high} or less" if low is None else f"{low} or more"
        return "no spread" if self.low == self.high else f"{low} to {high}"

    def _number(self, value: float) -> str:
        if self.unit.startswith("points"):
            return f"{value:+.2f}"
        return f"{value:.1f}" if self.unit.startswith("%") else f"{value:.3g}"


@dataclass(frozen=True)
class Finding:
    """The verdict on one claim of a paper, with the comparisons on which it rests.

    claim: the claim's id in the paper's claims.toml. accounting: how time or bytes were counted, and on which runs.
    cases: the comparisons, with verdicts corrected for their number. reason: the reason why the claim is not
    supported, if it is not. notes: further information for a reader.
    """

    claim: str
    accounting: str
    cases: list[Case]
    reason: str = ""
    notes: list[str] = field(default_factory=list)

    @property
    def evidence(self) -> list[Case]:
        """Return the comparisons of kind ``EVIDENCE``, which alone count for the verdict on the claim."""
        return [case for case in self.cases if case.kind == EVIDENCE]

    @property
    def counts(self) -> dict[str, int]:
        """Return the number of comparisons of kind ``EVIDENCE`` by verdict, in the order of ``VERDICTS``."""
        counts = Counter(case.verdict for case in self.evidence)
        return {verdict: counts[verdict] for verdict in VERDICTS if counts[verdict]}

    @property
    def verdict(self) -> str:
        """Return one verdict if all comparisons of kind ``EVIDENCE`` have the same verdict, else a text with several.

        An example of a text with several verdicts is ``supported in 3 of 4 cases; inconclusive in 1``.
        """
        if not self.evidence:
            built = [case.verdict for case in self.cases if case.kind == BY_CONSTRUCTION]
            return BY_CONSTRUCTION if built and set(built) == {SUPPORTED} else INCONCLUSIVE
        (first, count), *others = self.counts.items()
        if not others:
            return first
        rest = [f"{verdict} in {count}" for verdict, count in others]
        return "; ".join([f"{first} in {count} of {_count(len(self.evidence), 'case')}", *rest])


@dataclass(frozen=True)
class BreakEven:
    """The ratio of communication to computing time from which on one method takes less time than another method.

    at: the ratio, with its 95 % interval from ``low`` to ``high``; None if the method saves no time up to ``last``,
    the greatest tried ratio. The least tried ratio, ``first``, also stands for all ratios below ``first``. here: the
    ratios that the testbed's links give. reaches: the ratio from which on the method saves as much time as the paper
    states; None if it is unknown. is_off: True if the ratio follows from simulated times that differ from measured
    times by more than 10 %.
    """

    method: str
    against: str
    at: float | None
    low: float | None
    high: float | None
    first: float
    last: float
    here: list[float] = field(default_factory=list)
    reaches: float | None = None
    is_off: bool = False

    @property
    def is_known(self) -> bool:
        """Return True if the 95 % interval is shorter than the range of tried ratios."""
        return self.low != self.first or self.high is not None

    def text(self) -> str:
        """Return the ratio with its 95 % interval as text, for example ``0.42 (0.3 to 0.61)``."""
        if self.low is None:
            return f"none up to {self.last:.2g}"
        at, low, high = (
            f"more than {self.last:.2g}" if ratio is None else f"{ratio:.2g}" + " or less" * (ratio == self.first)
            for ratio in (self.at, self.low, self.high)
        )
        return at if low == at == high else f"{at} ({low} to {high})"


@dataclass(frozen=True)
class Outcome:
    """The outcome of one target (table or figure of a paper): its contents, and the verdicts on claims.

    notes: remarks for readers, for example that a number was computed, not measured.
    """

    target: str
    title: str
    paper: str
    scale: str
    command: str
    tables: list[Table] = field(default_factory=list)
    figures: list[Figure] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    provenance: dict[str, str] = field(default_factory=dict)
    """Facts on the origin of the runs: machine, commits, sources of times, and configurations."""
    runs: list[dict[str, str]] = field(default_factory=list)
    """All runs on which the outcome rests, each with ``command``, ``file``, ``commit`` and ``source``."""
    learning_rates: Table | None = None
    """The table of the trainings that chose the learning rates."""
    break_evens: list[BreakEven] = field(default_factory=list)
    simulator_errors: list[tuple[str, float]] = field(default_factory=list)
    """Relative differences of simulated from measured times of equal trainings, with the configuration's name."""

    def save(self, folder: Path):
        """Write the outcome to its JSON file in ``folder``; an interrupted call leaves no incomplete file."""
        with atomic_write(folder / f"{self.target}.json") as temporary:
            temporary.write_text(json.dumps(asdict(self), indent=1))


def load(path: Path) -> Outcome:
    """Read an outcome from a JSON file; raise ValueError if the file does not contain an outcome."""
    try:
        content = json.loads(path.read_text())
        content["tables"] = [Table(**table) for table in content["tables"]]
        content["figures"] = [Figure(**figure) for figure in content["figures"]]
        content["findings"] = [_finding(finding) for finding in content["findings"]]
        content["break_evens"] = [BreakEven(**one) for one in content.get("break_evens", [])]
        if content["learning_rates"]:
            content["learning_rates"] = Table(**content["learning_rates"])
        return Outcome(**content)
    except (ValueError, TypeError, KeyError) as error:
        raise ValueError(f"{path} is damaged, make its target again: {printable(str(error))}") from None


def _finding(content: dict) -> Finding:
    return Finding(**content | {"cases": [Case(**case) for case in content["cases"]]})


def _count(number: int, what: str) -> str:
    return f"{number} {what}" + "s" * (number != 1)
