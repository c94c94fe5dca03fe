"""Functions that choose the runs of the comparison, in rounds.

The runs of each round depend on the results of earlier rounds.
"""

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
"""The numbers (`StrategyNumbers`) of each finished run."""


def number_of_runs(distributions: int) -> int:
    """Return the number of runs for ``distributions`` distributions of times.

    More runs are needed if a method's best learning rate is the least or greatest of `RATES`.
    """
    each = len(METHODS) * (len(RATES) * len(TUNING_SEEDS) + len(SEEDS))
    return distributions * (each + 2 * len(FINAL_SEEDS) + 1)


def trials(distribution: str, method: str, results: Results) -> tuning.Trials:
    """Return the seconds to the target for each learning rate that was run with all `TUNING_SEEDS`."""
    found = {point.rate for point in results if point[:2] == (distribution, method) and point.seed in TUNING_SEEDS}
    by_rate = {rate: [StrategyRun(distribution, method, rate, seed) for seed in TUNING_SEEDS] for rate in sorted(found)}
    return {
        rate: [results[point].seconds for point in points]
        for rate, points in by_rate.items()
        if all(point in results for point in points)
    }


def points_of(distribution: str, results: Results) -> Iterator[StrategyRun]:
    """Yield the runs that the results so far determine, including runs that exist.

    The learning rate of each method is tuned, and the method is run at its best learning rate with `SEEDS`. The
    fastest synchronous and the fastest asynchronous method are run with `FINAL_SEEDS`. A method that reaches the
    target at none of the learning rates is not run after the tuning.
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
    """Return the results of the runs of ``method`` at its best learning rate with the seeds `SEEDS`."""
    rate = tuning.best(known) if (known := trials(distribution, method, results)) else None
    points = [StrategyRun(distribution, method, rate, seed) for seed in SEEDS]
    return {point: results[point] for point in points if point in results}


def finalists(distribution: str, results: Results) -> dict[str, float]:
    """Return the fastest synchronous and the fastest asynchronous method, each with its best learning rate.

    Returns an empty dict if runs are missing that decide which methods are the fastest.
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
    """Return the missing runs that ``results`` determines; the results of these runs may determine further runs."""
    points = (point for name in distributions for point in points_of(name, results))
    return [point for point in dict.fromkeys(points) if point not in results]
