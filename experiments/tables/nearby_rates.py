"""The effect of each case on time if an algorithm has a learning rate next to its tuned one.

Learning rates are tuned once, with a few seeds, so another tuning might find the next rate. The trials at rates close
to the best rate show how many more samples these rates take to the target accuracy. The seconds per sample do not
depend on the learning rate.
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
    """Return the outcome with the range of each effect on time over learning rates next to the tuned ones.

    One or both of the compared algorithms may have a rate that is not tuned. Scales that tune with a single seed have
    no range.
    """
    if plan.conditions.scale.tuning_seeds == 1:
        return outcome
    factors = dict(factors_of(plan, outcome.target))
    findings = [
        replace(finding, cases=[with_range(case, factors) for case in finding.cases]) for finding in outcome.findings
    ]
    return replace(outcome, findings=findings)


def factors_of(plan: Plan, target: str) -> Iterator[tuple[str, tuple[Tuned, list[float]]]]:
    """Yield each algorithm's label, with the key of its tuned rate and the result of `factors` for its trials.

    Algorithms with several tuned rates in the target, or with a missing trial, are left out.
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
    """Return the samples to the target accuracy at each learning rate with all tuning seeds, over the best rate's.

    The ratio is infinite if a trial missed the target accuracy. The list is empty if all trials missed it.
    """
    found = rates.results(tuned)
    fewest, _ = found[best(found)]
    return [samples / fewest for samples, _ in found.values()] if math.isfinite(fewest) else []


def with_range(case: Case, by_label: Mapping[str, tuple[Tuned, list[float]]]) -> Case:
    """Return a case (comparison) with the range of its effect over learning rates.

    A case whose two algorithms share one rate, or whose effect is not on time, is returned unchanged.
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
