"""Reading of TOML files, which may be based on other files, and of ``key=value`` overrides, into nested dictionaries
that are not checked yet."""

import os
import tomllib
from pathlib import Path

from grsgd.config.sections import Data
from grsgd.errors import ConfigError
from grsgd.memory import check_fits
from grsgd.runs.ending import STOP_CRITERIA

SHARED_KEYS = {"algorithm": (), "model": (), "data": tuple(Data.model_fields), "task": (), "schedule": ("warmup",)}
"""Sections in which the value of ``name`` decides which other keys are allowed, each with the keys that are allowed for
every name."""
OF_FILES = (
    *((table, "name") for table in ("algorithm", "model", "data", "task", "optimizer", "schedule")),
    ("algorithm", "topology"),
)
"""(Section, key) of the keys whose value may be ``FILE.py:NAME``, a name in a Python file."""


def read(path: Path, derived: tuple[str, ...] = ()) -> dict:
    """Return the content of a TOML file, completed by the content of the file that its key ``base`` names; raises
    ConfigError.

    ``derived`` has the real paths of the files that are based on this file, to find circles.
    """
    try:
        check_fits(path)
        content = tomllib.loads(path.read_text("utf-8-sig"))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: {getattr(error, 'strerror', None) or error}") from None
    except (ValueError, RecursionError) as error:  # a number may have too many digits, which is not a TOMLDecodeError
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
    """Complete the path in values ``"FILE.py:NAME"``, such as ``algorithm.name``, if the file lies next to the
    configuration.

    A path is looked for in the working directory first, and then in the folder of the configuration.
    """
    for table, key in OF_FILES:
        name = section(content, table).get(key)
        place, _, wanted = name.rpartition(":") if isinstance(name, str) else ("", "", "")
        if place.endswith(".py") and not os.path.exists(place) and (path.parent / place).exists():
            content[table][key] = f"{path.parent / place}:{wanted}"


def code_in(content: dict) -> set[str]:
    """Return the values of the keys `OF_FILES`, which may name code outside this package."""
    values = (section(content, table).get(key) for table, key in OF_FILES)
    return {value for value in values if isinstance(value, str)}


def merge_with_base(base: dict, own: dict) -> dict:
    """Return the content of a file, ``own``, completed by the content of its ``base``."""
    return merge(without_replaced(base, own), own)


def without_replaced(base: dict, own: dict) -> dict:
    """Return ``base`` without the keys that ``own`` makes invalid: the options of a name that ``own`` replaces, and the
    end of training if ``own`` sets another end."""
    base = dict(base)
    for name, shared in SHARED_KEYS.items():
        chosen, before = section(own, name).get("name"), section(base, name)
        if isinstance(chosen, str) and chosen != before.get("name"):
            base[name] = {key: value for key, value in before.items() if key in shared}
    if not section(own, "train").keys().isdisjoint(STOP_CRITERIA):  # a given end replaces any other end
        base["train"] = {key: value for key, value in section(base, "train").items() if key not in STOP_CRITERIA}
    return base


def merge(base: dict, own: dict) -> dict:
    """Return the content of ``base`` and ``own`` together. Tables that are in both are merged; any other value that is
    in both is taken from ``own``."""
    both = {
        key: merge(base[key], value)
        for key, value in own.items()
        if isinstance(value, dict) and isinstance(base.get(key), dict)
    }
    return base | own | both


def section(content: dict, name: str) -> dict:
    """Return a section of a configuration; an empty dictionary if the section is missing or, by mistake, a plain
    value."""
    found = content.get(name)
    return found if isinstance(found, dict) else {}


def check_whole_numbers(content, where: str, key: str = ""):
    """Raise ConfigError for an integer beyond 64 bits, which TOML forbids and Python's reader accepts."""
    if isinstance(content, int) and not -(2**63) <= content < 2**63:
        raise ConfigError(f"{where}: {key} = {content}: whole numbers are from -2^63 to 2^63 - 1")
    for name, value in content.items() if isinstance(content, dict) else ():
        check_whole_numbers(value, where, f"{key}.{name}" if key else str(name))
    for value in content if isinstance(content, list) else ():
        check_whole_numbers(value, where, key)


def override(content: dict, settings: list[str]) -> dict:
    """Return the content with ``key=value`` settings applied. A setting of another ``name``, or of another end of
    training, drops the keys that belong to the old value.

    Of several settings of one key the last counts; otherwise the order of settings does not matter. Raises ConfigError.
    """
    own = {}
    for setting in settings:
        apply(setting, own)
    content = without_replaced(content, own)
    for setting in settings:
        apply(setting, content)
    return content


def apply(override: str, content: dict):
    """Set ``key=value`` in nested dictionaries. The value is read as TOML; if it is not valid TOML, it is a string."""
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
            table.pop(other, None)  # this end of training replaces any other end
    table[path[-1]] = parsed
