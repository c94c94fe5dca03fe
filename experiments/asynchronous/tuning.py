"""Functions that choose a method's learning rate on a distribution of times.

The learning rate with the least time to the target is chosen, in runs with seeds that no other run uses.
"""

import math
from collections.abc import Mapping, Sequence

import numpy as np

from experiments.asynchronous.points import MAX_BEYOND, RATES
from experiments.runner import rate_ladder
from experiments.runner.rate_ladder import RateLadder

LADDER = RateLadder(RATES, 2.0, MAX_BEYOND)
"""The learning rates at which a method may be run to find its best one."""
Trials = Mapping[float, Sequence[float]]
"""Seconds to the target accuracy with each seed, by learning rate; NaN if a run missed the target."""


def score(seconds: Sequence[float]) -> float:
    """Return the geometric mean of ``seconds``, one per seed; infinity if the run of a seed missed the target.

    The learning rate with the least geometric mean of the seconds to the target is the best.
    """
    logs = np.log(seconds)
    return math.inf if np.isnan(logs).any() else math.exp(logs.mean())


def best(trials: Trials) -> float | None:
    """Return the best learning rate, and of two equally good rates the smaller one.

    Returns None if every learning rate misses the target. A learning rate misses the target if the run of one of its
    seeds does.
    """
    scores = {rate: score(trials[rate]) for rate in sorted(trials)}
    found = min(scores, key=scores.get)
    return None if math.isinf(scores[found]) else found


def to_try(trials: Trials) -> list[float]:
    """Return the learning rates to try next, or an empty list if the best rate is known.

    The learning rates in `RATES` are tried first.
    """
    if missing := [rate for rate in RATES if rate not in trials]:
        return missing
    at = best(trials)
    following = None if at is None else LADDER.next_rate(trials, at)
    return [] if following is None else [following]


def at_an_end(trials: Trials) -> bool:
    """Return True if the best learning rate is the least or greatest tried one, so that a better one may lie beyond."""
    return rate_ladder.is_an_end(best(trials), trials)


def fastest(samples: Mapping[str, Sequence[float]]) -> str | None:
    """Return the method with the least median time; NaN counts as infinite. None if no method has a finite median."""
    medians = {name: np.median(np.nan_to_num(seconds, nan=math.inf)) for name, seconds in samples.items()}
    found = min(medians, key=medians.get, default=None)
    return None if found is None or math.isinf(medians[found]) else found
