"""The kinds of objects that a configuration may take from outside, and whether an object is of a kind; calls none.

A class is of a kind if it is derived from the kind's base class. A function does not say by itself what it does, so its
home decides. Functions of the user (in a file, or in a module that is not in ``site-packages``) and of plug-ins are
taken. Functions of an installed package are taken only if they are declared to return the kind's result. Functions of
the standard library, of this package and of the libraries that it is built on are refused, also if imported elsewhere.
"""

import functools
import inspect
import sys
import typing
from collections.abc import Iterable
from pathlib import Path
from types import FunctionType, MethodType
from typing import NamedTuple

PREFIX = "grsgd_outside_"
"""Beginning of the names of modules that are made of files: what they register is found by path, not by name."""
INSTALLED = {"site-packages", "dist-packages"}
"""Names of folders that hold packages which were installed."""
THIS = {"grsgd", "coding"}
"""Packages of this project."""
BUILT_ON = set("cupy h5py matplotlib mpi4py numba numpy pandas pydantic scipy simpy sklearn torch tqdm".split())
"""Libraries that this project uses: no function of theirs is a model or data, and some run what they are given as text,
such as ``torch.hub.load``."""


class Kind(NamedTuple):
    """A kind of objects.

    record: how a run file calls it. what: a word for it in errors. base: the full name of the base class, or "".
    result: the full name of the class that an installed package's function is declared to return, or "". expected: the
    end of the line that refuses something else.
    """

    record: str
    what: str
    base: str
    result: str
    expected: str


MODULE = "torch.nn.modules.module.Module"
DATASET = "grsgd.data.base.Dataset"
ALGORITHM = 'not an algorithm; write class NAME(grsgd.algorithms.Algorithm, name="...")'
KINDS = {
    "algorithms": Kind("algorithm", "class", "grsgd.algorithms.base.Algorithm", "", ALGORITHM),
    "models": Kind("model_code", "name", MODULE, MODULE, "neither a subclass of torch.nn.Module nor a function"),
    "data": Kind("data_code", "name", DATASET, DATASET, "not a function that returns (train, test)"),
    "tasks": Kind("task_code", "name", "grsgd.tasks.base.Task", "", "is no subclass of grsgd.tasks.Task"),
    "schedules": Kind("schedule_code", "name", "", "builtins.float", "not a function that returns a number"),
    "optimizers": Kind(
        "optimizer_code", "optimizer", "torch.optim.optimizer.Optimizer", "", "not a torch.optim.Optimizer"
    ),
    "topologies": Kind("topology_code", "topology", "", "numpy.ndarray", "not a function that returns matrices"),
}
"""The kinds, by the names of the groups of their plug-ins."""


def misfit(thing, kind: Kind, is_plugin: bool = False) -> str:
    """Say why an object is not of a kind; "" if it is. ``is_plugin``: whether an entry point declares it."""
    if isinstance(thing, type):
        return "" if kind.base in names_of(thing.__mro__) else kind.expected
    function = function_of(thing)
    if function is None or not kind.result:
        return kind.expected
    home = function.__globals__.get("__name__") or ""
    package = home.partition(".")[0]
    if is_of_standard_library(home):
        return f"is a function of Python's standard library ({home}), which no configuration may call"
    if package in THIS:
        return f"is a function of {home}: of this package name what has a name of its own"
    if is_plugin or is_own(home):
        return ""
    if package not in BUILT_ON and kind.result in names_of([result_of(function)]):
        return ""
    why = "" if package in BUILT_ON else f", which does not say that it returns {kind.result}"
    remedy = "call it in a function of a file of your own, FILE.py:NAME"
    return f"is a function of the installed package {package}{why}: {remedy}"


def names_of(classes: Iterable) -> set[str]:
    """Return the full names of classes, and of the bases of each."""
    bases = (base for cls in classes if isinstance(cls, type) for base in cls.__mro__)
    return {f"{base.__module__}.{base.__qualname__}" for base in bases}


def function_of(thing) -> FunctionType | None:
    """Return the Python function that a call of an object ends in; None if that is a function in C, or nothing."""
    for _ in range(100):  # a chain of wrappers may be a circle
        wrapped = inspect.getattr_static(thing, "__wrapped__", None)  # runs no code of the object
        if wrapped is not None:
            thing = wrapped
        elif isinstance(thing, FunctionType):
            return thing
        elif isinstance(thing, functools.partial):
            thing = thing.func
        elif isinstance(thing, MethodType):
            thing = thing.__func__
        else:
            thing = getattr(type(thing), "__call__", None)  # noqa: B004
            if not isinstance(thing, FunctionType | functools.partial):
                break
    return None


def result_of(function: FunctionType):
    """Return the declared result of a function; None if it declares none."""
    try:
        return typing.get_type_hints(function).get("return")
    except Exception:  # an annotation may name what is not there
        return inspect.signature(function).return_annotation


def is_of_standard_library(module: str) -> bool:
    return module.partition(".")[0] in sys.stdlib_module_names


def is_own(module: str) -> bool:
    """Return whether a module is of the user's own: made of a file, or not in a folder of installed packages."""
    if module.startswith(PREFIX) or module == "__main__":
        return True
    file = getattr(sys.modules.get(module), "__file__", None)
    return bool(file) and is_own_file(Path(file)) and not is_of_standard_library(module)


def is_own_file(path: Path) -> bool:
    return INSTALLED.isdisjoint(path.parts)
