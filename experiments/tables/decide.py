"""Comparisons of samples, and what they say about a claim.

Runs are compared in pairs that have the same seed, so the same order of samples and the same delays. Of the pairs'
differences (for times and bytes: of their logarithms) the mean and its 95 % interval by Student's t distribution are
taken. A case is decided if that interval does not contain the value that stands for no effect, and if it still does not
once the p values of a finding's evidence are corrected for their number (Holm 1979, "A simple sequentially rejective
multiple test procedure").

A training that ended before it reached its target is known to need more than that: its pair bounds the effect.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy import special

from experiments.tables.outcome import (
    AT_LEAST,
    AT_MOST,
    DIFFERENCE,
    EQUIVALENCE,
    EVIDENCE,
    INCONCLUSIVE,
    REFUTED,
    SAME_DIRECTION,
    SUPPORTED,
    THRESHOLD,
    Case,
)
from experiments.tables.run_spec import MEASURED, SIMULATED
from experiments.tables.sample import Sample

SIGNIFICANCE = 0.05
MIN_DIFFERENCE_PERCENT = {MEASURED: 10.0, SIMULATED: 2.0}
"""Per cent of time from which on one is less than another: most runs that were made twice on the testbed differed by up
to 10 %, steps that were simulated with other seeds by up to 2 %."""
DECIMALS = 12
"""Decimals of a difference that count; the others are errors of rounding."""
BOTH_WAYS = "at least and at most"
"""Bound of differences of which some bound the effect from below and some from above."""

# ---- two samples, paired by seed


def less(
    ours: Sample,
    theirs: Sample,
    condition: str,
    baseline: str,
    unit: str = "% less time",
    number: float | None = None,
    margin: float | None = None,
    source: str = SIMULATED,
    kind: str = EVIDENCE,
) -> Case:
    """Return whether ours is less than theirs: the saving of the mean ratio, on a log scale, in per cent.

    number: the paper's saving, in per cent. margin: the saving from which on it counts; None: that of the source of
    times, 0 where there is none. Raises ValueError if a value is negative.
    """
    margin = MIN_DIFFERENCE_PERCENT.get(source, 0.0) if margin is None else margin
    criterion = _more_than(margin, number, unit)
    blank = _undecided(condition, baseline, unit, source, kind, DIFFERENCE, criterion)
    return _compared(blank, _differences(theirs.map(_log), ours.map(_log)), _saving, margin, number)


def more(
    ours: Sample,
    theirs: Sample,
    condition: str,
    baseline: str,
    unit: str = "points",
    number: float | None = None,
    margin: float = 0.0,
    source: str = SIMULATED,
    kind: str = EVIDENCE,
) -> Case:
    """Return whether ours is more than theirs: the mean difference, in ``unit``; for points, values are per cent.

    number: the paper's difference. margin: the difference from which on it counts.
    """
    criterion = _more_than(margin, number, unit)
    blank = _undecided(condition, baseline, unit, source, kind, DIFFERENCE, criterion)
    return _compared(blank, _differences(ours, theirs), float, margin, number)


def no_worse(
    ours: Sample,
    theirs: Sample,
    condition: str,
    baseline: str,
    margin: float = 1.0,
    unit: str = "points",
    source: str = SIMULATED,
    kind: str = EVIDENCE,
) -> Case:
    """Return whether ours, of which more is better, is less than theirs by no more than the margin: supported if the
    interval of the difference lies above -margin, refuted if it lies below."""
    criterion = f"at most {_amount(margin, unit)} worse"
    blank = _undecided(condition, baseline, unit, source, kind, EQUIVALENCE, criterion)
    return _against_threshold(blank, _differences(ours, theirs), -margin)


# ---- one sample


def at_least(
    sample: Sample,
    threshold: float,
    condition: str,
    unit: str = "",
    baseline: str = "",
    source: str = SIMULATED,
    kind: str = EVIDENCE,
) -> Case:
    """Return whether the mean of the sample is at least the threshold, by its interval."""
    criterion = f"at least {_amount(threshold, unit)}"
    blank = _undecided(condition, baseline, unit, source, kind, THRESHOLD, criterion)
    return _against_threshold(blank, _differences(sample), threshold)


def at_most(
    sample: Sample,
    threshold: float,
    condition: str,
    unit: str = "",
    baseline: str = "",
    source: str = SIMULATED,
    kind: str = EVIDENCE,
) -> Case:
    """Return whether the mean of the sample is at most the threshold, by its interval."""
    above = at_least(sample, threshold, condition, unit, baseline, source, kind)
    case = replace(above, criterion=f"at most {_amount(threshold, unit)}")
    if case.low == case.high == threshold:
        return case
    return replace(case, verdict={SUPPORTED: REFUTED, REFUTED: SUPPORTED}.get(case.verdict, INCONCLUSIVE))


# ---- without statistics


def fact(
    holds: bool | None,
    condition: str,
    baseline: str = "",
    kind: str = EVIDENCE,
    estimate: float | None = None,
    unit: str = "",
    source: str = "",
) -> Case:
    """Return what holds or does not, with nothing left to chance: counted bytes, the place of a minimum.

    holds: None where it is not known.
    """
    verdict = INCONCLUSIVE if holds is None else SUPPORTED if holds else REFUTED
    return Case(condition, baseline, verdict, estimate, None, None, unit, 0, source, kind)


# ---- several cases


def holm(cases: Sequence[Case]) -> list[Case]:
    """Return the cases of a finding; those of its evidence that are not significant once p values are corrected for
    their number become inconclusive."""
    tested = sorted((case.p, index) for index, case in enumerate(cases) if case.kind == EVIDENCE and case.p is not None)
    corrected, found = 0.0, list(cases)
    for rank, (p, index) in enumerate(tested):
        corrected = max(corrected, (len(tested) - rank) * p)
        if corrected >= SIGNIFICANCE and cases[index].verdict != INCONCLUSIVE:
            found[index] = _noted(cases[index], f"not significant as one of {len(tested)} cases")
    return found


# ---- the tests


def _undecided(condition: str, baseline: str, unit: str, source: str, kind: str, test: str, criterion: str) -> Case:
    return Case(
        condition, baseline, INCONCLUSIVE, None, None, None, unit, 0, source, kind, test=test, criterion=criterion
    )


def _more_than(margin: float, number: float | None, unit: str) -> str:
    least = margin if number is None else number
    return f"at least {_amount(least, unit)}" if least else f"more than 0 {unit}"


def _amount(value: float, unit: str) -> str:
    return f"{value:g} {unit.replace('points', 'point') if value == 1 else unit}".strip()


@dataclass(frozen=True)
class _Differences:
    """values: of each pair, or seed, that is known. bound: how they bound the effect. note: what is left out."""

    values: list[float]
    bound: str
    note: str


def _differences(minuend: Sample, subtrahend: Sample | None = None) -> _Differences:
    """Return the differences of pairs with the same seed; of one sample, its values."""
    subtrahend = Sample(dict.fromkeys(minuend.values, 0.0)) if subtrahend is None else subtrahend
    seeds = sorted(minuend.values.keys() | subtrahend.values.keys())
    values, bounds = [], set()
    for seed in seeds:
        a, b = minuend.values.get(seed), subtrahend.values.get(seed)
        bound = [AT_LEAST] * (seed in minuend.bounds) + [AT_MOST] * (seed in subtrahend.bounds)
        if a is None or b is None or len(bound) == 2:
            continue
        values.append(0.0 if a == b else round(a - b, DECIMALS))
        bounds.update(bound)
    left_out = f"{len(seeds) - len(values)} of {len(seeds)} seeds not known" if len(values) < len(seeds) else ""
    return _Differences(values, BOTH_WAYS if len(bounds) == 2 else "".join(bounds), left_out)


def _estimated(blank: Case, differences: _Differences, reference: float, shown: Callable[[float], float]) -> Case:
    """Return the case with its estimate, interval and p value. shown: of a difference, the effect in the case's unit;
    it rises."""
    values, bound = differences.values, differences.bound
    case = replace(blank, seeds=len(values), note=differences.note)
    if bound == BOTH_WAYS:
        return _noted(case, "each side missed its target with some seeds")
    if not values:
        return case
    if set(values) != {math.inf} and not all(map(math.isfinite, values)):
        return _noted(case, "one side is zero, so there is no ratio")
    mean, low, high, p = _t_test(values, reference)
    low = None if low is None or bound == AT_MOST else shown(low)
    high = None if high is None or bound == AT_LEAST else shown(high)
    return replace(case, estimate=shown(mean), low=low, high=high, bound=bound, p=p)


def _t_test(values: list[float], reference: float) -> tuple[float, float | None, float | None, float | None]:
    """Return mean, interval and p value by Student's t test; of values without spread, the interval is a point."""
    if len(values) < 2:
        return values[0], None, None, None
    if len(set(values)) == 1:
        return values[0], values[0], values[0], float(values[0] == reference)
    freedom, mean, error = len(values) - 1, np.mean(values), np.std(values, ddof=1) / math.sqrt(len(values))
    half = special.stdtrit(freedom, 1 - SIGNIFICANCE / 2) * error
    p = 2 * special.stdtr(freedom, -abs(mean - reference) / error)
    return float(mean), float(mean - half), float(mean + half), float(p)


