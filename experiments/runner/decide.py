"""Comparisons of samples, and what they say about a claim.

Each case has two answers. One is on the direction: the effect is significantly on the claimed side, on the other side,
or its 95 % interval lies within the equivalence zone, so that both sides are alike. The other is on the paper's number:
the interval holds it, lies above it or below it. Of times and bytes the interval is that of their ratio's logarithm.

The p values of a finding's evidence are corrected for their number by the procedure of Hochberg (1988, "A sharper
Bonferroni procedure for multiple tests of significance"). If all cases of a finding are significant one by one, all
remain: "supported in all cases" needs no correction. A case that is named because some others are not significant does.
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
"""Per cent of time or bytes up to which two sides count as alike: nobody changes the algorithm for less."""
ZONES_PERCENT = {MEASURED: 10.0}
"""The same by source of the times: most runs that were made twice on the testbed differed by up to 10 %, whatever the
number of seeds."""
ZONE_POINTS = 1.0
"""Points of accuracy up to which two sides count as alike, as in "no worse"."""

NUMBER_DECIMALS = 6
"""Decimals that count where a limit is held against the paper's number; the others are errors of rounding."""
CALIBRATIONS_OF = {SIMULATED: CALIBRATIONS, TIMING_ONLY: CALIBRATIONS}
"""How many calibrations the runs of a case rest on, by the source of their times."""

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
    """Return whether ours is less than theirs: the saving of the mean ratio, on a log scale, in per cent.

    number: the paper's saving, in per cent. zone: the saving up to which both are alike; None: that of the source of
    times. pairs: whether runs with the same seed share their random numbers. Raises ValueError if a value is negative.
    """
    zone = ZONES_PERCENT.get(source, ZONE_PERCENT) if zone is None else zone
    blank = _blank(condition, baseline, unit, source, kind, DIFFERENCE, _more_than(zone, unit), zone, number, pairs)
    blank = replace(blank, ours=ours.algorithm, theirs=theirs.algorithm)
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
    """Return whether ours is more than theirs: the mean difference, in ``unit``; for points, values are per cent.

    number: the paper's difference. zone: the difference up to which both are alike; None: 1 for points, otherwise 0.
    pairs: whether runs with the same seed share their random numbers.
    """
    zone = (ZONE_POINTS if unit == "points" else 0.0) if zone is None else zone
    blank = _blank(condition, baseline, unit, source, kind, DIFFERENCE, _more_than(zone, unit), zone, number, pairs)
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
    """Return whether ours, of which more is better, is less than theirs by no more than the margin: supported if the
    interval of the difference lies above -margin, refuted if it lies below."""
    criterion = f"at most {_amount(margin, unit)} worse"
    blank = _blank(condition, baseline, unit, source, kind, EQUIVALENCE, criterion, pairs=pairs)
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
    """Return whether the mean of the sample is at least the threshold, by its interval."""
    criterion = f"at least {_amount(threshold, unit)}"
    blank = _blank(condition, baseline, unit, source, kind, THRESHOLD, criterion)
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


def corrected(cases: Sequence[Case]) -> list[Case]:
    """Return the cases of a finding; those of its evidence that are not significant once p values are corrected for
    their number become inconclusive."""
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
    """Return a case of which nothing is known yet."""
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


def _more_than(zone: float, unit: str) -> str:
    return f"more than {_amount(zone, unit)}"


def _amount(value: float, unit: str) -> str:
    return f"{value:g} {unit.replace('points', 'point') if value == 1 else unit}".strip()


def _effect(minuend: Sample, subtrahend: Sample, case: Case) -> Effect:
    """Return the difference of two samples as the case compares them."""
    return (paired if case.pairs else unpaired)(minuend, subtrahend, CALIBRATIONS_OF.get(case.source, 1))


def _weighed(case: Case, reference: float = 0.0) -> Case:
    """Return an undecided case with a note if its interval excludes the reference, and its test does not."""
    above, below = case.low is not None and case.low > reference, case.high is not None and case.high < reference
    if not (above or below) or case.p < SIGNIFICANCE:
        return case
    return _noted(case, f"not significant at {100 * level(case.seeds):g} %, the level for {case.seeds} seeds")


def _estimated(blank: Case, effect: Effect, reference: float, shown: Callable[[float], float]) -> Case:
    """Return the case with its estimate, interval and p value. shown: of a difference, the effect in the case's unit;
    it rises."""
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
    """Return 1 if the effect is significantly more than the reference, -1 if it is less, else 0."""
    if case.p is None or case.p >= SIGNIFICANCE:
        return 0
    if case.estimate > reference:
        return int(case.bound != AT_MOST)
    return -int(case.bound != AT_LEAST)


def _compared(blank: Case, effect: Effect, shown: Callable[[float], float], zone: float) -> Case:
    """Return the case decided against no effect and against the paper's number. zone: on the scale of the effect."""
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
    """Return the case with where its interval lies with regard to a number of the paper."""
    numbered = replace(case, number=number)
    return replace(numbered, on_number=_on_number(numbered))


def _on_number(case: Case) -> str:
    """Return where the interval lies, as far as it goes, with regard to the paper's number."""
    if case.number is None or case.p is None:
        return ""
    if case.low is not None and round(case.low - case.number, NUMBER_DECIMALS) > 0:
        return MORE
    if case.high is not None and round(case.high - case.number, NUMBER_DECIMALS) < 0:
        return LESS
    return "" if case.bound else AGREES


def _against_threshold(blank: Case, effect: Effect, threshold: float) -> Case:
    """Return the case decided against a threshold that may be met exactly."""
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
    """Return the saving in per cent, of the logarithm of theirs to ours."""
    return 100 * (1 - math.exp(-log_ratio))
