"""Comparisons of samples, and their verdicts on a claim.

Each case (comparison under one condition) has two results. One result is the verdict on the direction of the effect.
The effect has significantly the claimed or the opposite direction, or its 95 % interval lies within the equivalence
zone, so that there is no difference. The other result concerns the paper's number: the interval contains the number, or
lies above or below it. For times and bytes, the interval is computed from the logarithm of the ratio.

The p values of a finding's evidence are corrected for the number of cases by the procedure of Hochberg (1988, "A
sharper Bonferroni procedure for multiple tests of significance"). If each case of a finding is significant by itself,
all cases remain significant. Therefore, the correction does not change "supported in all cases". The correction matters
for a single significant case among others that are not significant.
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
"""Per cent of time or bytes within which two algorithms count as alike: a smaller gain justifies no other algorithm."""
ZONES_PERCENT = {MEASURED: 10.0}
"""Values in per cent that replace `ZONE_PERCENT`, by the source of the times.

Most runs that were repeated on the testbed differed by up to 10 %, regardless of the number of seeds.
"""
ZONE_POINTS = 1.0
"""Percentage points of accuracy within which two algorithms count as alike, as for the claim "no worse"."""

NUMBER_DECIMALS = 6
"""Decimals that count in comparisons of a limit with the paper's number; further decimals are rounding errors."""
CALIBRATIONS_OF = {SIMULATED: CALIBRATIONS, TIMING_ONLY: CALIBRATIONS}
"""Number of calibrations from which the times of a case's runs are simulated, by the source of the times."""

# ---- two samples


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
    """Return the comparison that tests whether ``ours`` is less than ``theirs``.

    The estimate is the saving in per cent, computed from the mean logarithm of the ratio of both samples. number: the
    paper's saving, in per cent. zone: the saving within which both samples count as alike; None takes the zone for the
    source of times. pairs: whether runs with the same seed share their random numbers. Raises ValueError for negative
    values.
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
    """Return the comparison that tests whether ``ours`` is more than ``theirs``.

    The estimate is the mean difference in ``unit``. With the unit "points", the samples' values are per cent. number:
    the paper's difference. zone: the difference within which both samples count as alike; None takes 1 for points, and
    0 for any other unit. pairs: whether runs with the same seed share their random numbers.
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

    Greater values are better. The claim is supported if the interval of ours minus theirs lies above -margin, and
    refuted if the interval lies below -margin.
    """
    criterion = f"at most {_amount(margin, unit)} worse"
    blank = _named(_blank(condition, baseline, unit, source, kind, EQUIVALENCE, criterion, pairs=pairs), ours, theirs)
    return _against_threshold(blank, _effect(ours, theirs, blank), -margin)


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


# ---- without statistics


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
    """Return the case (result for a claim) on a fact without chance, such as counted bytes or the place of a minimum.

    holds: whether the fact is true; None if that is unknown. rests_on: the times from which the fact follows, if any.
    """
    verdict = INCONCLUSIVE if holds is None else SUPPORTED if holds else REFUTED
    return _named(Case(condition, baseline, verdict, estimate, None, None, unit, 0, source, kind), rests_on)


# ---- several cases


def corrected(cases: Sequence[Case]) -> list[Case]:
    """Return the cases (comparisons) of a finding, with p values corrected for the number of cases that are evidence.

    A case that is not significant after the correction becomes inconclusive.
    """
    tested = [(case.p, index) for index, case in enumerate(cases) if case.kind == EVIDENCE and case.p is not None]
    least, found = 1.0, list(cases)
    for rank, (p, index) in enumerate(sorted(tested, reverse=True), 1):
        least = min(least, rank * p)
        if least >= SIGNIFICANCE and cases[index].verdict in (SUPPORTED, REFUTED):
            found[index] = _noted(cases[index], f"not significant as one of {len(tested)} cases")
    return found


# ---- the tests


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
    """Return a case (comparison) that has no result yet."""
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
    """Return the case (comparison) with the labels of the algorithms whose runs were compared."""
    ours, theirs = (", ".join(sorted(side.algorithms)) if side else "" for side in (ours, theirs))
    return replace(case, ours=ours, theirs=theirs)


def _more_than(zone: float, unit: str) -> str:
    return f"more than {_amount(zone, unit)}"


def _amount(value: float, unit: str) -> str:
    return f"{value:g} {unit.replace('points', 'point') if value == 1 else unit}".strip()


def _effect(minuend: Sample, subtrahend: Sample, case: Case) -> Effect:
    """Return the difference of two samples, paired or unpaired as the case states."""
    return (paired if case.pairs else unpaired)(minuend, subtrahend, CALIBRATIONS_OF.get(case.source, 1))


def _weighed(case: Case, reference: float = 0.0) -> Case:
    """Return an undecided case, with a note on the reason if its interval, or its bound, excludes ``reference``."""
    if case.bound and case.p is not None and case.p < SIGNIFICANCE and not _side(case, reference):
        return _noted(case, "trainings that missed their target leave only a bound, on the side that decides nothing")
    above, below = case.low is not None and case.low > reference, case.high is not None and case.high < reference
    if not (above or below) or case.p < SIGNIFICANCE:
        return case
    return _noted(case, f"not significant at {100 * level(case.seeds):g} %, the level for {case.seeds} seeds")


def _estimated(blank: Case, effect: Effect, reference: float, shown: Callable[[float], float]) -> Case:
    """Return the case (comparison) with its estimate, interval and p value.

    shown: increasing function from a difference to the effect in the case's unit.
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
    """Return 1 if the effect is significantly greater than the reference, -1 if it is less, else 0."""
    if case.p is None or case.p >= SIGNIFICANCE:
        return 0
    if case.estimate > reference:
        return int(case.bound != AT_MOST)
    return -int(case.bound != AT_LEAST)


def _compared(blank: Case, effect: Effect, shown: Callable[[float], float], zone: float) -> Case:
    """Return the case (comparison), with the verdicts on whether there is an effect, and on the paper's number.

    zone: the equivalence zone, on the scale of the effect (a logarithm for times and bytes).
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
    """Return the case (comparison) with the position of its interval relative to a number of the paper."""
    numbered = replace(case, number=number)
    return replace(numbered, on_number=_on_number(numbered))


def _on_number(case: Case) -> str:
    """Return the position of the case's interval relative to the paper's number; "" if the position is unknown."""
    if case.number is None or case.p is None:
        return ""
    if case.low is not None and round(case.low - case.number, NUMBER_DECIMALS) > 0:
        return MORE
    if case.high is not None and round(case.high - case.number, NUMBER_DECIMALS) < 0:
        return LESS
    return "" if case.bound else AGREES


def _against_threshold(blank: Case, effect: Effect, threshold: float) -> Case:
    """Return the case with its verdict on whether the effect is at least ``threshold``, which it may equal exactly."""
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
    """Return the saving in per cent from ``log_ratio``, the logarithm of the ratio of theirs to ours."""
    return 100 * (1 - math.exp(-log_ratio))
