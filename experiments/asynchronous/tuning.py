"""The learning rate of a method on a distribution: by the time to the target, with seeds used for nothing else."""

import math
from collections.abc import Mapping, Sequence

import numpy as np

from experiments.asynchronous.points import MOST_BEYOND, RATES
from experiments.runner import rate_ladder
from experiments.runner.rate_ladder import RateLadder

LADDER = RateLadder(RATES, 2.0, MOST_BEYOND)
Trials = Mapping[float, Sequence[float]]
"""By learning rate, the seconds to the target with each seed; NaN where it was not reached."""


def score(seconds: Sequence[float]) -> float:
    """Return what the best rate has the least of: the geometric mean; infinite if any seed misses the target."""
    logs = np.log(seconds)
    return math.inf if np.isnan(logs).any() else math.exp(logs.mean())


def best(trials: Trials) -> float | None:
    """Return the best rate, the smaller one of equals; None if no rate leads to the target with all seeds."""
    scores = {rate: score(trials[rate]) for rate in sorted(trials)}
    found = min(scores, key=scores.get)
    return None if math.isinf(scores[found]) else found


def to_try(trials: Trials) -> list[float]:
    """Return the rates that are to be tried next, first those of the grid; none if the best is known."""
    if missing := [rate for rate in RATES if rate not in trials]:
        return missing
    at = best(trials)
    following = None if at is None else LADDER.next_rate(trials, at)
    return [] if following is None else [following]


def at_an_end(trials: Trials) -> bool:
    """Return whether the best rate is the first or the last one tried, so that a better one may lie beyond."""
    return rate_ladder.is_an_end(best(trials), trials)


def fastest(samples: Mapping[str, Sequence[float]]) -> str | None:
    """Return the method with the least median time, NaN counting as longer than all; None if none has one."""
    medians = {name: np.median(np.nan_to_num(seconds, nan=math.inf)) for name, seconds in samples.items()}
    found = min(medians, key=medians.get, default=None)
    return None if found is None or math.isinf(medians[found]) else found
