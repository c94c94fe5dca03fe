"""Checks of the values that a script gives to a recording: arguments, configuration and logged values."""

import operator
import os
import sys
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import tomli_w

from grsgd.errors import ConfigError
from grsgd.job import launch
from grsgd.own_loop.distributed_optimizer import DistributedOptimizer
from grsgd.runs.loggers import Logger
from grsgd.runs.metric import ACCURACY, Metric, attributes_of, check_metric
from grsgd.runs.run_file import why_unfit
from grsgd.training.description import describe_algorithm

OURS = ("time", "step", "samples")
"""Names of the curve's columns that grsgd measures itself, and that a script therefore cannot log."""
MAX_NAMES = 1000
"""Largest number of names that a rank may log. Each name is a column of the curve."""


def path_of(path) -> Path:
    """Return ``path``, the path of the run file, as a Path. Raises ConfigError if ``path`` is no path."""
    if not isinstance(path, str | os.PathLike) or not os.fspath(path):
        raise ConfigError(f"recording(): the first argument is {path!r}: give the name of the run file to be written")
    return Path(path)


def size_of_batch(batch_size) -> int | None:
    """Return ``batch_size``, the number of samples per rank and step, as an int. Numbers of NumPy and torch are
    accepted. Raises ConfigError for any other value."""
    if batch_size is None:
        return None
    try:
        size = operator.index(batch_size)
    except TypeError:
        size = 0
    if size < 1 or isinstance(batch_size, bool):
        raise ConfigError(f"recording(): batch_size = {batch_size!r}: must be a whole number above 0")
    return size


def list_of_loggers(loggers) -> list[Logger]:
    """Return ``loggers``, the objects that receive numbers during the loop, as a list. Raises ConfigError for an unfit
    object."""
    listed = list(loggers) if isinstance(loggers, Iterable) and not isinstance(loggers, str) else [loggers]
    for logger in listed:
        methods = [getattr(logger, name, None) for name in ("log", "close")]
        if isinstance(logger, type) or not all(map(callable, methods)) or not isinstance(loggers, Iterable):
            raise ConfigError(
                f"recording(): loggers = {loggers!r}: must be a list of objects with log(step, values) and close(), "
                'such as [grsgd.CsvLogger("mine.csv")]'
            )
    return listed


class Logged:
    """Names and values that a rank logs with `LoopRun.log`. Each name is checked at its first use."""

    def __init__(self, metric: Metric):
        self._metric = metric
        self._fractions = {metric.name, *(f"{metric.column}{end}" for end in ("", "_min", "_max"))}
        self._names: set[str] = set()

    def numbers(self, values: dict) -> dict[str, float]:
        """Return ``values`` as floats by name, without the values that are None.

        Raises ValueError for a name that cannot be a column of a run file, for more names than `MAX_NAMES`, and for an
        accuracy that is no fraction. Raises TypeError for a value that is not one number.
        """
        return {name: self._number(name, value) for name, value in values.items() if value is not None}

    def _number(self, name: str, value) -> float:
        if name not in self._names:
            self._check(name)
            self._names.add(name)
        try:
            value = float(value.item() if hasattr(value, "item") else value)
        except (TypeError, ValueError, RuntimeError, OverflowError):
            # float() of a tensor with several elements raises RuntimeError
            raise TypeError(f"log(): {name} must be one number, not {type(value).__name__}") from None
        if self._metric.unit == "%" and name in self._fractions and (value < 0 or value > 1):
            raise ValueError(f"log(): {name} = {value:g}: must be a fraction from 0 to 1")
        return value

    def _check(self, name: str):
        if name in OURS or "/" in name:
            measured = ", ".join(OURS)
            raise ValueError(f"log(): {name!r} cannot be a column: {measured} are measured, and '/' means a group")
        if len(self._names) == MAX_NAMES:
            raise ValueError(f"log(): {name!r} is one name more than {MAX_NAMES}: each name is a column of the curve")
        if problem := why_unfit(name, np.zeros(1)):
            raise ValueError(f"log(): {name!r} cannot be a column of a run file: {problem}")


def describe(optimizer: DistributedOptimizer, batch_size: int | None, metric: Metric, config: dict) -> dict:
    """Return the root attributes of the run file, except the attributes about hosts, times and the end of the run."""
    algorithm, transport = optimizer.algorithm, optimizer.transport
    check_metric(metric)
    if metric.name in ("loss", *OURS):
        raise ConfigError(f"recording(): a metric cannot be called {metric.name!r}: log() uses this name already")
    given = plain(config if batch_size is None else {**config, "batch_size": batch_size})
    options = {"name": algorithm.name} | algorithm.options.model_dump(exclude_none=True)
    attributes = describe_algorithm(algorithm) | {
        "replication": 1,
        "seed": optimizer.seed,
        "model": type(optimizer.replica.model).__name__,
        "batch_size": batch_size,
        "config": tomli_w.dumps({"algorithm": options, "config": given}),
        "script": readable(sys.argv[0]) or None,
        "arguments": [readable(argument) for argument in sys.argv[1:]] or None,
        "clock": "wall",
        "mpi": launch.library(),
        "transfer": transport.name,
        "transfers": str(transport),
        **optimizer.reasons,
    }
    target = "target_accuracy" if metric == ACCURACY else "target"
    kinds = {"seed": int, "dataset": str, "model": str, "label": str, "train_samples": int, target: float}
    for name, kind in kinds.items():
        value = given.get(name)
        if value is None:
            continue
        if not isinstance(value, (int, float) if kind is float else kind) or isinstance(value, bool):
            raise ConfigError(f"recording(): {name} = {config[name]!r}: must be of type {kind.__name__}")
        attributes[name] = value
    if attributes.get("train_samples", 1) < 1:
        raise ConfigError(f"recording(): train_samples = {attributes['train_samples']}: must be 1 or more")
    if metric.unit == "%" and not 0 <= attributes.get(target, 0) <= 1:
        raise ConfigError(f"recording(): {target} = {attributes[target]:g}: must be a fraction from 0 to 1")
    return attributes | attributes_of(metric, attributes.get(target))


def readable(argument: str) -> str:
    r"""Return an argument of the script, in which bytes that are not UTF-8 are written as ``\xe9``. A run file cannot
    hold bytes that are not UTF-8."""
    return os.fsencode(argument).decode(errors="backslashreplace")


def plain(value):
    """Return ``value``, a value of the configuration, in a type that TOML has: a number, text, list or table. A value
    of any other type becomes text."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, dict):
        return {str(key): plain(each) for key, each in value.items() if each is not None}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value if each is not None]
    return value if isinstance(value, bool | int | float | str) else str(value)
