"""Functions that compare samples (values by seed) statistically, and return verdicts on claims.

A comparison under one condition (`Case`) has two results. The first result of a comparison is the verdict on the
direction of the effect. The effect may have the claimed or the opposite direction significantly. If the 95 % interval
of the effect lies within the equivalence zone, there is no difference. The second result of a comparison concerns the
paper's number, which lies in, above or below the 95 % interval. For times and bytes, the 95 % interval is computed
from the logarithm of the ratio.

The p values of all comparisons that are evidence for one claim are corrected for their number. The p values are
corrected by the procedure of Hochberg (1988, "A sharper Bonferroni procedure for multiple tests of significance"). If
every comparison of a claim is significant by itself, all of them remain significant after the correction. The
correction therefore does not change the verdict "supported in all cases". The correction matters for a single
significant comparison among many that are not significant.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

from experiments.runner.effect import BOTH_WAYS, SIGNIFICANCE, Effect, level, of_one, paired, seeds_to_decide, unpaired
from experiments.runner.occasions import CALIBRATIONS
from experiments.runner.outcome import (
    AGREES,
    ALIKE,
    AT_LEAST,
    AT_MOST,
    DIFFERENCE,
    EQUIVALENCE,
    EVIDENCE,
    INCONCLUSIVE,
    LESS,
    MORE,
    REFUTED,
    SUPPORTED,
    THRESHOLD,
    Case,
)
from experiments.runner.run_spec import MEASURED, SIMULATED, TIMING_ONLY
from experiments.runner.sample import Sample

ZONE_PERCENT = 5.0
"""Difference in time or bytes, in per cent, up to which two algorithms count as alike."""
ZONES_PERCENT = {MEASURED: 10.0}
"""Per cent that replace `ZONE_PERCENT`, by the source of the compared times.

Most measured runs that were repeated on the testbed differed by up to 10 %, however many seeds they had.
"""
ZONE_POINTS = 1.0
"""Difference in accuracy, in percentage points, up to which two algorithms count as alike."""

NUMBER_DECIMALS = 6
"""Number of decimals that count when a limit is compared with the paper's number; others are rounding errors."""
CALIBRATIONS_OF = {SIMULATED: CALIBRATIONS, TIMING_ONLY: CALIBRATIONS}
"""Number of calibrations from which the times of compared runs are simulated, by the source of the times."""

# ---- functions that compare two samples


def less(
    ours: Sample,
    theirs: Sample,
    condition: str,
    baseline: str,
    unit: str = "% less time",
    number: float | None = None,
    zone: float | None = None,
    source: str = SIMULATED,
    kind: str = EVIDENCE,
    pairs: bool = False,
) -> Case:
    """Return the comparison that tests whether ``ours`` is less than ``theirs``, in per cent.

    The estimate is the saving in per cent, computed from the mean logarithm of the ratio of ``theirs`` to ``ours``.
    number: the paper's saving, in per cent. zone: the saving up to which the two samples count as alike; None takes
    the zone of the source of times. pairs: True if runs with the same seed share their random numbers. Raises
    ValueError if a value is negative.
    """
    zone = ZONES_PERCENT.get(source, ZONE_PERCENT) if zone is None else zone
    blank = _blank(condition, baseline, unit, source, kind, DIFFERENCE, _more_than(zone, unit), zone, number, pairs)
    blank = _named(blank, ours, theirs)
    return _compared(blank, _effect(theirs.map(_log), ours.map(_log), blank), _saving, -math.log1p(-zone / 100))


def more(
    ours: Sample,
    theirs: Sample,
    condition: str,
    baseline: str,
    unit: str = "points",
    number: float | None = None,
    zone: float | None = None,
    source: str = SIMULATED,
    kind: str = EVIDENCE,
    pairs: bool = False,
) -> Case:
    """Return the comparison that tests whether ``ours`` is more than ``theirs``, by the difference.

    The estimate is the mean of ``ours`` minus the mean of ``theirs``, in ``unit``. With the unit "points", the values
    of the samples are per cent. number: the paper's difference. zone: the difference up to which the two samples count
    as alike; None takes 1 for points, and 0 for any other unit. pairs: True if runs with the same seed share their
    random numbers.
    """
    zone = (ZONE_POINTS if unit == "points" else 0.0) if zone is None else zone
    blank = _blank(condition, baseline, unit, source, kind, DIFFERENCE, _more_than(zone, unit), zone, number, pairs)
    blank = _named(blank, ours, theirs)
    return _compared(blank, _effect(ours, theirs, blank), float, zone)


