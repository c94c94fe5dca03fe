"""Tasks for which models are trained, such as classification, and functions that find and create tasks by name."""

import inspect

from grsgd import outside
from grsgd.errors import ConfigError
from grsgd.options import check_kind
from grsgd.runs.metric import Metric, check_metric
from grsgd.tasks.base import Task
from grsgd.tasks.classification import Classification
from grsgd.tasks.language_modelling import LanguageModelling
from grsgd.tasks.regression import Regression

__all__ = ["TASKS", "Metric", "Task", "build", "find"]

TASKS: dict[str, type[Task]] = {
    "classification": Classification,
    "language_modelling": LanguageModelling,
    "regression": Regression,
}


def find(name: str) -> type[Task]:
    """Return the class of the task called ``name``. ``name`` may name one of `TASKS`, a class in a user's file or
    module (`grsgd.outside`), or a task of a plug-in. Raises ConfigError if there is no task called ``name``."""
    if name in TASKS:
        return TASKS[name]
    found = outside.loaded(name, "tasks")
    if found is None:
        raise ConfigError(
            f"unknown task {name!r}; there are {', '.join(TASKS)}, FILE.py:CLASS and PACKAGE.MODULE:CLASS"
        )
    return found


def build(name: str, options: dict) -> Task:
    """Create the task called ``name`` with ``options``. Raises ConfigError for an unknown task, an unknown option, or a
    wrong value."""
    try:
        make = find(name)
    except ConfigError as error:
        raise ConfigError(f"task.name = {error}") from None
    allowed = {} if make.__init__ is object.__init__ else options_of(make)
    for key, value in options.items():
        if key not in allowed:
            raise ConfigError(f"task.{key}: unknown key; allowed: {', '.join(['name', *allowed])}")
        check_kind(f"task.{key}", value, allowed[key], whole=isinstance(allowed[key], int))
    try:
        task = make(**options)
        check_metric(task.metric)
    except Exception as error:  # a user's class may raise any exception
        raise ConfigError(f"task.name = {name!r}: {error}") from None
    return task


def options_of(make: type[Task]) -> dict:
    """Return the options of a task by name, with their defaults. The options of a task are the parameters of the
    constructor of its class ``make``."""
    return {name: parameter.default for name, parameter in inspect.signature(make).parameters.items()}
