"""The outcome of a table or figure of a paper: its parts, and what it says about the paper's claims. Kept as JSON."""

import json
from collections import Counter
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from experiments.runner.run_spec import SIMULATED
from grsgd.files import atomic_write
from grsgd.text import printable

SUPPORTED, ALIKE, REFUTED, INCONCLUSIVE = "supported", "no difference", "refuted", "inconclusive"
VERDICTS = SUPPORTED, ALIKE, REFUTED, INCONCLUSIVE
"""The verdicts of a case on the direction of a claim."""
AGREES, MORE, LESS = "agrees", "more", "less"
"""The answers of a case on the paper's number: the interval holds the number, lies above it, or lies below it."""
EVIDENCE, CONTROL, BY_CONSTRUCTION = "evidence", "control", "true by construction"
OFF = "simulated, with an error of more than 10 %"
"""Kinds of cases. Only evidence is counted. A control shows what else has the same effect; what is true by construction
could not have come out otherwise; where the simulator is far off, the clock decides."""
AT_LEAST, AT_MOST = "at least", "at most"
"""How an estimate bounds the effect where one of the two sides did not reach its target."""
DIFFERENCE, EQUIVALENCE, THRESHOLD, EXACT = "difference", "equivalence", "threshold", "exact"
"""Kinds of tests: whether two sides differ, whether one is not worse than the other by more than a margin, whether one
is on the right side of a threshold; or nothing, since nothing is left to chance."""
OPPOSITES = {"less": "more", "fewer": "more", "more": "less", "higher": "lower", "lower": "higher"}
OPPOSITES |= {"faster": "slower", "slower": "faster", "earlier": "later", "later": "earlier"}
"""Words of units, and what they become where the estimate is negative."""


@dataclass(frozen=True)
class Table:
    """``headers`` and ``rows`` are texts, ready to print; ``caption`` says what a row is, and the units."""

    caption: str
    headers: list[str]
    rows: list[list[str]]


@dataclass(frozen=True)
class Figure:
    """``svg``: a file name, in the folder of the outcome. ``times``: whether it shows some; ``shows``: which, a key of
    `show.QUANTITIES`."""

    caption: str
    svg: str
    times: bool = True
    shows: str = "times"


