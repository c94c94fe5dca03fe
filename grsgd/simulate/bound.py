"""The least time of a parameter server's update, by theory, for workers of given speeds."""

from grsgd.algorithms.central import CentralAlgorithm
from grsgd.config import Config
from grsgd.errors import ConfigError, UsageError
from grsgd.runs.bound import optimal_seconds
from grsgd.simulate.network import network
from grsgd.simulate.simulation import Simulation
from grsgd.training.stragglers import DelayModel

STEPS = 100
"""Of each worker, whose mean time is taken: they may vary at random."""


def bound(
    config: Config, ranks: int, compute: str | None, step_seconds: str | None, gradients: int | None
) -> list[tuple[str, str]]:
    """Return the rows of a table: what is known of the workers, and the times of an update.

    ``compute``: one of `grsgd.simulate.compute.FORMS`. ``step_seconds``: instead, the times of all workers, separated
    by commas. ``gradients``: of an update; None takes what the strategy does. Raises ConfigError, UsageError.
    """
    given = read(step_seconds) if step_seconds is not None else None
    if given is not None and compute is not None:
        raise UsageError("--step-seconds and --compute: only one of them")
    simulation = Simulation(config, ranks, network("switch"), compute, timing_only=True)
    algorithm = simulation.trainers[0].algorithm
    if not isinstance(algorithm, CentralAlgorithm) or algorithm.bound_gradients is None:
        raise UsageError(f"bound: {algorithm.name} has no server whose updates wait for gradients")
    workers = algorithm.workers(algorithm.options, ranks)
    if given is None:
        given = [mean_seconds(simulation, config, worker) for worker in range(workers)]
    if len(given) != workers:
        raise UsageError(f"--step-seconds: {len(given)} times, but of {ranks} ranks {workers} train (--ranks)")
    if not all(given):
        raise ConfigError(f"--compute {simulation.compute}: a step takes no time")
    size = algorithm.bound_gradients if gradients is None else gradients
    at_once = size / sum(1 / seconds for seconds in given)
    rounds = -(-size // workers)
    return [
        ("algorithm", f"{algorithm.traits.label}, {workers} workers; times of {size} gradients"),
        ("step of each worker", ", ".join(f"{seconds:.3g} s" for seconds in given)),
        ("optimal", f"{optimal_seconds(given, size):.3g} s: nothing computes so many of one model in less"),
        ("all wait for all", f"{rounds * max(given):.3g} s, as with bsp"),
        ("nobody waits", f"{at_once:.3g} s for as many of different models, as with asp"),
    ]


def read(text: str) -> list[float]:
    """Return the times of ``--step-seconds``; raises UsageError."""
    try:
        found = [float(each) for each in text.split(",")]
    except ValueError:
        found = []
    if not found or not all(0 < seconds < float("inf") for seconds in found):
        raise UsageError(f"--step-seconds {text!r}: must be numbers above 0, separated by commas, such as 0.1,0.1,1")
    return found


def mean_seconds(simulation: Simulation, config: Config, worker: int) -> float:
    """Return the mean time of a worker's first steps, with what its stragglers add."""
    delays = DelayModel(config.stragglers, worker, config.seed)
    total = 0.0
    for step in range(STEPS):
        seconds = simulation.compute(worker, step)
        total += seconds + delays.delay(step, seconds)
    return total / STEPS
