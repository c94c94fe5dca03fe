"""The effect at learning rates beside the tuned ones, for each case on time.

Learning rates are tuned once, with a few seeds, so another tuning may find the next rate. The trials about the best
rate tell how many more samples the rates beside it take to the target accuracy; the time of a sample stays the same.
"""

import math
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace

from experiments.runner.learning_rates import LearningRates, MissingRun, Tuned, best
from experiments.runner.outcome import DIFFERENCE, Case, Outcome
from experiments.runner.plan import Plan


def with_nearby_rates(outcome: Outcome, plan: Plan) -> Outcome:
    """Return the outcome with the range of each effect on time over the rates beside the tuned ones, on either side or
    both. Scales that tune with a single seed have no such range."""
    if plan.conditions.scale.tuning_seeds == 1:
        return outcome
    factors = dict(factors_of(plan, outcome.target))
    findings = [
        replace(finding, cases=[with_range(case, factors) for case in finding.cases]) for finding in outcome.findings
    ]
    return replace(outcome, findings=findings)


def factors_of(plan: Plan, target: str) -> Iterator[tuple[str, tuple[Tuned, list[float]]]]:
    """Yield each algorithm's label, with what its rate was tuned for and the `factors` of its trials. Algorithms with
    several tuned rates in the target, or with a trial that is missing, are left out."""
    tuned: dict[str, set[Tuned]] = {}
    for setting in plan.settings(target):
        label = plan.conditions.load(setting.config, setting.overrides).traits.label
        tuned.setdefault(label, set()).add(plan.rates.tuned(setting))
    for label, (one, *others) in tuned.items():
        with suppress(MissingRun):
            if not others:
                yield label, (one, factors(plan.rates, one))


def factors(rates: LearningRates, tuned: Tuned) -> list[float]:
    """Return the samples to the target accuracy, at each rate that was tried with all tuning seeds, as a multiple of
    those at the best rate: infinite where a trial missed the target, and an empty list where all did."""
    found = rates.results(tuned)
    fewest, _ = found[best(found)]
    return [samples / fewest for samples, _ in found.values()] if math.isfinite(fewest) else []


def with_range(case: Case, by_label: Mapping[str, tuple[Tuned, list[float]]]) -> Case:
    """Return a case with the range of its effect; as it is, where its sides share one rate or the effect is not on
    time."""
    (our_rate, ours), (their_rate, theirs) = (by_label.get(label, (None, [])) for label in (case.ours, case.theirs))
    is_on_time = case.test == DIFFERENCE and case.unit == "% less time" and case.estimate is not None
    if not is_on_time or our_rate == their_rate or not (ours and theirs):
        return case
    left = 1 - case.estimate / 100
    return replace(
        case,
        rates_low=None if math.inf in ours else 100 * (1 - left * max(ours) / min(theirs)),
        rates_high=None if math.inf in theirs else 100 * (1 - left * min(ours) / max(theirs)),
    )
