"""The choice of the runs, in rounds: each round of runs depends on the results of earlier rounds."""

from collections.abc import Iterable, Iterator, Mapping

from experiments.asynchronous import tuning
from experiments.asynchronous.points import (
    ASYNCHRONOUS,
    BASELINE,
    CONTROL,
    FINAL_SEEDS,
    METHODS,
    RATES,
    SEEDS,
    SYNCHRONOUS,
    TUNING_SEEDS,
    StrategyRun,
)
from experiments.asynchronous.result import StrategyNumbers

Results = Mapping[StrategyRun, StrategyNumbers]
"""The numbers of the runs that have been made."""


def number_of_runs(distributions: int) -> int:
    """Return the number of runs for ``distributions`` distributions, if no best rate is at an end of the grid."""
    each = len(METHODS) * (len(RATES) * len(TUNING_SEEDS) + len(SEEDS))
    return distributions * (each + 2 * len(FINAL_SEEDS) + 1)


def trials(distribution: str, method: str, results: Results) -> tuning.Trials:
    """Return the finished trials: the learning rates that were run with all `TUNING_SEEDS`, each with its seconds."""
    found = {point.rate for point in results if point[:2] == (distribution, method) and point.seed in TUNING_SEEDS}
    by_rate = {rate: [StrategyRun(distribution, method, rate, seed) for seed in TUNING_SEEDS] for rate in sorted(found)}
    return {
        rate: [results[point].seconds for point in points]
        for rate, points in by_rate.items()
        if all(point in results for point in points)
    }


def points_of(distribution: str, results: Results) -> Iterator[StrategyRun]:
    """Yield the runs that can be named so far, including existing runs.

    All methods are tuned, and then run at their best learning rates. The fastest synchronous and the fastest
    asynchronous method are then run with further seeds. A method that reaches the target at no rate has no later runs.
    """
    rates = {}
    for method in METHODS:
        known = trials(distribution, method, results)
        following = tuning.to_try(known)
        for rate in (*known, *following):
            yield from (StrategyRun(distribution, method, rate, seed) for seed in TUNING_SEEDS)
        if not following and (rate := tuning.best(known)) is not None:
            rates[method] = rate
            yield from (StrategyRun(distribution, method, rate, seed) for seed in SEEDS)
    if BASELINE in rates:
        yield StrategyRun(distribution, CONTROL, rates[BASELINE], SEEDS[0])
    for method, rate in finalists(distribution, results).items():
        yield from (StrategyRun(distribution, method, rate, seed) for seed in FINAL_SEEDS)


def select_compared(distribution: str, method: str, results: Results) -> dict[StrategyRun, StrategyNumbers]:
    """Return the results of a method at its best learning rate, with the seeds for the comparison of all methods."""
    rate = tuning.best(known) if (known := trials(distribution, method, results)) else None
    points = [StrategyRun(distribution, method, rate, seed) for seed in SEEDS]
    return {point: results[point] for point in points if point in results}


def finalists(distribution: str, results: Results) -> dict[str, float]:
    """Return the fastest synchronous and the fastest asynchronous method, each with its learning rate.

    Returns an empty dict if runs are still missing.
    """
    found = {}
    for side in (SYNCHRONOUS, ASYNCHRONOUS):
        samples = {}
        for method in side:
            known = trials(distribution, method, results)
            if tuning.to_try(known):
                return {}
            if (rate := tuning.best(known)) is not None:
                same_seeds = select_compared(distribution, method, results)
                if len(same_seeds) < len(SEEDS):
                    return {}
                samples[method] = rate, [result.seconds for result in same_seeds.values()]
        method = tuning.fastest({name: seconds for name, (_, seconds) in samples.items()})
        if method is not None:
            found[method] = samples[method][0]
    return found


def list_missing(distributions: Iterable[str], results: Results) -> list[StrategyRun]:
    """Return the missing runs that the results so far determine; later results may determine more runs."""
    points = (point for name in distributions for point in points_of(name, results))
    return [point for point in dict.fromkeys(points) if point not in results]
