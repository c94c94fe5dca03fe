"""Simulated seconds that the computation of a training step takes, and measurement of the real seconds."""

import copy
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from math import exp, isfinite
from time import perf_counter, process_time

import numpy as np
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from grsgd import seeding
from grsgd.config import Config
from grsgd.errors import ConfigError
from grsgd.simulator.network import AFTER_WAIT_SECONDS, MAX_SIGMA, ComputeSpec
from grsgd.training import unwrapped

FORMS = "constant:SECONDS, lognormal:MEDIAN,SIGMA, flops:PER_SECOND, measured"
"""List of the allowed forms of the option ``--compute``, for error messages."""
DEFAULT = "flops:1e10"
"""Value of the option ``--compute`` if the user does not set the option. The default is 10 Gflop/s, about the speed of
one CPU core with a small model."""


@dataclass(frozen=True)
class ComputeTime:
    """Function that returns the seconds of a step's computation, drawn from a log-normal distribution.

    Parameters
    ----------
    median
        Median of the computing times in seconds.
    sigma
        Standard deviation of the logarithm of the computing times in seconds; 0 makes all times equal.
    seed
        Seed of the random numbers.
    slowdown
        The factor by which the times of a slow rank are longer, for each slow rank; other ranks have the factor 1.
    after_wait
        Computing times of steps that follow a long wait; None if these steps take as long as other steps. See
        `AfterWaits`.
    work
        Seconds per step of the algorithm's own code, without the time of messages.
    """

    median: float
    sigma: float = 0.0
    seed: int = 0
    slowdown: dict[int, float] = field(default_factory=dict)
    after_wait: "ComputeTime | None" = None
    work: float = 0.0

    @classmethod
    def of(cls, spec: ComputeSpec, seed: int) -> "ComputeTime":
        """Return the `ComputeTime` with the values of ``spec``, the section ``[compute]`` of a network file."""
        after = spec.after_wait and cls(spec.after_wait, spec.after_wait_sigma, seed, spec.slowdown)
        return cls(spec.median, spec.sigma, seed, spec.slowdown, after, spec.work)

    def __call__(self, rank: int, step: int) -> float:
        """Return the seconds that the computation of step number ``step`` takes on rank ``rank``. The random number
        depends only on (seed, rank, step). Runs with different algorithms therefore get the same computing times."""
        median = self.median * self.slowdown.get(rank, 1.0)
        if not self.sigma:
            return median
        random = seeding.generator(seeding.Purpose.COMPUTE_TIMES, self.seed, rank, step)
        return median * exp(self.sigma * random.standard_normal())

    def __str__(self):
        form = f"lognormal:{self.median!r},{self.sigma!r}" if self.sigma else f"constant:{self.median!r}"
        factors = ", ".join(f"{rank} = {factor:g}" for rank, factor in self.slowdown.items())
        after = self.after_wait and replace(self.after_wait, slowdown={})
        parts = [form, f"after a wait {after}" * bool(after), f"and {self.work:g} s of the algorithm" * bool(self.work)]
        return ", ".join(filter(None, [*parts, f"slowdown {{ {factors} }}" * bool(factors)]))


class AfterWaits:
    """Function that returns the seconds of a step's computation on one rank, which may depend on the rank's wait before
    the step. A step after a wait can take more or less time than a step without a wait.

    A wait changes the time of a step because a waiting rank saves its quota of processor time, and because caches
    become cold. The logarithm of the seconds changes linearly with the length of the wait, until the wait reaches
    `AFTER_WAIT_SECONDS`.

    ``waited()`` returns the total seconds for which the rank has waited since the start of the run.
    """

    def __init__(self, compute: ComputeTime, waited: Callable[[], float]):
        self.compute, self.waited = compute, waited
        self.before = 0.0

    def __call__(self, rank: int, step: int) -> float:
        """Return the seconds that the computation of step number ``step`` takes, which the rank begins now."""
        waited = self.waited()
        share = min((waited - self.before) / AFTER_WAIT_SECONDS, 1.0)
        self.before = waited
        usual, after = self.compute(rank, step), self.compute.after_wait(rank, step)  # same random number
        return usual * (after / usual) ** share


def parse(text: str) -> tuple[str, list[float]]:
    """Return the name of the form and the numbers in ``text``, the value of the option ``--compute``. Raises
    ConfigError if ``text`` has none of the forms that `FORMS` lists."""
    form, _, rest = text.partition(":")
    counts = {"constant": 1, "lognormal": 2, "flops": 1, "measured": 0}
    try:
        numbers = [float(number) for number in rest.split(",")] if rest else []
    except ValueError:
        numbers = None
    if numbers is None or counts.get(form) != len(numbers):
        raise ConfigError(f"--compute {text!r}: allowed: {FORMS}")
    if not all(isfinite(number) and number >= 0 for number in numbers) or (form == "flops" and not numbers[0]):
        allowed = "a finite number above 0" if form == "flops" else "finite numbers of 0 or more"
        raise ConfigError(f"--compute {text!r}: allowed: {allowed}")
    if form == "lognormal" and numbers[1] > MAX_SIGMA:
        raise ConfigError(f"--compute {text!r}: SIGMA = {numbers[1]:g}: allowed: 0 to {MAX_SIGMA:g}")
    return form, numbers


