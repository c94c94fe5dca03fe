"""Kinds of objects that a configuration may take from outside this package, and a check whether an object is of such a
kind. The check of an object's kind does not call the object.

A class is accepted as an object of a kind, for example as a model, if it is derived from the kind's base class. A
function is accepted or refused according to the module that defines it, because a check cannot find out the purpose of
a function. Functions in the user's own files, in modules outside of ``site-packages``, and in plug-ins are accepted. A
function of an installed package is accepted only if its annotation declares the kind's type of result, for example
``torch.nn.Module``. Functions of Python's standard library, of this package and of the libraries that it depends on are
refused, even if the user's file imports them.
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
"""Prefix of the names of the modules that `grsgd.outside` makes from a user's files ``FILE.py``."""
INSTALLED = {"site-packages", "dist-packages"}
"""Names of the folders into which Python packages are installed."""
THIS = {"grsgd", "coding"}
"""Packages of this project."""
BUILT_ON = set("cupy h5py matplotlib mpi4py numba numpy pandas pydantic scipy simpy sklearn torch tqdm".split())
"""Libraries on which this project depends. Functions of the libraries in `BUILT_ON` are refused as models and data
sets, because none of the functions makes a model or a data set for this project. Some functions of libraries in
`BUILT_ON`, for example ``torch.hub.load``, execute downloaded code."""


class Kind(NamedTuple):
    """Kind of objects from outside this package, for example models or data sets.

    ``record`` is the beginning of the names of the kind's attributes in a run file, and ``what`` is the kind's name in
    error messages. ``base`` is the full name of the base class of the kind's classes, or "" if the kind has no base
    class. ``result`` is the full name of the class that an installed package's function must be annotated to return. If
    no functions are accepted, ``result`` is "". ``expected`` ends the error message for an object of a wrong kind.
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
"""The `Kind` of each group of objects from outside this package. The key in `KINDS` is the name of the group of entry
points (such as ``grsgd.models``) without the prefix ``grsgd.``."""


def misfit(thing, kind: Kind, is_plugin: bool = False) -> str:
    """Return the reason why ``thing`` is not an object of ``kind``; "" if ``thing`` is an object of ``kind``.
    ``is_plugin`` says whether an entry point declares ``thing``."""
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
        return f"is a function of {home}: from this package only registered names are allowed"
    if is_plugin or is_own(home):
        return ""
    if package not in BUILT_ON and kind.result in names_of([result_of(function)]):
        return ""
    why = "" if package in BUILT_ON else f", which does not say that it returns {kind.result}"
    remedy = "call it in a function of a file of your own, FILE.py:NAME"
    return f"is a function of the installed package {package}{why}: {remedy}"


def names_of(classes: Iterable) -> set[str]:
    """Return the full names of ``classes`` and of all their base classes."""
    bases = (base for cls in classes if isinstance(cls, type) for base in cls.__mro__)
    return {f"{base.__module__}.{base.__qualname__}" for base in bases}


def function_of(thing) -> FunctionType | None:
    """Return the Python function that a call of ``thing`` executes, after decorators, ``functools.partial`` and methods
    are unwrapped. Return None if a call of ``thing`` executes C code, or if ``thing`` cannot be called."""
    for _ in range(100):  # at most 100 steps, because wrapped objects may refer to each other in a circle
        wrapped = inspect.getattr_static(thing, "__wrapped__", None)  # getattr_static runs no code of ``thing``
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
    """Return the type in the return annotation of ``function``; None if ``function`` has no return annotation."""
    try:
        return typing.get_type_hints(function).get("return")
    except Exception:  # get_type_hints fails if an annotation names a type that does not exist
        return inspect.signature(function).return_annotation


def is_of_standard_library(module: str) -> bool:
    return module.partition(".")[0] in sys.stdlib_module_names


def is_own(module: str) -> bool:
    """Return True if ``module`` is the user's own code: made from a file ``FILE.py``, or outside of the folders of
    installed packages."""
    if module.startswith(PREFIX) or module == "__main__":
        return True
    file = getattr(sys.modules.get(module), "__file__", None)
    return bool(file) and is_own_file(Path(file)) and not is_of_standard_library(module)


def is_own_file(path: Path) -> bool:
    return INSTALLED.isdisjoint(path.parts)
