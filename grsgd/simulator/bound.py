"""Theoretical lower bound of the seconds between two updates of a parameter server whose workers have given step
times."""

from grsgd.algorithms.central import CentralAlgorithm
from grsgd.config import Config
from grsgd.errors import ConfigError, UsageError
from grsgd.runs.bound import optimal_seconds
from grsgd.simulator.network import network
from grsgd.simulator.simulation import Simulation
from grsgd.training.stragglers import DelayModel

STEPS = 100
"""Number of simulated steps over which a worker's time per step is averaged, because the times can vary at random from
step to step."""


def bound(
    config: Config, ranks: int, compute: str | None, step_seconds: str | None, gradients: int | None
) -> list[tuple[str, str]]:
    """Return a table as rows of a name and a text: the workers' step times, and the theoretical seconds per update of
    the parameter server.

    Parameters
    ----------
    config
        The configuration of a run with a parameter server.
    ranks
        The number of ranks, server included.
    compute
        Text in one of `grsgd.simulator.compute.FORMS` that gives the workers' step times.
    step_seconds
        Step time of each worker in seconds, separated by commas, in place of ``compute``.
    gradients
        Number of gradients in an update of the server. None means the number for which the server's strategy waits.

    Raises ConfigError if a step of a worker takes 0 seconds. Raises UsageError if both ``compute`` and ``step_seconds``
    are given, if the number of step times is wrong, or if the algorithm has no server that waits for gradients.
    """
    given = read(step_seconds) if step_seconds is not None else None
    if given is not None and compute is not None:
        raise UsageError("--step-seconds and --compute: give only one of them")
    simulation = Simulation(config, ranks, network("switch"), compute, timing_only=True)
    algorithm = simulation.trainers[0].algorithm
    if not isinstance(algorithm, CentralAlgorithm) or algorithm.bound_gradients is None:
        raise UsageError(
            f"grsgd bound: {algorithm.name} has no least time of an update; allowed: algorithms whose server waits for "
            "a number of gradients before each update"
        )
    workers = algorithm.workers(algorithm.options, ranks)
    if given is None:
        given = [mean_seconds(simulation, config, worker) for worker in range(workers)]
    if len(given) != workers:
        raise UsageError(
            f"--step-seconds: {len(given)} step times given, but {workers} of {ranks} ranks train (--ranks)"
        )
    if not all(given):
        raise ConfigError(f"--compute {simulation.compute}: a step takes no time")
    size = algorithm.bound_gradients if gradients is None else gradients
    at_once = size / sum(1 / seconds for seconds in given)
    rounds = -(-size // workers)
    return [
        ("algorithm", f"{algorithm.traits.label}, {workers} workers; times of {size} gradients"),
        ("step of each worker", ", ".join(f"{seconds:.3g} s" for seconds in given)),
        ("optimal", f"{optimal_seconds(given, size):.3g} s: the least time for {size} gradients of one model"),
        ("all wait for all", f"{rounds * max(given):.3g} s, as with bsp"),
        ("nobody waits", f"{at_once:.3g} s for {size} gradients of different models, as with asp"),
    ]


def read(text: str) -> list[float]:
    """Return the workers' step times in seconds from ``text``, the value of ``--step-seconds``. Raise UsageError unless
    all times are numbers above 0."""
    try:
        found = [float(each) for each in text.split(",")]
    except ValueError:
        found = []
    if not found or not all(0 < seconds < float("inf") for seconds in found):
        raise UsageError(f"--step-seconds {text!r}: must be numbers above 0, separated by commas, such as 0.1,0.1,1")
    return found


def mean_seconds(simulation: Simulation, config: Config, worker: int) -> float:
    """Return the mean seconds of the first `STEPS` simulated steps of a worker, including the delays of the
    configuration's section [stragglers]."""
    delays = DelayModel(config.stragglers, worker, config.seed)
    total = 0.0
    for step in range(STEPS):
        seconds = simulation.compute(worker, step)
        total += seconds + delays.delay(step, seconds)
    return total / STEPS
