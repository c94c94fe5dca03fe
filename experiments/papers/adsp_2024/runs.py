"""Runs of the figures of adsp: strategies, delays of their workers, and numbers of their runs."""

import math

import numpy as np

from experiments.tables.requests import RunRequests, Scenario
from experiments.tables.run_spec import MEASURED, SIMULATED
from grsgd.runs.run_file import Run

ALL = {"adsp": "adsp/adsp", "BSP": "adsp/bsp", "ASP": "adsp/asp", "SSP": "adsp/ssp", "DSSP": "adsp/dssp"}
OURS, *OTHERS = ALL
BOUNDED = ("SSP", "DSSP", "adsp")
"""Those that bound by how much a worker may lead."""

NONE, CONSTANT, RANDOM, BOTH = "equal workers", "one slow worker", "random delays", "both"
DELAYS = (CONSTANT, RANDOM, BOTH)
SLOW, FACTOR = 1, 4.0
"""Which worker is slow all the time, and how many times."""
PROBABILITY = 0.05
"""Probability of a step of any worker to be delayed; the delay is distributed exponentially."""
SMALL_SCALES, SMALL_DELAY, DELAY = ("tiny", "smoke"), 0.25, 0.05
"""Seconds of a delay, on average, at the small scales and at others: some ten steps, of 20 to 30 ms on a testbed with a
fifth of a core for each host, and of what we take for 5 ms with the batch of base.toml on a GPU."""

THRESHOLDS, RATIO = (0, 1, 3, 6, 15), 5
"""s, and smax / s, which is that of the defaults."""
BUCKETS = {"0": (0, 0), "1-2": (1, 2), "3-5": (3, 5), "6+": (6, math.inf)}
"""Buckets of the staleness of gradients: first and last number of updates."""


def scenario(requests: RunRequests, kind: str, n: int) -> Scenario:
    """Delays of n workers; the server has none."""
    slowdown = (f"stragglers.slowdown.{SLOW}={FACTOR}",)
    tail = {"probability": PROBABILITY, "seconds": delay(requests)}
    tails = tuple(f"stragglers.tail.{rank}.{key}={value}" for rank in range(n) for key, value in tail.items())
    return Scenario(kind, {NONE: (), CONSTANT: slowdown, RANDOM: tails, BOTH: slowdown + tails}[kind])


def delay(requests: RunRequests) -> float:
    """Return the mean delay in seconds."""
    return SMALL_DELAY if requests.scale.name in SMALL_SCALES else DELAY


def settings(requests: RunRequests):
    """(kind of delays, source of time, n, seeds) of the comparison in time."""
    for kind in (NONE, *DELAYS):
        yield kind, SIMULATED, workers(requests), None
    for kind in (CONSTANT, RANDOM):
        yield kind, MEASURED, measured_on(requests), None
    for n in numbers(requests):
        if n != workers(requests):
            yield RANDOM, SIMULATED, n, [0]
    if measured_on(requests) != workers(requests):
        yield CONSTANT, SIMULATED, measured_on(requests), [0]


def workers(requests: RunRequests) -> int:
    """n of what is simulated with all delays and seeds."""
    return requests.scale.tuning_ranks


def numbers(requests: RunRequests) -> list[int]:
    """Return all n that are simulated."""
    return sorted({*requests.scale.ranks, workers(requests), measured_on(requests)})


def measured_on(requests: RunRequests) -> int:
    """n of what is measured."""
    return min(requests.scale.clock_ranks)


def first(requests: RunRequests, config: str, kind: str) -> list[Run]:
    """Return the run of the first seed."""
    n = workers(requests)
    return requests.runs(config, n, SIMULATED, scenario(requests, kind, n), seeds=[0])


def simulated(requests: RunRequests, value, kind: str) -> dict[str, list[float]]:
    """Return a number of the runs of each strategy."""
    n = workers(requests)
    return {
        name: requests.measure(value, config, n, SIMULATED, scenario(requests, kind, n)) for name, config in ALL.items()
    }


def bounds(requests: RunRequests, s: int) -> tuple[str, ...]:
    """Overrides for this threshold; none for that of adsp.toml, which is a run of other targets as well."""
    options = requests.load(ALL[OURS]).algorithm_options
    wanted = {"s": s, "smax": RATIO * s}
    return tuple(f"algorithm.{key}={value}" for key, value in wanted.items() if getattr(options, key) != value)


# ---- numbers of a run


def counts(run: Run) -> tuple[np.ndarray, np.ndarray]:
    """Staleness, ascending, and how many gradients had it."""
    return run.staleness["value"], run.staleness["count"].sum(axis=0)


def mean_staleness(run: Run) -> float:
    ages, gradients = counts(run)
    return float(np.average(ages, weights=gradients))


def share_of(bucket: str):
    """Return the share of a run's gradients in the bucket, in per cent, as a function of the run."""
    least, most = BUCKETS[bucket]

    def share(run: Run) -> float:
        ages, gradients = counts(run)
        return 100 * float(gradients[(ages >= least) & (ages <= most)].sum() / gradients.sum())

    return share


def gradients_of(worker: int):
    """Return the worker's share of a run's gradients, in per cent, as a function of the run."""
    return lambda run: 100 * float(run.ranks["steps"][worker] / run.ranks["steps"].sum())


def pushes_per_second(run: Run) -> float:
    return float(run.ranks["steps"].sum() / run.curve["time"][-1])


def pushes_per_second_at_the_end(run: Run) -> float:
    """Return the pushes per second in the second half of the samples."""
    time, samples = run.curve["time"], run.curve["samples"]
    half = int((samples >= samples[-1] / 2).argmax())
    pushes = run.ranks["steps"].sum() * (samples[-1] - samples[half]) / samples[-1]
    return float(pushes / (time[-1] - time[half]))


def curve(run: Run) -> tuple:
    return run.curve["samples"] / 1000, run.curve["test_accuracy"]
