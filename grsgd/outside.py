"""Objects that are not of this package, by name: ``FILE.py:NAME``, ``PACKAGE.MODULE:NAME``, or the name of a plug-in.

A plug-in is an entry point that an installed package declares in one of the groups ``grsgd.algorithms``,
``grsgd.models``, ``grsgd.data``, ``grsgd.tasks`` and ``grsgd.schedules``.
"""

import functools
import hashlib
import importlib
import importlib.util
import inspect
import os
import sys
import traceback
from collections.abc import Callable, Container
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

from grsgd.errors import ConfigError

PREFIX = "grsgd_outside_"
"""Beginning of the names of modules that are made of files: what they register is found by path, not by name."""


class Source(NamedTuple):
    """The file that something comes from, as it was when it was read."""

    path: str
    text: str
    sha256: str


_sources: dict[str, Source] = {}
"""By the name of the module."""


def is_outside(name: str) -> bool:
    """Whether a name is that of a file or a module, with something in it."""
    return all(name.rpartition(":")[::2])


@functools.cache
def plugins(kind: str) -> dict[str, str]:
    """Return the plug-ins of a kind (``algorithms``, ``models``, ``data``): what stands for each name."""
    return {point.name: point.value for point in entry_points(group=f"grsgd.{kind}")}


def plugins_beside(kind: str, ours: Container[str]) -> dict[str, str]:
    """Return the plug-ins of a kind with names that are none of ours, which come first; none is loaded."""
    return {name: place for name, place in sorted(plugins(kind).items()) if name not in ours}


def place_of(name: str, kind: str) -> str | None:
    """Return the file or module that a name says, or that a plug-in of the kind does; None if it is neither."""
    return name if is_outside(name) else plugins(kind).get(name)


def loaded(name: str, kind: str):
    """Return what a name from outside stands for, whatever that is; None for one of this package."""
    place = place_of(name, kind)
    return load(place, callable, "name") if place else None


def load(name: str, is_wanted: Callable[[object], bool], what: str):
    """Return what a name stands for; a path is relative to the working directory.

    ``is_wanted``: whether something is of the kind that is wanted, ``what`` that is, for errors. Raises ConfigError.
    """
    place, _, wanted = name.rpartition(":")
    try:
        module = _file(os.path.realpath(place)) if place.endswith(".py") else _module(place)
    except Exception as error:  # whatever the file raises
        raise ConfigError(f"{name!r}: {_reason(error, place)}") from error
    found = getattr(module, wanted, None)
    if found is None:
        there = [key for key, value in vars(module).items() if is_wanted(value) and is_own(value, module)]
        raise ConfigError(f"{name!r}: {place} has no {what} {wanted!r}; there are {', '.join(there) or 'none'}")
    return found


def is_own(value, module: ModuleType) -> bool:
    return getattr(value, "__module__", None) == module.__name__


def source_of(thing) -> Source | None:
    """Return the file that a class or function was read from by `load`; None if it is of this package."""
    return _sources.get(getattr(thing, "__module__", ""))


def attributes_of(name: str, thing) -> dict[str, str | None]:
    """Return what a run file keeps of that file, called by ``name``; None where there is none."""
    path, text, sha256 = source_of(thing) or (None, None, None)
    return {f"{name}_file": path, f"{name}_source": text, f"{name}_sha256": sha256}


def call(make: Callable, known: dict, options: dict):
    """Call ``make`` with the options, and with those of what is ``known`` that it has parameters for."""
    asked = inspect.signature(make).parameters
    return make(**{name: value for name, value in known.items() if name in asked}, **options)


@functools.cache  # a run keeps what it has begun with, also if the file changes
def _file(path: str) -> ModuleType:
    content = Path(path).read_bytes()
    digest = hashlib.sha256(content).hexdigest()
    name = f"{PREFIX}{hashlib.sha256(path.encode()).hexdigest()[:8]}_{digest[:8]}"
    module = importlib.util.module_from_spec(importlib.util.spec_from_file_location(name, path))
    sys.modules[name] = module  # where pydantic looks up the annotations of options
    try:
        exec(compile(content, path, "exec", dont_inherit=True), vars(module))
    except BaseException:
        del sys.modules[name]
        raise
    _sources[name] = Source(path, importlib.util.decode_source(content), digest)
    return module


def _module(name: str) -> ModuleType:
    if os.getcwd() not in sys.path and "" not in sys.path:  # as with `python -m`
        sys.path.append(os.getcwd())
    module = importlib.import_module(name)
    if not name.startswith("grsgd.") and name not in _sources and getattr(module, "__file__", None):
        content = Path(module.__file__).read_bytes()
        text, digest = importlib.util.decode_source(content), hashlib.sha256(content).hexdigest()
        _sources[name] = Source(module.__file__, text, digest)
    return module


def fault_in(thing, error: Exception) -> str | None:
    """Say in one line what went wrong in the file of a class or function from outside; None if it was not there."""
    source = source_of(thing)
    if source is None or not _lines(error, source.path):
        return None
    beside = os.path.relpath(source.path)
    return _reason(error, source.path if beside.startswith(os.pardir) else beside)


def _lines(error: Exception, path: str) -> list[int]:
    """Return the lines of a file that an exception came through, the innermost last."""
    return [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == path]


def _reason(error: Exception, place: str) -> str:
    """Say in one line why a file could not be loaded, or what went wrong in it."""
    if isinstance(error, OSError) and error.filename == os.path.realpath(place):
        return f"{place}: {error.strerror}, neither here nor beside the configuration"
    if isinstance(error, ModuleNotFoundError) and error.name and f"{place}.".startswith(f"{error.name}."):
        return f"there is no module {error.name}"
    text = " ".join(str(error).split())
    lines = _lines(error, os.path.realpath(place))
    at = f", line {lines[-1]}" if lines and not isinstance(error, SyntaxError) else ""
    return f"{place}{at}: {type(error).__name__}{': ' if text else ''}{text}"
