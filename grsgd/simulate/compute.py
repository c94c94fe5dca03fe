"""How long a step's computation takes in simulated time."""

import copy
import statistics
from dataclasses import dataclass, field
from math import exp, isfinite, log
from time import perf_counter

import numpy as np
import torch
from torch.utils.flop_counter import FlopCounterMode

from grsgd.config import Config, ConfigError
from grsgd.simulate.network import GREATEST_SIGMA
from grsgd.train import Trainer

FORMS = "constant:SECONDS, lognormal:MEDIAN,SIGMA, flops:PER_SECOND, measured"
DEFAULT = "flops:1e10"
"""Without a word of the user: 10 Gflop/s, about one core of a CPU on a small model."""
COMPUTE_STREAM = 0x636F6D70
"""Keeps these random numbers apart from others that are keyed by (seed, rank, step)."""


@dataclass(frozen=True)
class ComputeTime:
    """Log-normally distributed seconds: their ``median``, and the ``sigma`` of their logarithm; 0 is constant.

    ``slowdown``: by rank, a factor; 1 for the others.
    """

    median: float
    sigma: float = 0.0
    seed: int = 0
    slowdown: dict[int, float] = field(default_factory=dict)

    def __call__(self, rank: int, step: int) -> float:
        """Seconds of a rank's step, keyed by (seed, rank, step) and so the same for every algorithm."""
        median = self.median * self.slowdown.get(rank, 1.0)
        if not self.sigma:
            return median
        random = np.random.default_rng((self.seed, rank, step, COMPUTE_STREAM))
        return median * exp(self.sigma * random.standard_normal())

    def __str__(self):
        form = f"lognormal:{self.median!r},{self.sigma!r}" if self.sigma else f"constant:{self.median!r}"
        factors = ", ".join(f"{rank} = {factor:g}" for rank, factor in self.slowdown.items())
        return form + (f", slowdown {{ {factors} }}" if factors else "")


def parse(text: str) -> tuple[str, list[float]]:
    """The form and the numbers of ``--compute``; raises ConfigError."""
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
    if form == "lognormal" and numbers[1] > GREATEST_SIGMA:
        raise ConfigError(f"--compute {text!r}: SIGMA = {numbers[1]:g}: allowed: 0 to {GREATEST_SIGMA:g}")
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
            f"--compute {compute}: a step takes no time, and {config.algorithm.name} would never end: nobody waits, "
            "and word that the run is over arrives when time has passed; allowed: more than 0 seconds a step"
        )


def flops(model: torch.nn.Module, shape: tuple[int, ...], batch_size: int) -> int:
    """Floating-point operations of a forward and a backward pass; ``model`` is not used, a copy without content is."""
    model = copy.deepcopy(model).to("meta")
    with FlopCounterMode(display=False) as counter:
        model(torch.zeros(batch_size, *shape, device="meta")).sum().backward()
    return counter.get_total_flops()


def measure(trainer: Trainer, steps: int = 30) -> tuple[float, float]:
    """Median, and sigma of the logarithm, of the real seconds that gradient and update take. Trains the model."""
    seconds = []
    for _ in range(steps + 3):
        begin = perf_counter()
        trainer.gradient()
        trainer.algorithm.update()
        seconds.append(perf_counter() - begin)
    seconds = seconds[3:]  # the first ones allocate
    logs = [log(second) for second in seconds]
    low, _, high = statistics.quantiles(logs, n=4)
    return statistics.median(seconds), (high - low) / 1.349  # of a normal distribution, whatever the outliers


def alone(config: Config) -> Config:
    """The same training on one rank without any communication, to measure its computation."""
    return config.model_copy(
        update={"algorithm": type(config.algorithm)(name="ring_allreduce"), "stragglers": type(config.stragglers)()}
    )
