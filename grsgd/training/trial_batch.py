"""Test of a batch or of a whole training step before a run, if the user has written the model, the data set or the
task."""

import numpy as np
import torch

from grsgd import outside
from grsgd.config import Config
from grsgd.data import Dataset
from grsgd.data.base import CLASSES, TOKENS
from grsgd.data.digest import evenly_spaced
from grsgd.errors import ConfigError
from grsgd.models.replica import output_of, to_device
from grsgd.seeding import seeded_alike
from grsgd.tasks import TASKS, Task
from grsgd.training.evaluation import score
from grsgd.training.gradients import step_alone
from grsgd.training.inputs import OWN, in_own_code

SAMPLES = 8
"""Largest number of samples in the batch with which `check_batch` tests the user's code."""
TRIED = ("model", "data", "task")
"""Sections of the configuration that may name the user's own code, which is tested with a batch."""
MAX_READ = 256
"""Largest number of samples that `try_a_step` reads from the training data, and from the test data. The indices of the
samples that are read are evenly spaced."""
ROUNDING = 0.02
"""Largest allowed relative difference between the loss of a batch that has each sample twice, and two times the loss of
the batch that has each sample once."""
RANDOM_GROWTH = 1.25
"""Smallest allowed ratio of the loss of a batch that has each sample twice to the loss of the batch that has each
sample once. `RANDOM_GROWTH` is used only if the losses of the user's task are random."""


def is_own(config: Config, *keys: str) -> bool:
    """Return whether one of the sections ``keys`` of ``config`` names an object that the user has written."""
    return any(outside.place_of(getattr(config, key).name, OWN[key]) for key in keys)


def check_batch(config: Config, dataset: Dataset, model: torch.nn.Module):
    """Test the model, the data set and the task if the user has written one of them. The test computes the loss and the
    metric of a few training samples.

    Raises ConfigError for errors that would stop training or evaluation.
    """
    if not is_own(config, *TRIED):
        return
    task, training = config.make_task(), model.training
    model.to(getattr(torch, config.dtype)).eval()
    with in_own_batch(config, SAMPLES), seeded_alike():
        few = np.arange(min(SAMPLES, len(dataset.train)))
        once, again, twice = (
            totals(config, dataset, model, task, indices) for indices in (few, few, np.concatenate([few, few]))
        )
    model.train(training)
    if config.task.name not in TASKS:
        check_sums(config, once, again, twice)


def try_a_step(config: Config, dataset: Dataset, model: torch.nn.Module):
    """Test the user's code: read samples, take one training step of one rank, and evaluate the model on a few samples.

    Do nothing if the user has written none of model, data set, task and optimizer. Raises ConfigError for any error in
    the test.
    """
    if not is_own(config, *TRIED, "optimizer"):
        return
    check_batch(config, dataset, model)
    size, task = config.data.batch_size, config.make_task()
    in_this_process = config.model_copy(update={"data": config.data.model_copy(update={"workers": 0})})
    with in_own_batch(config, size):
        for split in (dataset.train, dataset.test):
            numbers = np.array(evenly_spaced(len(split), MAX_READ))
            for _ in split.batches(np.split(numbers, range(size, len(numbers), size))):
                pass
        for part in step_alone(in_this_process, dataset, model):
            part()
        few = np.arange(min(SAMPLES, len(dataset.test)))
        task.metric_of(score(model, dataset.test, task, few, next(model.parameters()).device))


def in_own_batch(config: Config, samples: int):
    """Return a context manager for tests of the user's code. The context manager converts any exception in its block
    into a ConfigError that names the line in the user's code."""
    return in_own_code(config, f"{names(config)}: a batch of {samples} training samples")


def names(config: Config) -> str:
    """Return a text with the keys and values of the configuration that name the user's own code, for an error
    message."""
    return ", ".join(f"{key}.name = {getattr(config, key).name!r}" for key in OWN if is_own(config, key))


def totals(config: Config, dataset: Dataset, model: torch.nn.Module, task: Task, indices: np.ndarray) -> np.ndarray:
    """Return three results for the training samples ``indices`` as float64 [k + 2]: the loss, the sums of the task's k
    scores, and the number of items. Raises ConfigError if the model or the task returns a wrong type or shape."""
    parameter = next(model.parameters())
    x, y = next(iter(dataset.train.batches([indices])))
    items = task.count(y)
    x, y = to_device(x, y, parameter.device, parameter.dtype)
    made = output_of(model, x)
    if config.task.name in TASKS:
        check_outputs(config, dataset, made)
    loss = task.total_loss(made, y)
    if not torch.is_tensor(loss) or loss.numel() != 1 or not loss.requires_grad:
        what = type(loss).__name__
        if torch.is_tensor(loss):
            what = f"a tensor of shape {list(loss.shape)}" if loss.numel() != 1 else "a tensor without a gradient"
        raise ConfigError(
            f"task.name = {config.task.name!r}: total_loss() returns {what}, expected a tensor of one number with a "
            'gradient, the sum over the batch: reduction="sum"'
        )
    with torch.no_grad():
        sums = task.totals(made, y, items)
    task.metric_of(sums)
    return np.append(loss.item(), sums)


def check_outputs(config: Config, dataset: Dataset, made):
    """Raise ConfigError if the built-in task of ``config`` cannot use ``made``, the output of the model for a batch."""
    where = f"model.name = {config.model.name!r}"
    if not torch.is_tensor(made):
        raise ConfigError(f"{where}: returns {type(made).__name__}, expected a tensor: task {config.task.name}")
    classes, least = dataset.classes, 2 if dataset.targets == CLASSES else 3
    if dataset.targets in (CLASSES, TOKENS) and (made.ndim < least or made.shape[-1] < classes):
        raise ConfigError(
            f"{where}: returns shape {list(made.shape)} for a batch, but the targets of data.name = "
            f"{config.data.name!r} go up to {classes - 1}, counted from 0: expected {classes} numbers or more in the "
            "last dimension"
        )


def check_sums(config: Config, once: np.ndarray, again: np.ndarray, twice: np.ndarray):
    """Raise ConfigError if the loss, a score or the number of items does not double when a batch has each sample twice.

    ``once`` and ``again`` are two results of `totals` for the same batch. ``twice`` is the result of `totals` for a
    batch that has each sample of that batch twice.
    """
    if not np.array_equal(once, again):  # If losses are random, only a loss that hardly grows is certainly no sum.
        once, again, twice = (found[:1] for found in (np.minimum(once, again), again, twice))
        wrong = twice < RANDOM_GROWTH * once
    else:
        wrong = np.abs(twice - 2 * once) > ROUNDING * np.abs(2 * once)
    for number in np.flatnonzero(wrong & np.isfinite(once) & np.isfinite(twice)):
        what = "total_loss()" if number == 0 else "count()" if number == len(once) - 1 else "total_score()"
        raise ConfigError(
            f"task.name = {config.task.name!r}: {what} of a batch is {once[number]:.6g}, of the batch with each sample "
            f'twice {twice[number]:.6g}: it must double. Return a sum over the samples (reduction="sum"), not a mean'
        )
