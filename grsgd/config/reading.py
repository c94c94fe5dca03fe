"""Reading TOML files that build on one another, and ``key=value`` overrides: nested dictionaries, not yet checked."""

import os
import tomllib
from pathlib import Path

from grsgd.config.sections import Data
from grsgd.errors import ConfigError
from grsgd.memory import check_fits
from grsgd.runs.ending import STOP_CRITERIA

SHARED_KEYS = {"algorithm": (), "model": (), "data": tuple(Data.model_fields), "task": (), "schedule": ("warmup",)}
"""The sections whose ``name`` decides what further keys mean, and the keys that mean the same to all names."""
OF_FILES = (
    *((table, "name") for table in ("algorithm", "model", "data", "task", "optimizer", "schedule")),
    ("algorithm", "topology"),
)
"""Keys that may name something in a file."""


def read(path: Path, derived: tuple[str, ...] = ()) -> dict:
    """The content of a TOML file, merged into that of its base; raises ConfigError.

    ``derived``: real paths of the files that are based on this one.
    """
    try:
        check_fits(path)
        content = tomllib.loads(path.read_text("utf-8-sig"))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: {getattr(error, 'strerror', None) or error}") from None
    except (ValueError, RecursionError) as error:  # not only TOMLDecodeError: a number may have too many digits
        raise ConfigError(f"{path}: not valid TOML: {error}") from None
    find_beside(path, content)
    if "base" not in content:
        return content
    name = content.pop("base")
    where = f"{path}: base = {name!r}"
    if not isinstance(name, str):
        raise ConfigError(f"{where}: expected the path of another configuration file")
    base = path.parent / name
    derived = (*derived, os.path.realpath(path))
    if os.path.realpath(base) in derived:
        raise ConfigError(f"{where}: {base} is itself based on {path}")
    try:
        return merge_with_base(read(base, derived), content)
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from None


def find_beside(path: Path, content: dict):
    """Put paths that exist into what is ``"FILE.py:NAME"``, such as ``algorithm.name``.

    They are relative to the working directory, or else to the folder of the configuration.
    """
    for table, key in OF_FILES:
        name = section(content, table).get(key)
        place, _, wanted = name.rpartition(":") if isinstance(name, str) else ("", "", "")
        if place.endswith(".py") and not os.path.exists(place) and (path.parent / place).exists():
            content[table][key] = f"{path.parent / place}:{wanted}"


def code_in(content: dict) -> set[str]:
    """Return the names by which a configuration may take code from outside: values of the keys `OF_FILES`."""
    values = (section(content, table).get(key) for table, key in OF_FILES)
    return {value for value in values if isinstance(value, str)}


def merge_with_base(base: dict, own: dict) -> dict:
    """The content of a file's own, and from its ``base`` what it lacks."""
    return merge(without_replaced(base, own), own)


def without_replaced(base: dict, own: dict) -> dict:
    """Return the part of ``base`` that still means something beside ``own``: not the options of another name, nor
    another end."""
    base = dict(base)
    for name, shared in SHARED_KEYS.items():
        chosen, before = section(own, name).get("name"), section(base, name)
        if isinstance(chosen, str) and chosen != before.get("name"):
            base[name] = {key: value for key, value in before.items() if key in shared}
    if not section(own, "train").keys().isdisjoint(STOP_CRITERIA):  # to give one end is to mean that one
        base["train"] = {key: value for key, value in section(base, "train").items() if key not in STOP_CRITERIA}
    return base


def merge(base: dict, own: dict) -> dict:
    """Both; where both have a key, tables are merged and any other value is ``own``'s."""
    both = {
        key: merge(base[key], value)
        for key, value in own.items()
        if isinstance(value, dict) and isinstance(base.get(key), dict)
    }
    return base | own | both


def section(content: dict, name: str) -> dict:
    """A section, empty if it is missing or, by mistake, a plain value."""
    found = content.get(name)
    return found if isinstance(found, dict) else {}


def check_whole_numbers(content, where: str, key: str = ""):
    """Raise ConfigError for one beyond 64 bits, which TOML forbids and Python's reader lets through."""
    if isinstance(content, int) and not -(2**63) <= content < 2**63:
        raise ConfigError(f"{where}: {key} = {content}: whole numbers are from -2^63 to 2^63 - 1")
    for name, value in content.items() if isinstance(content, dict) else ():
        check_whole_numbers(value, where, f"{key}.{name}" if key else str(name))
    for value in content if isinstance(content, list) else ():
        check_whole_numbers(value, where, key)


def override(content: dict, settings: list[str]) -> dict:
    """The content with ``key=value`` settings; another ``name`` or end replaces what belonged to the one before.

    The last setting of a key counts; else their order means nothing. Raises ConfigError.
    """
    own = {}
    for setting in settings:
        apply(setting, own)
    content = without_replaced(content, own)
    for setting in settings:
        apply(setting, content)
    return content


def apply(override: str, content: dict):
    """Set ``key=value`` in nested dictionaries; the value is TOML, or else a plain string."""
    key, equals, value = override.partition("=")
    path = key.strip().split(".")
    if not equals or not all(path):
        raise ConfigError(f"--set {override}: expected key=value, such as optimizer.lr=0.05")
    try:
        parsed = tomllib.loads(f"value = {value}")["value"]
    except (ValueError, RecursionError):
        parsed = value.strip()
    table = content
    for part in path[:-1]:
        table = table.setdefault(part, {})
        if not isinstance(table, dict):
            raise ConfigError(f"--set {override}: {part} is not a section")
    if path[0] == "train" and path[-1] in STOP_CRITERIA:
        for other in STOP_CRITERIA:
            table.pop(other, None)  # to set one end is to mean that one
    table[path[-1]] = parsed
