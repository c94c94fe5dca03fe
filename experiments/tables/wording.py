"""The words in which pages and reports state claims, verdicts and comparisons."""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from experiments.runner.outcome import (
    ALIKE,
    BY_CONSTRUCTION,
    CONTROL,
    EVIDENCE,
    INCONCLUSIVE,
    OFF,
    OPPOSITES,
    REFUTED,
    SUPPORTED,
    Case,
)
from experiments.runner.run_spec import MEASURED, SIMULATED, TIMING_ONLY, UNIT_STEPS

MIXED, NOT_MADE, NOT_COVERED = "supported in some cases", "not made yet", "no target decides it"
SYMBOLS = {
    SUPPORTED: "✓",
    MIXED: "◐",
    ALIKE: "=",
    REFUTED: "✗",
    INCONCLUSIVE: "?",
    BY_CONSTRUCTION: "≡",
    NOT_MADE: "–",
    NOT_COVERED: "∅",
}
"""The symbol of each verdict on a claim; the most favourable verdict is first."""
SOURCES = {
    MEASURED: "measured",
    SIMULATED: "simulated",
    TIMING_ONLY: "simulated, times alone",
    UNIT_STEPS: "counted in steps",
    "": "",
}
SOURCE = re.compile(r",? ?\bmeasured\b,? ?")
"""Pattern for the word "measured" in a condition, which states the source of its times."""
VERDICTS = {
    SUPPORTED: """the effect is significant in the claimed direction, and the estimate is more than the equivalence \
zone: 10 % of measured times, 5 % of simulated times and of bytes, 1 point of accuracy""",
    ALIKE: "the interval lies within the equivalence zone, so any difference is too small to count",
    REFUTED: """the effect is significant in the other direction; a claim is refuted if some of its cases are, \
and none is supported""",
    INCONCLUSIVE: """these runs cannot tell. Either the interval contains both directions or exceeds the equivalence \
zone; or the effect is not significant with few seeds, or as one of several cases; or too many trainings did not reach \
their target""",
}
"""The meaning of each verdict on a comparison (case), for readers of a page."""
CLAIM_WORDS = {
    MIXED: "and not in the other cases, which the grid names",
    BY_CONSTRUCTION: "the claim follows from the construction of the method or of the count; shown, but no evidence",
    NOT_MADE: "a target for the claim exists, but was not made at this scale",
    NOT_COVERED: "no target tries the claim; the reason is given with the claim",
}
"""The meaning of further verdicts, which a claim can have, but not a single comparison (case)."""
OTHER_WORDS = {
    EVIDENCE: """a case that is counted; if only some cases of a finding are significant, they are corrected for \
their number by Hochberg's method""",
    "pairs": "runs with the same seed, which share random numbers; if a case gives seeds, its sides are independent",
    CONTROL: "a comparison that shows what else has the same effect, such as one rank alone; not counted",
    OFF: """simulated times of one of the two algorithms differ from measured times by more than 10 %: measured \
trainings decide, if there are any; shown, but not counted""",
    "measured": """wall-clock time on this machine; trainings that share the machine are compared only with each \
other""",
    "simulated": """computed from measured times of a step and of the network; the cases state the differences of \
simulated from measured times""",
    "simulated times only": "no time of these cases was measured: the verdict is as good as the simulator",
    "at least, at most": """trainings of one side ended before they reached their target, so their true \
times are longer, and the effect is known from one side only; the number is the limit of its 95 % interval""",
    "points": "per cent of the test examples, as a difference of two accuracies",
}
NO_NUMBER = "no number could be had"
MAX_COLUMNS = 4
"""Greatest number of columns of a grid of comparisons.

A grid that would have more columns has its rows and columns exchanged.
"""


def symbol(verdict: str) -> str:
    """Return the symbol for a verdict on a comparison or a claim."""
    return SYMBOLS[verdict]


def overall(cases: Iterable[Case]) -> str:
    """Return the verdict on a claim, a key of ``SYMBOLS``, from all comparisons on the claim.

    The claim is supported if all comparisons that count as evidence support it, and mixed if only some do. If no
    comparison supports the claim, the more frequent of the verdicts "refuted" and "no difference" is returned. The
    verdict is "refuted" if "refuted" and "no difference" are equally frequent, and "inconclusive" if no comparison is
    decided.
    """
    cases = list(cases)
    counts = Counter(case.verdict for case in cases if case.kind == EVIDENCE)
    if not counts:
        return BY_CONSTRUCTION if any(case.kind == BY_CONSTRUCTION for case in cases) else INCONCLUSIVE
    if counts[SUPPORTED]:
        return SUPPORTED if len(counts) == 1 else MIXED
    if counts.keys() == {INCONCLUSIVE}:
        return INCONCLUSIVE
    return max((REFUTED, ALIKE), key=lambda verdict: counts[verdict])


