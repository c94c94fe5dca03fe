"""Functions that load the data set of a configuration, and build the model with which all ranks start."""

from contextlib import contextmanager
from typing import NamedTuple

import torch

from grsgd import data, outside
from grsgd.config import Config
from grsgd.data import Dataset
from grsgd.data.base import CLASSES, REGISTER
from grsgd.data.part import part_of
from grsgd.errors import ConfigError, UsageError
from grsgd.models import zoo
from grsgd.options import check_kind
from grsgd.seeding import Purpose, seed_torch
from grsgd.text import printable


def load_data(config: Config) -> Dataset:
    """Load the data set that ``config`` names, and return the classes and samples that the run uses. Raises ConfigError
    or DataError.

    If a batch is larger than a rank's shard of the training data, the batch has samples of the shard several times. A
    batch larger than all training data raises ConfigError.
    """
    chosen = config.data
    try:
        defaults = data.find(chosen.name).options
    except ConfigError as error:
        raise ConfigError(f"data.name = {error}") from None
    if "seed" in chosen.options:
        raise ConfigError("data.seed: unknown option; data are generated with the seed of the run: seed = N")
    for key, value in chosen.options.items():
        default = defaults.get(key)
        check_kind(f"data.{key}", value, default, whole=not isinstance(default, float))
    whole = data.load(chosen.name, chosen.dir, seed=config.seed, **chosen.options)
    check_targets(config, whole)
    dataset = part_of(whole, chosen.only_classes, chosen.only_train, chosen.only_test)
    if chosen.batch_size > len(dataset.train):
        raise ConfigError(
            f"data.batch_size = {chosen.batch_size}: larger than the training data; allowed: 1 to {len(dataset.train)}"
        )
    return dataset


def check_targets(config: Config, dataset: Dataset):
    """Raise ConfigError if the task of ``config`` needs another kind of targets than the data set has. Raise
    ConfigError if the options ``alpha`` or ``only_classes`` are given for a data set without classes."""
    kind, name = config.make_task().targets, config.data.name
    if kind not in (None, dataset.targets):
        raise ConfigError(
            f"task.name = {config.task.name!r}: is for {kind}, and the targets of {name} are {dataset.targets}: name "
            "another task, such as classification, language_modelling or regression"
        )
    for key in ("alpha", "only_classes"):
        if dataset.targets != CLASSES and getattr(config.data, key):
            raise ConfigError(f"data.{key}: the samples of {name} have no classes")
    if kind == CLASSES and (least := min(int(part.labels.min()) for part in (dataset.train, dataset.test))) < 0:
        raise ConfigError(f"data.name = {name!r}: a label is {least}: labels of {config.task.name} count from 0")


OWN = {
    "model": "models",
    "data": "data",
    "task": "tasks",
    "algorithm": "algorithms",
    "optimizer": "optimizers",
    "schedule": "schedules",
}
"""Dict whose keys are the sections of the configuration in which ``name`` may name the user's own code
(``FILE.py:NAME``). The values of `OWN` are the names of the kinds of code in `grsgd.outside`, such as "models"."""


@contextmanager
def in_own_code(config: Config, elsewhere: str | None = None):
    """Convert an exception that the user's own code raises in the ``with`` block into a ConfigError with file and line.

    An exception that other code raises becomes a ConfigError whose text begins with ``elsewhere``. If ``elsewhere`` is
    None, an exception that other code raises stays unchanged.
    """
    try:
        yield
    except UsageError:
        raise
    except Exception as error:
        for key, kind in OWN.items():
            name = getattr(config, key).name
            fault = outside.fault_in(outside.loaded(name, kind), error) if outside.place_of(name, kind) else None
            if fault is not None:
                raise ConfigError(fault) from error
        if elsewhere is None:
            raise
        text = " ".join(str(error).split())
        raise ConfigError(f"{elsewhere}: {type(error).__name__}: {text}") from error


class Images(NamedTuple):
    """Shape of the samples of a data set, and the number of classes. The shape and the number of classes determine the
    sizes of a model's layers."""

    shape: tuple[int, ...]
    """Shape of one sample: (channels, height, width) for images, (number of tokens,) for texts."""
    classes: int


def images_of(config: Config) -> Images:
    """Return the shape and the number of classes of the data set of ``config``. The data are loaded only if the
    register of data sets lacks the shape or the number of classes. Raises ConfigError or DataError if the data must be
    loaded and cannot be loaded."""
    entry, only = REGISTER.get(config.data.name), config.data.only_classes
    if entry is None or entry.shape is None or entry.classes is None:
        dataset = load_data(config)
        return Images(dataset.shape, dataset.classes)
    return Images(entry.shape, only or entry.classes)


def build_model(config: Config, images: Dataset | Images, device: torch.device) -> torch.nn.Module:
    """Build the model of ``config``, with the initial weights, which are the same on all ranks. Raises ConfigError if
    the model cannot be built."""
    seed_torch(device, Purpose.INITIAL_MODEL, config.seed)
    try:
        with in_own_code(config):
            model = zoo.build(config.model.name, images.shape, images.classes, **config.model.options)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"model.name = {config.model.name!r}: {error}") from None
    except RuntimeError as error:  # torch raises RuntimeError for sizes that exceed the memory
        raise ConfigError(f"model.name = {config.model.name!r}: {printable(str(error), 200)}") from error
    return model.to(device)
