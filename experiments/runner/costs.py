"""Estimates of the durations of runs, for forecasts.

An estimate comes from existing runs of the same kind, which differ only in seed and learning rate. If no run of the
same kind exists, the estimate is computed from the model's measured time per sample on this machine and from the
simulator's time per step. The computed estimate is multiplied by the ratio of real to computed seconds in existing
runs of the model.
"""

import functools
import time
from collections import defaultdict
from collections.abc import Callable
from statistics import median
from typing import NamedTuple

import torch

from experiments.runner.run_spec import MEASURED, TIMING_ONLY, RunSpec
from grsgd.config import Config
from grsgd.data.base import REGISTER
from grsgd.runs.run_file import Run
from grsgd.training.device import use_threads
from grsgd.training.inputs import Images, build_model, images_of
from grsgd.units import rate

UNKNOWN_SIZES, UNKNOWN_IMAGES = (1_281_167, 50_000), Images((3, 224, 224), 1000)
"""Sizes that are assumed for an unknown folder of images, equal to ImageNet's.

The assumed sizes are the numbers of training and test images, and the images' shape and classes.
"""
CLOCK_START_SECONDS, START_SECONDS = 3.0, 0.4
"""Seconds of a run beyond training and evaluation: of a measured run (first), and of a simulated run (second)."""
STEP_SECONDS, MESSAGE_SECONDS = 1e-3, 1e-4
"""Seconds that the simulator takes per step of a rank without its gradient (first), and per message (second)."""
COPY_SECONDS = 1e-9
"""Seconds that the simulator takes per byte of a model that is sent to a rank and merged there."""
TO_TARGET = 0.6
"""Fraction of a training's samples after which the training is assumed to reach its target accuracy."""
MIN_TIMED_SECONDS = 0.3
"""Least number of seconds during which the steps of a model are timed for an estimate."""
MAX_TIMED_SAMPLES = 256
"""Greatest number of samples in the batch with which a model is timed for an estimate."""


class Seconds(NamedTuple):
    """The seconds that a run takes, divided into the seconds of its training and all other seconds."""

    training: float
    other: float
    """Seconds for the start of the run, and for the evaluation of the model in snapshots."""


@functools.cache
def expected(spec: RunSpec, cpu: float) -> Seconds:
    """Return the seconds that a run probably takes on hosts with ``cpu`` cores each, whatever runs exist."""
    loaded = spec.load()
    samples = samples_of(loaded, spec.ranks)
    steps = samples / loaded.data.batch_size
    if spec.source == TIMING_ONLY:
        return Seconds(steps * (STEP_SECONDS + 2 * spec.ranks * MESSAGE_SECONDS), START_SECONDS)
    model = cost_of_model(loaded)
    evaluated = loaded.train.snapshots * (1 + spec.ranks * loaded.train.evaluate_replicas) * sizes(loaded)[1]
    computing = samples * model.train_seconds * computed_times(loaded)
    if spec.source == MEASURED:
        computing = max(computing, steps * loaded.train.compute_seconds)
        slowest = max((factor for _, factor in spec.slow_hosts), default=1.0)
        training = (computing * slowest / cpu + 2 * steps * model.bytes / rate(spec.link.rate)) / spec.ranks
        return Seconds(loaded.train.seconds or training, CLOCK_START_SECONDS + evaluated * model.test_seconds)
    simulating = steps * (STEP_SECONDS + 4 * model.bytes * COPY_SECONDS)
    part = TO_TARGET if loaded.train.stop_at_target else 1.0
    return Seconds(part * (computing + simulating), START_SECONDS + part * evaluated * model.test_seconds)


def samples_of(loaded: Config, ranks: int) -> float:
    """Return the number of samples on which all ranks together train; 0 if the number depends on time."""
    train = loaded.train
    if train.steps is not None:
        return train.steps * ranks * loaded.data.batch_size
    return train.samples or (train.epochs or 0) * sizes(loaded)[0]


def computed_times(loaded: Config) -> int:
    """Return the number of ranks that compute the gradient of each sample, which is greater than 1 with redundancy."""
    redundancy = getattr(loaded.algorithm_options, "r", 1)
    return redundancy if loaded.algorithm_class.name == "cssgd" and isinstance(redundancy, int) else 1


