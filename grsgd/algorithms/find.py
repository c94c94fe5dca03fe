"""Algorithms by name: those of this package, and any other's class as ``FILE.py:CLASS`` or ``PACKAGE.MODULE:CLASS``."""

import functools
import hashlib
import importlib
import importlib.util
import os
import sys
import traceback
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

from grsgd.algorithms.base import ALGORITHMS, OUTSIDE, Algorithm
from grsgd.errors import ConfigError


class Source(NamedTuple):
    """The file that a class outside of this package comes from, as it was when it was read."""

    path: str
    text: str
    sha256: str


_sources: dict[str, Source] = {}
"""By the name of the module."""


def find(name: str, allowed: Iterable[str] = ALGORITHMS) -> type[Algorithm]:
    """Return the algorithm of this name; a path is relative to the working directory. Raises ConfigError.

    Parameters
    ----------
    name
        A key of `ALGORITHMS`, ``FILE.py:CLASS`` or ``PACKAGE.MODULE:CLASS``.
    allowed
        The keys that an error names.
    """
    if name in ALGORITHMS:
        return ALGORITHMS[name]
    place, _, wanted = name.rpartition(":")
    if not place:
        raise ConfigError(
            f"{name!r}: unknown; allowed: {', '.join(sorted(allowed))}, FILE.py:CLASS or PACKAGE.MODULE:CLASS"
        )
    try:
        module = _file(os.path.realpath(place)) if place.endswith(".py") else _module(place)
    except Exception as error:  # whatever the file raises
        raise ConfigError(f"{name!r}: {_reason(error, place)}") from error
    found = getattr(module, wanted, None)
    if not isinstance(found, type):
        classes = [key for key, value in vars(module).items() if _is_algorithm(value)]
        raise ConfigError(f"{name!r}: {place} has no class {wanted!r}; there are {', '.join(classes) or 'none'}")
    if not _is_algorithm(found):
        raise ConfigError(f'{name!r}: not an algorithm; write class {wanted}(grsgd.algorithms.Algorithm, name="...")')
    return found


def source_of(algorithm: type[Algorithm]) -> Source | None:
    """Return the file that `find` has read for an algorithm; None if it is one of this package."""
    return _sources.get(algorithm.__module__)


def _is_algorithm(value) -> bool:
    return isinstance(value, type) and issubclass(value, Algorithm) and hasattr(value, "name")


@functools.cache  # a run keeps the class that it has begun with, also if the file changes
def _file(path: str) -> ModuleType:
    content = Path(path).read_bytes()
    digest = hashlib.sha256(content).hexdigest()
    name = f"{OUTSIDE}{hashlib.sha256(path.encode()).hexdigest()[:8]}_{digest[:8]}"
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


def _reason(error: Exception, place: str) -> str:
    """Say in one line why a file could not be loaded."""
    if isinstance(error, OSError) and error.filename == os.path.realpath(place):
        return f"{place}: {error.strerror}, neither here nor beside the configuration"
    if isinstance(error, ModuleNotFoundError) and error.name and f"{place}.".startswith(f"{error.name}."):
        return f"there is no module {error.name}"
    text = " ".join(str(error).split())
    frames, path = traceback.extract_tb(error.__traceback__), os.path.realpath(place)
    lines = [frame.lineno for frame in frames if frame.filename == path]
    at = f", line {lines[-1]}" if lines and not isinstance(error, SyntaxError) else ""
    return f"{place}{at}: {type(error).__name__}{': ' if text else ''}{text}"