def simulated_only(cases: Sequence[Case]) -> bool:
    """Return True if some of the evidence has times, and none of these times was measured."""
    sources = {case.source for case in cases if case.kind == EVIDENCE and case.source}
    return bool(sources) and MEASURED not in sources


def without_source(condition: str) -> str:
    """Return a condition without the word for the source of its times."""
    return SOURCE.sub(", ", condition).strip(", ")


def condition(case: Case) -> str:
    """Return the condition of a comparison, with a word for the source of its times at the end."""
    return ", ".join(filter(None, [without_source(case.condition), SOURCES.get(case.source, case.source)]))


def estimate(case: Case) -> str:
    """Return the estimate of a comparison with its interval, or the verdict if there is no estimate."""
    return case.verdict if case.estimate is None else case.text()


def case_name(case: Case) -> str:
    """Return the name of a comparison as text, ``baseline: condition``, in which empty parts are left out."""
    return ": ".join(filter(None, [case.baseline, condition(case)]))


def paper_figure(claim: dict) -> str:
    """Return the paper's statement for a claim: a text, or number, range and unit as far as they are given."""
    number, low, high = (claim.get(key) for key in ("number", "low", "high"))
    if isinstance(number, str):
        return number
    if low is not None and high is not None:
        span = f"{low} to {high}"
    else:
        span = f"at least {low}" if low is not None else f"at most {high}" if high is not None else ""
    figure = span if number is None else f"{number} ({span})" if span else f"{number}"
    return f"{figure} {claim.get('unit', '')}".strip() if figure else NO_NUMBER


def middle(cases: Sequence[Case]) -> str:
    """Return the comparison with the median estimate as text, among the comparisons that count as evidence.

    Returns "" if no comparison has an estimate. Comparisons whose unit differs from the first comparison's unit are
    ignored. If the number of comparisons is even, the less favourable of the two middle ones is taken.
    """
    ordered = _by_estimate(cases)
    if not ordered:
        return ""
    return ("" if len(ordered) == 1 else "middle case: ") + _clause(ordered[(len(ordered) - 1) // 2])


def _by_estimate(cases: Sequence[Case]) -> list[Case]:
    evidence = of_one_unit(case for case in cases if case.kind == EVIDENCE)
    return sorted(evidence, key=lambda case: case.estimate)


def of_one_unit(cases: Iterable[Case]) -> list[Case]:
    """Return the comparisons with an estimate whose unit equals the unit of the first comparison with an estimate."""
    known = [case for case in cases if case.estimate is not None]
    return [case for case in known if case.unit == known[0].unit]


def _clause(case: Case) -> str:
    """Return the estimate, baseline and condition of a comparison as text."""
    compares = OPPOSITES.keys() & set(case.text().split())
    against = f" {'than' if compares else 'against'} {case.baseline}" if case.baseline else ""
    return ", ".join(filter(None, [case.text() + against, condition(case)]))


@dataclass(frozen=True)
class Grid:
    """A table of comparisons.

    corner: header of the column of row names. rows: for each row its name, and the comparisons in each of its cells.
    """

    corner: str
    columns: list[str]
    rows: list[tuple[str, list[list[Case]]]]


def grid(cases: Sequence[Case]) -> Grid:
    """Return the comparisons by baseline (rows) and condition (columns), or the reverse if there are many conditions.

    Baselines whose comparisons do not count as evidence come last.
    """
    ordered = sorted(cases, key=lambda case: case.kind != EVIDENCE)
    baselines = list(dict.fromkeys(case.baseline for case in ordered))
    conditions = list(dict.fromkeys(condition(case) for case in cases))
    cells = {}
    for case in cases:
        cells.setdefault((case.baseline, condition(case)), []).append(case)
    if len(conditions) <= max(MAX_COLUMNS, len(baselines)):
        rows = [(name, [cells.get((name, column), []) for column in conditions]) for name in baselines]
        return Grid("against" if any(baselines) else "", conditions, rows)
    rows = [(name, [cells.get((column, name), []) for column in baselines]) for name in conditions]
    return Grid("where", baselines, rows)
