"""Finds how each effect on time changes if an algorithm has a learning rate next to its tuned one.

Learning rates are tuned once, with a few seeds, so that another tuning could choose a neighbouring rate. The trainings
of the tuning at rates close to the best rate show how many more samples these rates need to the target accuracy. The
seconds per sample do not depend on the learning rate, so that more samples take proportionally more time.
"""

import math
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace

from experiments.runner.learning_rates import LearningRates, MissingRun, Tuned, best
from experiments.runner.outcome import DIFFERENCE, Case, Outcome
from experiments.runner.plan import Plan
from experiments.runner.sample import label_of


def with_nearby_rates(outcome: Outcome, plan: Plan) -> Outcome:
    """Return a copy of the outcome in which effects on time have their range over neighbouring learning rates.

    The range allows for the case that one or both of the compared algorithms have a rate that is not tuned. At scales
    that tune learning rates with a single seed, the outcome is returned unchanged.
    """
    if plan.conditions.scale.tuning_seeds == 1:
        return outcome
    factors = dict(factors_of(plan, outcome.target))
    findings = [
        replace(finding, cases=[with_range(case, factors) for case in finding.cases]) for finding in outcome.findings
    ]
    return replace(outcome, findings=findings)


def factors_of(plan: Plan, target: str) -> Iterator[tuple[str, tuple[Tuned, list[float]]]]:
    """Yield the label of each algorithm of a target, with the key of its tuned learning rate and its `factors`.

    An algorithm is left out if it has several tuned rates in the target, or if a trial of its tuning is missing.
    """
    tuned: dict[str, set[Tuned]] = {}
    for setting in plan.settings(target):
        label = label_of(plan.conditions.load(setting.config, setting.overrides), setting.ranks)
        tuned.setdefault(label, set()).add(plan.rates.tuned(setting))
    for label, (one, *others) in tuned.items():
        with suppress(MissingRun):
            if not others:
                yield label, (one, factors(plan.rates, one))


def factors(rates: LearningRates, tuned: Tuned) -> list[float]:
    """Return the samples that each tried learning rate needs to the target, divided by the best rate's samples.

    The ratio of a learning rate is infinite if one of its trials missed the target accuracy. The returned list is
    empty if all learning rates missed the target accuracy.
    """
    found = rates.results(tuned)
    fewest, _ = found[best(found)]
    return [samples / fewest for samples, _ in found.values()] if math.isfinite(fewest) else []


def with_range(case: Case, by_label: Mapping[str, tuple[Tuned, list[float]]]) -> Case:
    """Return a comparison (case) with the range of its effect over learning rates.

    The comparison is returned unchanged if both algorithms share one rate, or if its effect is not on time.
    """
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
