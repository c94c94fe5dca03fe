"""How long a step's computation takes in simulated time."""

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
from grsgd.simulate.network import AFTER_WAIT_SECONDS, MAX_SIGMA, ComputeSpec
from grsgd.training import unwrapped

FORMS = "constant:SECONDS, lognormal:MEDIAN,SIGMA, flops:PER_SECOND, measured"
DEFAULT = "flops:1e10"
"""Where the user says nothing: 10 Gflop/s, about one core of a CPU on a small model."""


@dataclass(frozen=True)
class ComputeTime:
    """How long computations take, log-normally distributed.

    Parameters
    ----------
    median
        Seconds.
    sigma
        Of the logarithm of the seconds; 0 is constant.
    seed
        Of the random numbers.
    slowdown
        By rank, a factor; 1 for the others.
    after_wait
        That of steps which follow a long wait, where it is another; see `AfterWaits`.
    work
        Seconds that a step of the algorithm takes more, beside its messages: its own code.
    """

    median: float
    sigma: float = 0.0
    seed: int = 0
    slowdown: dict[int, float] = field(default_factory=dict)
    after_wait: "ComputeTime | None" = None
    work: float = 0.0

    @classmethod
    def of(cls, spec: ComputeSpec, seed: int) -> "ComputeTime":
        """Return that of a network's file."""
        after = spec.after_wait and cls(spec.after_wait, spec.after_wait_sigma, seed, spec.slowdown)
        return cls(spec.median, spec.sigma, seed, spec.slowdown, after, spec.work)

    def __call__(self, rank: int, step: int) -> float:
        """Return the seconds of a rank's step, keyed by (seed, rank, step) and so the same for every algorithm."""
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
    """How long the computations of one rank take, of which those after a wait may take another time: a processor's
    quota is unused then, and caches are cold. From no wait to `AFTER_WAIT_SECONDS` the logarithm of the time changes
    evenly.

    ``waited()``: for how many seconds the rank has waited in all.
    """

    def __init__(self, compute: ComputeTime, waited: Callable[[], float]):
        self.compute, self.waited = compute, waited
        self.before = 0.0

    def __call__(self, rank: int, step: int) -> float:
        """Return the seconds of the rank's step, which begins now."""
        waited = self.waited()
        share = min((waited - self.before) / AFTER_WAIT_SECONDS, 1.0)
        self.before = waited
        usual, after = self.compute(rank, step), self.compute.after_wait(rank, step)  # of the same random number
        return usual * (after / usual) ** share


def parse(text: str) -> tuple[str, list[float]]:
    """Return the form and the numbers of ``--compute``; raises ConfigError."""
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
    """Raise ConfigError for a run that would never end: one that ends after a time of which its steps need none."""
    if config.train.seconds is not None and not compute.median:
        raise ConfigError(
            f"--compute {compute}: a step takes no time, and train.seconds = {config.train.seconds:g} would never be "
            "over; allowed: more than 0 seconds a step, or train.epochs, steps or samples"
        )


def check_free_running(config: Config, compute: ComputeTime, latency: float):
    """Raise ConfigError for ranks that learn by messages that the run is over, and whose steps let no time pass."""
    if latency + compute.median == latency:
        raise ConfigError(
            f"--compute {compute}: a step takes no time, and {config.algorithm.name} would never end: no rank waits, "
            "and the message that the run is over arrives when time has passed; allowed: more than 0 seconds a step"
        )


def flops(model: torch.nn.Module, sample: torch.Tensor, batch_size: int) -> int:
    """Count the floating-point operations of a forward and a backward pass, of a copy of ``model`` full of zeros, for
    batches of inputs like ``sample``; those of a large model are not done."""
    is_small = sum(parameter.nbytes for parameter in model.parameters()) <= COUNTED_BYTES
    device = "cpu" if is_small else "meta"
    inputs = torch.zeros(batch_size, *sample.shape, dtype=sample.dtype, device=device)
    model = copy.deepcopy(model)._apply(lambda tensor: torch.zeros(tensor.shape, dtype=tensor.dtype, device=device))
    plain = sdpa_kernel(SDPBackend.MATH)  # the operations of fused attention are not all known to the counter
    with torch.random.fork_rng(devices=[]), plain, unwrapped.flop_counter() as counter:
        model(inputs).sum().backward()
    return counter.get_total_flops()


COUNTED_BYTES = 4 * 1024 * 1024
"""The operations of models of up to this size are done to be counted: where they are not, torch loads its compiler,
which takes 1.7 s and 75 MB."""
UNTIMED_STEPS = 3
"""The first ones allocate."""


def measure(step: Callable[[], None], steps: int = 30) -> tuple[float, float]:
    """Return the median, and sigma of the logarithm, of the real seconds that ``step()`` takes: gradient and update."""
    ((median, sigma),) = medians_and_sigmas(np.array([seconds_of_steps(step, steps)]))
    return median, sigma


def seconds_of_steps(
    step: Callable[[], None], steps: int, share: float | None = None, wait: Callable[[], None] | None = None
) -> list[float]:
    """Return the real seconds of each of so many ``step()``.

    share: of a core that this process is limited to; None: it has a whole one. Limits are kept over some milliseconds,
    so that a short step takes its time at full speed or several times as long, by turns; with a share it is what it
    takes of the processor, divided by the share.
    wait: is called before each step, and not timed.
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
    """Return the median, and sigma of the logarithm, of the steps of each rank.

    seconds: float64 of shape [ranks, steps], of steps that ranks take at about the same time. What makes steps longer
    on all ranks at once is no part of sigma: in a simulation each rank draws times of its own, and those that wait for
    the last one would wait too long.
    """
    ranks, medians = len(seconds), np.median(seconds, axis=1)
    logs = np.log(seconds / medians[:, None])
    if ranks > 1:
        logs = (logs - logs.mean(axis=0)) * np.sqrt(ranks / (ranks - 1))  # of independent steps: as before
    low, high = np.percentile(logs, [25, 75], axis=1)
    sigmas = (high - low) / 1.349  # of a normal distribution, whatever the outliers
    return [(float(median), float(sigma)) for median, sigma in zip(medians, sigmas, strict=True)]