def _side(case: Case, reference: float = 0.0) -> int:
    """Return 1 if the effect is more than the reference, by its interval, -1 if it is less, else 0."""
    if case.p is None or case.p >= SIGNIFICANCE:
        return 0
    if case.estimate > reference:
        return int(case.bound != AT_MOST)
    return -int(case.bound != AT_LEAST)


def _compared(
    blank: Case, differences: _Differences, shown: Callable[[float], float], margin: float, number: float | None
) -> Case:
    """Return the case decided against no effect; what the interval says of the paper's number is noted."""
    case = _estimated(blank, differences, 0.0, shown)
    side = _side(case)
    if number is not None and side >= 0 and case.high is not None and case.high < number:
        case = replace(case, note="; ".join(filter(None, [case.note, f"the interval excludes the paper's {number:g}"])))
    if side == 0:
        return case
    if abs(case.estimate) < margin:
        return _noted(case, f"smaller than the margin of {margin:g}")
    if side < 0:
        return replace(case, verdict=REFUTED)
    if number is None or case.estimate >= number:
        return replace(case, verdict=SUPPORTED)
    if case.bound:
        return _noted(case, f"not known whether it is the paper's {number:g}")
    return replace(case, verdict=SAME_DIRECTION)


def _against_threshold(blank: Case, differences: _Differences, threshold: float) -> Case:
    """Return the case decided against a threshold that may be met exactly."""
    case = _estimated(blank, differences, threshold, float)
    if case.low == case.high == threshold:
        return replace(case, verdict=SUPPORTED, p=0.0)
    return replace(case, verdict={1: SUPPORTED, 0: INCONCLUSIVE, -1: REFUTED}[_side(case, threshold)])


def _noted(case: Case, note: str) -> Case:
    return replace(case, verdict=INCONCLUSIVE, note="; ".join(filter(None, [case.note, note])))


def _log(value: float) -> float:
    if value < 0:
        raise ValueError(f"{value}: times and bytes are not negative")
    return math.log(value) if value else -math.inf


def _saving(log_ratio: float) -> float:
    """Return the saving in per cent, of the logarithm of theirs to ours."""
    return 100 * (1 - math.exp(-log_ratio))
