"""The choice of a method's learning rate on a distribution: by the time to the target, with separate seeds."""

import math
from collections.abc import Mapping, Sequence

import numpy as np

from experiments.asynchronous.points import MAX_BEYOND, RATES
from experiments.runner import rate_ladder
from experiments.runner.rate_ladder import RateLadder

LADDER = RateLadder(RATES, 2.0, MAX_BEYOND)
"""The learning rates that may be tried."""
Trials = Mapping[float, Sequence[float]]
"""Seconds to the target with each seed, by learning rate; NaN if the target was not reached."""


def score(seconds: Sequence[float]) -> float:
    """Return the geometric mean of the seconds, which is least for the best rate; infinity if a seed missed the target.
    """
    logs = np.log(seconds)
    return math.inf if np.isnan(logs).any() else math.exp(logs.mean())


def best(trials: Trials) -> float | None:
    """Return the best learning rate, the smaller of two equally good rates; None if every rate misses the target.

    A rate misses the target if one of its seeds does.
    """
    scores = {rate: score(trials[rate]) for rate in sorted(trials)}
    found = min(scores, key=scores.get)
    return None if math.isinf(scores[found]) else found


def to_try(trials: Trials) -> list[float]:
    """Return the learning rates to try next, first the rates of the grid; an empty list if the best rate is known."""
    if missing := [rate for rate in RATES if rate not in trials]:
        return missing
    at = best(trials)
    following = None if at is None else LADDER.next_rate(trials, at)
    return [] if following is None else [following]


def at_an_end(trials: Trials) -> bool:
    """Return whether the best learning rate is the least or greatest tried rate; a better one may lie beyond."""
    return rate_ladder.is_an_end(best(trials), trials)


def fastest(samples: Mapping[str, Sequence[float]]) -> str | None:
    """Return the method with the least median time; NaN counts as infinite. None if no method has a finite time."""
    medians = {name: np.median(np.nan_to_num(seconds, nan=math.inf)) for name, seconds in samples.items()}
    found = min(medians, key=medians.get, default=None)
    return None if found is None or math.isinf(medians[found]) else found