@dataclass(frozen=True)
class Case:
    """One comparison under one condition, and what it says about a claim.

    condition: where it was made, such as "one rank 4 times slower, n = 8". baseline: against what; empty if there is
    none. verdict: one of ``VERDICTS``. estimate: in ``unit``, positive in the claimed direction; None where not known.
    low, high: its 95 % interval; None where there is no such limit. unit: such as "% less time", "points", "% fewer
    bytes". seeds: how many pairs it rests on, or how many seeds of the side that has fewer; 0 if it is exact.
    source: where its times come from; empty if there are none. kind: ``EVIDENCE``, ``CONTROL``, ``BY_CONSTRUCTION`` or
    ``OFF``.
    bound: ``AT_LEAST`` or ``AT_MOST`` where the estimate is one. p: two-sided, of no effect (or of exactly the margin
    or threshold), below 0.05 where the verdict is significant, not corrected for the number of cases; None without a
    test. simulator_error: how far simulated times were from measured ones, in words. note: why nothing is decided, and
    what seeds are left out. test: ``DIFFERENCE``, ``EQUIVALENCE``, ``THRESHOLD`` or ``EXACT``. criterion: what must be
    so for it to be supported, in words. zone: the equivalence zone, the effect in ``unit`` up to which two sides count
    as alike. number: the paper's number, in ``unit``; None if there is none. on_number: ``AGREES``, ``MORE``, ``LESS``,
    or empty where there is no number or its place is not known. pairs: whether runs with the same seed, which share
    their random numbers, were compared in pairs. seeds_needed: how many seeds decide it with a probability of 80 %, if
    the effect and its spread are those found here; None if seeds would not. spread_low, spread_high: the range of
    the effect over calibrations at different times and the simulator's error; None where not known. rates_low,
    rates_high: the range of the effect where either side has one of the learning rates beside its tuned one; None where
    not known, or without limit. ours, theirs: the labels of the algorithms on the two sides; empty where they are
    several.
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
        """Return the estimate, its interval and the seeds or pairs: ``12.3 % less time (9.0 to 15.1, 5 seeds)``."""
        if self.estimate is None:
            return "not known"
        if self._is_against():
            return self._turned().text()
        seeds = _count(self.seeds, "pair" if self.pairs else "seed") if self.seeds else ""
        behind = ", ".join(filter(None, [self._interval(), seeds]))
        return " ".join(
            filter(None, [self.bound, self._number(self.estimate), self.unit, f"({behind})" * bool(behind)])
        )

    def spread(self) -> str:
        """Return the range over calibrations and the simulator's error, in the unit of the text; empty if not known."""
        return self._from_to(self.spread_low, self.spread_high)

    def over_rates(self) -> str:
        """Return the range over learning rates beside the tuned ones, in the unit of the text; empty if not known."""
        return self._from_to(self.rates_low, self.rates_high)

    def _from_to(self, low: float | None, high: float | None) -> str:
        whole = replace(self, low=low, high=high)
        return (whole._turned() if self._is_against() else whole)._interval()

    def _is_against(self) -> bool:
        """Whether the estimate is negative, and there is a word for that."""
        return self.estimate is not None and self.estimate < 0 and self.turned_unit() != self.unit

    def turned_unit(self) -> str:
        """Return the unit of an effect in the other direction; the same if there is no word for it."""
        return " ".join(OPPOSITES.get(word, word) for word in self.unit.split(" "))

    def _turned(self) -> "Case":
        """Return the same with the opposite unit."""
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
    """One claim held against what was measured here.

    claim: an id of the paper's claims.toml. accounting: how time or bytes were counted, and on what. cases: corrected
    for their number. reason: why the claim is not supported where it is not. notes: what else a reader must know.
    """

    claim: str
    accounting: str
    cases: list[Case]
    reason: str = ""
    notes: list[str] = field(default_factory=list)

    @property
    def evidence(self) -> list[Case]:
        """The cases that are counted."""
        return [case for case in self.cases if case.kind == EVIDENCE]

    @property
    def counts(self) -> dict[str, int]:
        """How many cases of the evidence have each verdict, in the order of ``VERDICTS``."""
        counts = Counter(case.verdict for case in self.evidence)
        return {verdict: counts[verdict] for verdict in VERDICTS if counts[verdict]}

    @property
    def verdict(self) -> str:
        """One word where all evidence agrees, else ``supported in 3 of 4 cases; inconclusive in 1``."""
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
    """From which ratio of communication to computation on a method takes less time than another one.

    at: the ratio, from ``low`` to ``high`` with its 95 % interval; None: nowhere up to the greatest ratio that was
    tried, ``last``. The smallest, ``first``, stands for there or anywhere below. here: the ratios of the testbed's
    links. reaches: from where on it saves as much as the paper says; None if that is not known.
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

    def text(self) -> str:
        """Return the ratio with its interval: ``0.42 (0.3 to 0.61)``."""
        if self.low is None:
            return f"none up to {self.last:.2g}"
        at, low, high = (
            f"more than {self.last:.2g}" if ratio is None else f"{ratio:.2g}" + " or less" * (ratio == self.first)
            for ratio in (self.at, self.low, self.high)
        )
        return at if low == at == high else f"{at} ({low} to {high})"


@dataclass(frozen=True)
class Outcome:
    """All about one target. notes: what a reader must know to read it, such as what was computed and not measured."""

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
    """Machine, commits of the runs, sources of times, configurations."""
    runs: list[dict[str, str]] = field(default_factory=list)
    """Every run that went into it: ``command``, ``file``, ``commit``, ``source``."""
    learning_rates: Table | None = None
    """The trials in which the learning rates were chosen."""
    break_evens: list[BreakEven] = field(default_factory=list)
    simulator_errors: list[tuple[str, float]] = field(default_factory=list)
    """How far simulated times are from measured ones of the same trainings, as shares, by the configuration's name."""

    def save(self, folder: Path):
        """Write it as a whole or not at all."""
        with atomic_write(folder / f"{self.target}.json") as temporary:
            temporary.write_text(json.dumps(asdict(self), indent=1))


def load(path: Path) -> Outcome:
    """Raises ValueError if the file does not hold one."""
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