def no_worse(
    ours: Sample,
    theirs: Sample,
    condition: str,
    baseline: str,
    margin: float = 1.0,
    unit: str = "points",
    source: str = SIMULATED,
    kind: str = EVIDENCE,
    pairs: bool = False,
) -> Case:
    """Return the comparison that tests whether ``ours`` is less than ``theirs`` by at most ``margin``.

    Greater values of a sample are better. The claim is supported if the 95 % interval of ``ours`` minus ``theirs``
    lies above -margin, and refuted if the interval lies below -margin.
    """
    criterion = f"at most {_amount(margin, unit)} worse"
    blank = _named(_blank(condition, baseline, unit, source, kind, EQUIVALENCE, criterion, pairs=pairs), ours, theirs)
    return _against_threshold(blank, _effect(ours, theirs, blank), -margin)


# ---- functions that compare one sample with a threshold


def at_least(
    sample: Sample,
    threshold: float,
    condition: str,
    unit: str = "",
    baseline: str = "",
    source: str = SIMULATED,
    kind: str = EVIDENCE,
) -> Case:
    """Return the comparison that tests whether the mean of ``sample`` is >= ``threshold``, by the mean's interval."""
    criterion = f"at least {_amount(threshold, unit)}"
    blank = _named(_blank(condition, baseline, unit, source, kind, THRESHOLD, criterion), sample)
    return _against_threshold(blank, of_one(sample, CALIBRATIONS_OF.get(source, 1)), threshold)


def at_most(
    sample: Sample,
    threshold: float,
    condition: str,
    unit: str = "",
    baseline: str = "",
    source: str = SIMULATED,
    kind: str = EVIDENCE,
) -> Case:
    """Return the comparison that tests whether the mean of ``sample`` is <= ``threshold``, by the mean's interval."""
    above = at_least(sample, threshold, condition, unit, baseline, source, kind)
    case = replace(above, criterion=f"at most {_amount(threshold, unit)}")
    if case.low == case.high == threshold:
        return case
    return replace(case, verdict={SUPPORTED: REFUTED, REFUTED: SUPPORTED}.get(case.verdict, INCONCLUSIVE))


# ---- facts without statistics


def fact(
    holds: bool | None,
    condition: str,
    baseline: str = "",
    kind: str = EVIDENCE,
    estimate: float | None = None,
    unit: str = "",
    source: str = "",
    rests_on: Sample | None = None,
) -> Case:
    """Return the result (case) for a claim on a fact that involves no chance, such as counted bytes.

    holds: True if the fact is true, False if it is not, and None if that is unknown. rests_on: the times from which
    the fact follows, if any.
    """
    verdict = INCONCLUSIVE if holds is None else SUPPORTED if holds else REFUTED
    return _named(Case(condition, baseline, verdict, estimate, None, None, unit, 0, source, kind), rests_on)


# ---- functions on several comparisons


def corrected(cases: Sequence[Case]) -> list[Case]:
    """Return the comparisons (cases) of a claim, with verdicts corrected for the number that are evidence.

    A comparison whose p value is not significant after the correction becomes inconclusive.
    """
    tested = [(case.p, index) for index, case in enumerate(cases) if case.kind == EVIDENCE and case.p is not None]
    least, found = 1.0, list(cases)
    for rank, (p, index) in enumerate(sorted(tested, reverse=True), 1):
        least = min(least, rank * p)
        if least >= SIGNIFICANCE and cases[index].verdict in (SUPPORTED, REFUTED):
            found[index] = _noted(cases[index], f"not significant as one of {len(tested)} cases")
    return found


# ---- functions that make the tests


def _blank(
    condition: str,
    baseline: str,
    unit: str,
    source: str,
    kind: str,
    test: str,
    criterion: str,
    zone: float = 0.0,
    number: float | None = None,
    pairs: bool = False,
) -> Case:
    """Return a comparison (case) without estimate and verdict, which functions of this module add."""
    return Case(
        condition,
        baseline,
        INCONCLUSIVE,
        None,
        None,
        None,
        unit,
        0,
        source,
        kind,
        test=test,
        criterion=criterion,
        zone=zone,
        number=number,
        pairs=pairs,
    )


def _named(case: Case, ours: Sample | None = None, theirs: Sample | None = None) -> Case:
    """Return a comparison (case) to which the labels of the compared algorithms are added."""
    ours, theirs = (", ".join(sorted(side.algorithms)) if side else "" for side in (ours, theirs))
    return replace(case, ours=ours, theirs=theirs)


def _more_than(zone: float, unit: str) -> str:
    return f"more than {_amount(zone, unit)}"


def _amount(value: float, unit: str) -> str:
    return f"{value:g} {unit.replace('points', 'point') if value == 1 else unit}".strip()


