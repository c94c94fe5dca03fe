"""How long a step's computation takes in simulated time."""

import copy
import statistics
from collections.abc import Callable
from dataclasses import dataclass, field
from math import exp, isfinite, log
from time import perf_counter, process_time

import torch
from torch.utils.flop_counter import FlopCounterMode

from grsgd import seeding
from grsgd.config import Config
from grsgd.errors import ConfigError
from grsgd.simulate.network import MAX_SIGMA

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
    """

    median: float
    sigma: float = 0.0
    seed: int = 0
    slowdown: dict[int, float] = field(default_factory=dict)

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
        return form + (f", slowdown {{ {factors} }}" if factors else "")


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
    """Count the floating-point operations of a forward and a backward pass, of a copy of ``model`` without content, for
    batches of inputs like ``sample``."""
    inputs = torch.zeros(batch_size, *sample.shape, dtype=sample.dtype, device="meta")
    model = copy.deepcopy(model).to("meta")
    with FlopCounterMode(display=False) as counter:
        model(inputs).sum().backward()
    return counter.get_total_flops()


def measure(step: Callable[[], None], steps: int = 30, share: float | None = None) -> tuple[float, float]:
    """Return the median, and sigma of the logarithm, of the real seconds that ``step()`` takes: gradient and update.

    share: of a core that this process is limited to; None: it has a whole one. Limits are kept over some milliseconds,
    so that a short step takes its time at full speed or several times as long, by turns; with a share it is what it
    takes of the processor, divided by the share.
    """
    clock = perf_counter if share is None else process_time
    seconds = []
    for _ in range(steps + 3):
        begin = clock()
        step()
        seconds.append((clock() - begin) / (share or 1.0))
    seconds = seconds[3:]  # the first ones allocate
    logs = [log(second) for second in seconds]
    low, _, high = statistics.quantiles(logs, n=4)
    return statistics.median(seconds), (high - low) / 1.349  # of a normal distribution, whatever the outliers