def sizes(loaded: Config) -> tuple[float, float]:
    """Return the number of training samples and the number of test samples of a configuration's data."""
    data, entry = loaded.data, REGISTER.get(loaded.data.name)
    train, test = entry.samples if entry and entry.samples else UNKNOWN_SIZES
    part = data.only_classes / entry.classes if data.only_classes and entry and entry.classes else 1
    return data.only_train or part * train, data.only_test or part * test


class ModelCost(NamedTuple):
    """The cost of a model on this machine: seconds per sample to train and to evaluate, and bytes of parameters."""

    train_seconds: float
    test_seconds: float
    bytes: int


def cost_of_model(loaded: Config) -> ModelCost:
    """Return the cost of a configuration's model with its batches; a process measures each model only once."""
    entry = REGISTER.get(loaded.data.name)
    images = images_of(loaded) if entry and entry.shape else UNKNOWN_IMAGES
    batch = min(loaded.data.batch_size, MAX_TIMED_SAMPLES)
    key = repr(loaded.model), batch, images
    if key not in _costs:
        _costs[key] = measure_cost(build_model(loaded, images, torch.device("cpu")), batch, images)
    return _costs[key]


_costs: dict[tuple, ModelCost] = {}


def measure_cost(network: torch.nn.Module, batch: int, images: Images) -> ModelCost:
    """Measure the cost of a model with batches of ``batch`` samples, on as many threads as a simulation uses."""
    use_threads()
    x, y = torch.rand(batch, *images.shape), torch.zeros(batch, dtype=torch.int64)

    def train():
        torch.nn.functional.cross_entropy(network(x), y).backward()

    def test():
        with torch.no_grad():
            network(x)

    size = sum(parameter.numel() * parameter.element_size() for parameter in network.parameters())
    return ModelCost(seconds_of(train) / batch, seconds_of(test) / batch, size)


def seconds_of(step: Callable[[], None]) -> float:
    """Return the processor seconds of one call of ``step``, as the mean over several calls without the first one."""
    step()
    began, steps = time.process_time(), 0
    while time.process_time() < began + MIN_TIMED_SECONDS:
        step()
        steps += 1
    return (time.process_time() - began) / steps


# ---- functions that estimate durations


class Costs:
    """Estimates of the durations of runs: processor seconds of simulated runs, and wall-clock seconds of measured runs.

    cpu: number of cores of each host of the testbed. expect: function from a run and the number of cores to the
    expected `Seconds`, which is called if no run of the same kind exists. The default of ``expect`` is `expected`.
    """

    def __init__(self, cpu: float, expect: Callable[[RunSpec, float], Seconds] = expected):
        self.cpu, self.expect = cpu, expect
        self._took: dict[RunSpec, list[float]] = defaultdict(list)
        self._factors: dict[tuple, list[float]] = defaultdict(list)

    def learn(self, spec: RunSpec, run: Run):
        """Use the duration of the existing run ``run`` for the estimates of similar runs."""
        took = seconds_taken(run)
        if spec.source == MEASURED:  # the attribute wall_seconds of a measured run covers only the training
            took += self.expect(spec, self.cpu).other
        self._took[kind(spec)].append(took)
        self._factors[_alike(spec)].append(took / sum(self.expect(spec, self.cpu)))

    def seconds(self, spec: RunSpec) -> float:
        """Return the estimated seconds of the run ``spec``."""
        if took := self._took.get(kind(spec)):
            return median(took)
        return sum(self.expect(spec, self.cpu)) * median(self._factors.get(_alike(spec), [1.0]))


def seconds_taken(run: Run) -> float:
    """Return the processor seconds that a simulated run took, or the wall-clock seconds that a measured run took.

    If an old run file has no processor time, its wall-clock time is returned, which is longer if other programs used
    the processor.
    """
    return run.attributes.get("processor_seconds", run.attributes["wall_seconds"])


def kind(spec: RunSpec) -> RunSpec:
    """Return the specification of a run without seed, learning rate and place.

    Runs of one kind take about equally long.
    """
    kept = tuple(value for value in spec.overrides if not value.startswith(("seed=", "optimizer.lr=")))
    return spec._replace(overrides=kept, place="")


def _alike(spec: RunSpec) -> tuple:
    loaded = spec.load()
    return spec.source, loaded.model.name, loaded.data.name, loaded.train.stop_at_target
