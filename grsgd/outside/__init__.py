"""Import of objects from outside this package, such as a user's model. A configuration refers to an outside object by
``FILE.py:NAME``, by ``PACKAGE.MODULE:NAME``, or by the name of a plug-in.

A plug-in is an entry point that an installed package declares in one of the groups ``grsgd.algorithms``,
``grsgd.models``, ``grsgd.data``, ``grsgd.tasks`` and ``grsgd.schedules``.
"""

import functools
import importlib
import importlib.util
import inspect
import os
import sys
import traceback
from collections.abc import Callable, Container
from contextlib import contextmanager
from hashlib import sha256
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType

from grsgd.errors import ConfigError
from grsgd.mpi_environment import rank
from grsgd.outside.kinds import KINDS, PREFIX, is_of_standard_library, misfit
from grsgd.outside.origin import names_from, origin
from grsgd.outside.sources import SourceFile, check_beside, file_of_module, source_at
from grsgd.text import printable

__all__ = ["KINDS", "PREFIX", "attributes_of", "call", "fault_in", "load", "loaded", "names_from", "source_of"]

RECORDED = {"file": "path", "source": "text", "sha256": "sha256"}
"""Endings of the names of a run file's attributes that describe a source file, each with the field of `SourceFile` that
gives the attribute's value. For example, the attribute ``model_code_file`` has the value of the field ``path``."""
_sources: dict[str, SourceFile] = {}
"""Source files that this process has imported, by the name of the imported module."""
_of_things: dict[int, SourceFile] = {}
"""Source file from which `load` took each object, by the object's ``id``. The source file possibly only
imports the object, whose definition is in another file."""


def is_outside(name: str) -> bool:
    """Return whether ``name`` has the form ``FILE.py:OBJECT`` or ``PACKAGE.MODULE:OBJECT``."""
    return all(name.rpartition(":")[::2])


@functools.cache
def plugins(kind: str) -> dict[str, str]:
    """Return the plug-ins that installed packages declare in the group ``grsgd.<kind>``, such as ``grsgd.models``. In
    the result, the key is the plug-in's name, and the value is the place of the plug-in's object,
    ``PACKAGE.MODULE:NAME``."""
    return {point.name: point.value for point in entry_points(group=f"grsgd.{kind}")}


def plugins_beside(kind: str, ours: Container[str]) -> dict[str, str]:
    """Return the plug-ins of the group ``grsgd.<kind>``, such as ``grsgd.models``, without importing the plug-ins.
    Plug-ins whose names are in ``ours`` are left out, because for these names this package uses its own objects."""
    return {name: place for name, place in sorted(plugins(kind).items()) if name not in ours}


def place_of(name: str, kind: str) -> str | None:
    """Return ``name`` if it has the form ``FILE.py:NAME`` or ``PACKAGE.MODULE:NAME``. If ``name`` names a plug-in,
    return the plug-in's ``PACKAGE.MODULE:NAME``. Return None if ``name`` is neither of a form ``...:NAME`` nor the name
    of a plug-in."""
    return name if is_outside(name) else plugins(kind).get(name)


def loaded(name: str, kind: str):
    """Return the object outside this package to which ``name`` refers; None if ``name`` refers to no such object.
    ``kind`` is a key of `KINDS`.

    Raises ConfigError for the reasons that the docstring of `load` gives.
    """
    place = place_of(name, kind)
    return load(place, kind, is_plugin=not is_outside(name)) if place else None


def load(name: str, kind: str, is_plugin: bool = False):
    """Import the object that ``name`` gives in the form ``FILE.py:NAME`` or ``PACKAGE.MODULE:NAME``, and return this
    object. A relative path ``FILE.py`` begins at the working directory.

    The function does not call the imported object. Before a file or module is imported for the first time, a line on
    stderr announces the import. Raises ConfigError for a name of Python's standard library, for an object that is not
    of kind ``kind``, and for errors during the import. Raises ConfigError, too, if the configuration comes from another
    user's file and `grsgd.outside.origin.Origin` refuses the name or the code.
    """
    place, _, wanted = name.rpartition(":")
    if not is_plugin:
        origin().check_name(name)
    is_file = place.endswith(".py")
    if not is_file and is_of_standard_library(place):
        raise ConfigError(f"{name!r}: {place} is of Python's standard library, which no configuration may name")
    try:
        source = _file(os.path.realpath(place)) if is_file else _source_of_module(place)
    except Exception as error:  # the source file does not exist, or is not Python code
        raise ConfigError(f"{name!r}: {_reason(error, place)}") from error
    origin().check_source(name, KINDS[kind].record, source)
    try:
        module = _run(source) if is_file else _module(place, source)
    except (Exception, SystemExit) as error:  # SystemExit would end this program with exit code 0
        raise ConfigError(f"{name!r}: {_reason(error, place)}") from error
    found = getattr(module, wanted, None)
    if found is None:
        there = [key for key, value in vars(module).items() if is_own(value, module) and not misfit(value, KINDS[kind])]
        what = f"no {KINDS[kind].what} {wanted!r}; there are {', '.join(there) or 'none'}"
        raise ConfigError(f"{name!r}: {place} has {what}")
    if wrong := misfit(found, KINDS[kind], is_plugin):
        raise ConfigError(f"{name!r}: {wrong.replace('NAME(', f'{wanted}(')}")
    if source is not None:
        _of_things[id(found)] = source
    return found