def check_end(config: Config, compute: ComputeTime):
    """Raise ConfigError for a run that would never end: it ends after ``train.seconds``, but a simulated step takes 0
    seconds."""
    if config.train.seconds is not None and not compute.median:
        raise ConfigError(
            f"--compute {compute}: a step takes no time, so a run of train.seconds = {config.train.seconds:g} would "
            "never end; allowed: more than 0 seconds per step, or train.epochs, steps or samples"
        )


def check_free_running(config: Config, compute: ComputeTime, latency: float):
    """Raise ConfigError if steps of an asynchronous algorithm take 0 seconds of simulated time. With steps of 0
    seconds, simulated time would never advance. The message that ends the run would never arrive, and ranks would take
    steps for ever."""
    if latency + compute.median == latency:
        raise ConfigError(
            f"--compute {compute}: a step takes no time, so {config.algorithm.name} would never end: no rank waits, "
            "and the message that ends the run needs time to arrive; allowed: more than 0 seconds per step"
        )


def flops(model: torch.nn.Module, sample: torch.Tensor, batch_size: int) -> int:
    """Return the number of floating-point operations of a forward and a backward pass of ``model``.

    The counted passes have a batch of ``batch_size`` inputs with the shape and dtype of ``sample``. The operations are
    counted on a copy of the model whose parameters are all zero. If the model is larger than `COUNTED_BYTES`, torch
    counts the operations without executing them.
    """
    is_small = sum(parameter.nbytes for parameter in model.parameters()) <= COUNTED_BYTES
    device = "cpu" if is_small else "meta"
    inputs = torch.zeros(batch_size, *sample.shape, dtype=sample.dtype, device=device)
    model = copy.deepcopy(model)._apply(lambda tensor: torch.zeros(tensor.shape, dtype=tensor.dtype, device=device))
    plain = sdpa_kernel(SDPBackend.MATH)  # torch's counter does not know all operations of fused attention
    with torch.random.fork_rng(devices=[]), plain, unwrapped.flop_counter() as counter:
        model(inputs).sum().backward()
    return counter.get_total_flops()


COUNTED_BYTES = 4 * 1024 * 1024
"""Size in bytes of the largest model whose operations are counted by executing them.

For a larger model, torch counts operations without executing them, for which torch must load its compiler. Loading
torch's compiler takes 1.7 s and 75 MB of memory.
"""
UNTIMED_STEPS = 3
"""Number of steps at the beginning of a measurement that are not timed, because first steps allocate memory."""


def measure(step: Callable[[], None], steps: int = 30) -> tuple[float, float]:
    """Measure ``steps`` calls of ``step()``. Return the median of the calls' real seconds, and the standard deviation
    (sigma) of the logarithm of the seconds. ``step()`` computes a gradient and updates the model.
    """
    ((median, sigma),) = medians_and_sigmas(np.array([seconds_of_steps(step, steps)]))
    return median, sigma


def seconds_of_steps(
    step: Callable[[], None], steps: int, share: float | None = None, wait: Callable[[], None] | None = None
) -> list[float]:
    """Return the real seconds of each of ``steps`` calls of ``step()``.

    share: fraction of a core to which this process is limited; None means a whole core. Linux enforces a limit of
    processor time by a quota per period of some milliseconds. By the clock, a short step under a limit therefore takes
    either its time at full speed, or several times as long. If ``share`` is given, the function therefore returns the
    processor time of each step, divided by ``share``. wait: function that is called before each step. The time of
    ``wait()`` is not part of the result.
    """
    clock = perf_counter if share is None else process_time
    seconds = []
    for _ in range(steps + UNTIMED_STEPS):
        if wait is not None:
            wait()
        begin = clock()
        step()
        seconds.append((clock() - begin) / (share or 1.0))
    return seconds[UNTIMED_STEPS:]


def medians_and_sigmas(seconds: np.ndarray) -> list[tuple[float, float]]:
    """Return two numbers for each rank: the median of the seconds of its steps, and the standard deviation (sigma) of
    the logarithm of these seconds.

    seconds: float64 of shape [ranks, steps]. Column number i has the seconds of steps that the ranks computed at about
    the same time. A slowdown that affects all ranks at once does not increase sigma, because a simulation draws the
    times of each rank independently. If slowdowns of all ranks increased sigma, simulated ranks would wait for the
    slowest rank for too long.
    """
    ranks, medians = len(seconds), np.median(seconds, axis=1)
    logs = np.log(seconds / medians[:, None])
    if ranks > 1:
        logs = (logs - logs.mean(axis=0)) * np.sqrt(ranks / (ranks - 1))  # corrects sigma for the subtracted mean
    low, high = np.percentile(logs, [25, 75], axis=1)
    sigmas = (high - low) / 1.349  # unlike a standard deviation, the quartiles are not changed by outliers
    return [(float(median), float(sigma)) for median, sigma in zip(medians, sigmas, strict=True)]