def _effect(minuend: Sample, subtrahend: Sample, case: Case) -> Effect:
    """Return the difference of two samples as an `Effect`, paired or unpaired as ``case`` states."""
    return (paired if case.pairs else unpaired)(minuend, subtrahend, CALIBRATIONS_OF.get(case.source, 1))


def _weighed(case: Case, reference: float = 0.0) -> Case:
    """Return an inconclusive comparison, with a note if its interval or its bound excludes ``reference``."""
    if case.bound and case.p is not None and case.p < SIGNIFICANCE and not _side(case, reference):
        return _noted(case, "trainings that missed their target leave only a bound, on the side that decides nothing")
    above, below = case.low is not None and case.low > reference, case.high is not None and case.high < reference
    if not (above or below) or case.p < SIGNIFICANCE:
        return case
    return _noted(case, f"not significant at {100 * level(case.seeds):g} %, the level for {case.seeds} seeds")


def _estimated(blank: Case, effect: Effect, reference: float, shown: Callable[[float], float]) -> Case:
    """Return a comparison (case) to which estimate, interval and p value are added.

    shown: increasing function that converts a difference into the effect in the unit of the comparison.
    """
    case = replace(blank, seeds=effect.seeds, note=effect.note)
    if effect.bound == BOTH_WAYS:
        return _noted(case, "bounds of both kinds: with some seeds the effect may be less, with others more")
    if effect.mean is None:
        return case
    low, high = (None if limit is None else shown(limit) for limit in effect.interval())
    if effect.spread is not None:
        case = replace(case, spread_low=shown(effect.spread[0]), spread_high=shown(effect.spread[1]))
    return replace(case, estimate=shown(effect.mean), low=low, high=high, bound=effect.bound, p=effect.p(reference))


def _side(case: Case, reference: float = 0.0) -> int:
    """Return 1 if the effect is significantly greater than ``reference``, -1 if it is less, and 0 if neither."""
    if case.p is None or case.p >= SIGNIFICANCE:
        return 0
    if case.estimate > reference:
        return int(case.bound != AT_MOST)
    return -int(case.bound != AT_LEAST)


def _compared(blank: Case, effect: Effect, shown: Callable[[float], float], zone: float) -> Case:
    """Return a comparison (case) to which the verdict on the effect and the position of the paper's number are added.

    zone: the greatest effect that counts as none, in the unit of ``effect`` (a logarithm for times and bytes).
    """
    case = _estimated(blank, effect, 0.0, shown)
    case = replace(case, on_number=_on_number(case), seeds_needed=seeds_to_decide(effect, zone))
    low, high = effect.interval() if case.p is not None else (None, None)
    if low is not None and high is not None and -zone <= low and high <= zone:
        return replace(case, verdict=ALIKE)
    if side := _side(case):
        if abs(effect.mean) > zone:
            return replace(case, verdict=SUPPORTED if side > 0 else REFUTED)
        case = _noted(case, f"not known whether it is more than {_amount(case.zone, case.unit)}")
    return _weighed(case)


def against_number(case: Case, number: float) -> Case:
    """Return a comparison (case) with the position of its interval relative to ``number``, a number of the paper."""
    numbered = replace(case, number=number)
    return replace(numbered, on_number=_on_number(numbered))


def _on_number(case: Case) -> str:
    """Return the position of the comparison's interval relative to the paper's number; "" if it is unknown."""
    if case.number is None or case.p is None:
        return ""
    if case.low is not None and round(case.low - case.number, NUMBER_DECIMALS) > 0:
        return MORE
    if case.high is not None and round(case.high - case.number, NUMBER_DECIMALS) < 0:
        return LESS
    return "" if case.bound else AGREES


def _against_threshold(blank: Case, effect: Effect, threshold: float) -> Case:
    """Return a comparison (case) with the verdict on whether the effect is at least ``threshold``."""
    case = _estimated(blank, effect, threshold, float)
    if case.low == case.high == threshold:
        return replace(case, verdict=SUPPORTED, p=0.0)
    if effect.mean is not None:
        case = replace(case, seeds_needed=seeds_to_decide(replace(effect, mean=effect.mean - threshold), 0.0))
    if side := _side(case, threshold):
        return replace(case, verdict=SUPPORTED if side > 0 else REFUTED)
    return _weighed(case, threshold)


def _noted(case: Case, note: str) -> Case:
    return replace(case, verdict=INCONCLUSIVE, note="; ".join(filter(None, [case.note, note])))


def _log(value: float) -> float:
    if value < 0:
        raise ValueError(f"{value}: times and bytes are not negative")
    return math.log(value) if value else -math.inf


def _saving(log_ratio: float) -> float:
    """Return the saving in per cent, given the logarithm of the ratio of the compared value to our value."""
    return 100 * (1 - math.exp(-log_ratio))