def is_own(value, module: ModuleType) -> bool:
    return getattr(value, "__module__", None) == module.__name__


def source_of(thing) -> SourceFile | None:
    """Return the source file from which `load` imported ``thing``, a class or function; None if ``thing`` belongs to
    this package."""
    return _of_things.get(id(thing)) or _sources.get(getattr(thing, "__module__", ""))


def attributes_of(name: str, thing) -> dict[str, str | None]:
    """Return attributes for a run file that describe the source file of the class or function ``thing``. Each
    attribute's name begins with ``name``; all values are None if ``thing`` belongs to this package."""
    source = source_of(thing)
    return {f"{name}_{what}": source and getattr(source, key) for what, key in RECORDED.items()}


def call(make: Callable, known: dict, options: dict):
    """Call ``make`` with ``options``, and with each value in ``known`` for which ``make`` has a parameter. Return the
    result of ``make``."""
    asked = inspect.signature(make).parameters
    return make(**{name: value for name, value in known.items() if name in asked}, **options)


@functools.cache  # a run uses the source file's content at the start of the run, even if the file changes later
def _file(path: str) -> SourceFile:
    return source_at(path)


@functools.cache
def _run(source: SourceFile) -> ModuleType:
    """Execute the Python file ``source`` as a module. A second call with the same ``source`` returns the same module.
    The executed file can import modules of its own folder. If a module of this folder has the name of another module
    that Python finds first, an ImportError is raised."""
    _say(source.path)
    name = f"{PREFIX}{sha256(source.path.encode()).hexdigest()[:8]}_{source.sha256[:8]}"
    module = importlib.util.module_from_spec(importlib.util.spec_from_file_location(name, source.path))
    sys.modules[name] = module  # pydantic looks up the annotations of a class in sys.modules[name]
    folder = os.path.dirname(source.path)
    if folder not in sys.path:
        sys.path.append(folder)
    try:
        check_beside(source.path)
        exec(compile(source.content, source.path, "exec", dont_inherit=True), vars(module))
    except BaseException:
        del sys.modules[name]
        raise
    _sources[name] = source
    return module


@functools.cache
def _source_of_module(name: str) -> SourceFile | None:
    with _working_directory(name):
        path = file_of_module(name)
    return source_at(path, name) if path and path.endswith(".py") and not name.startswith("grsgd.") else None


def _module(name: str, source: SourceFile | None) -> ModuleType:
    if name not in sys.modules:
        _say(f"{name} ({source.path})" if source else name)
    with _working_directory(name):
        module = importlib.import_module(name)
    if source is not None:
        _sources[name] = source
    return module


@contextmanager
def _working_directory(module: str):
    """Make modules in the working directory importable inside the ``with`` block. Python searches the working directory
    after all other folders on ``sys.path``. After the ``with`` block the working directory stays on ``sys.path`` only
    if ``module`` lies in this directory, because ``module`` may import further modules from the directory later."""
    here = os.getcwd()
    if here in sys.path or "" in sys.path:
        yield
        return
    sys.path.append(here)
    try:
        yield
    finally:
        found = getattr(sys.modules.get(module), "__file__", None)
        if not (found and Path(found).is_relative_to(here)):
            sys.path.remove(here)


def _say(what: str):
    """Print on rank 0 that this process is about to import ``what``, a file or module outside this package."""
    if rank() in (None, "0"):
        print(f"grsgd: imports {printable(what)}", file=sys.stderr, flush=True)


def fault_in(thing, error: Exception) -> str | None:
    """If ``error`` arose in the source file of ``thing``, return a message about ``error`` with file and line. Return
    None if ``error`` arose in another file."""
    source = source_of(thing)
    if source is None or not _lines(error, source.path):
        return None
    beside = os.path.relpath(source.path)
    return _reason(error, source.path if beside.startswith(os.pardir) else beside)


def _lines(error: BaseException, path: str) -> list[int]:
    """Return the numbers of the lines of the file ``path`` that appear in the traceback of ``error``. The last number
    in the list is the line of the innermost call."""
    return [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == path]


def _reason(error: BaseException, place: str) -> str:
    """Return a one-line reason why the file or module ``place`` could not be loaded, or a description of the error that
    its code raised."""
    if isinstance(error, OSError) and error.filename == os.path.realpath(place):
        return f"{place}: {error.strerror}, neither in the working directory nor in the configuration's folder"
    if isinstance(error, ModuleNotFoundError) and error.name and f"{place}.".startswith(f"{error.name}."):
        return f"there is no module {error.name}"
    text = " ".join(str(error).split())
    lines = _lines(error, os.path.realpath(place))
    at = f", line {lines[-1]}" if lines and not isinstance(error, SyntaxError) else ""
    return f"{place}{at}: {type(error).__name__}{': ' if text else ''}{text}"
