"""Reading of TOML files, and of ``key=value`` overrides, into nested dictionaries. A TOML file may be based on another
file. The functions of this module do not check the keys and values that they read."""

import os
import tomllib
from pathlib import Path

from grsgd.config.sections import Data
from grsgd.errors import ConfigError
from grsgd.memory import check_fits
from grsgd.runs.ending import STOP_CRITERIA

SHARED_KEYS = {"algorithm": (), "model": (), "data": tuple(Data.model_fields), "task": (), "schedule": ("warmup",)}
"""Dictionary from the name of a section to the keys that are allowed for every value of the section's key ``name``. The
value of ``name`` decides which further keys are allowed in the section."""
OF_FILES = (
    *((table, "name") for table in ("algorithm", "model", "data", "task", "optimizer", "schedule")),
    ("algorithm", "topology"),
)
"""Pairs (section, key) of a configuration whose value may be ``FILE.py:NAME``, a name in a Python file."""


def read(path: Path, derived: tuple[str, ...] = ()) -> dict:
    """Return the content of a TOML file. Missing keys are taken from the file that the key ``base`` names. Raises
    ConfigError if a file cannot be read or is not valid TOML.

    ``derived`` has the real paths of the files that are based on this file. With ``derived`` the function finds files
    that are based on themselves.
    """
    try:
        check_fits(path)
        content = tomllib.loads(path.read_text("utf-8-sig"))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: {getattr(error, 'strerror', None) or error}") from None
    # a number with too many digits raises ValueError, not TOMLDecodeError
    except (ValueError, RecursionError) as error:
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
    """Complete values ``"FILE.py:NAME"``, such as ``algorithm.name``. FILE.py is replaced by its path in the folder of
    the configuration, if this folder has FILE.py.

    A file in the working directory has precedence over a file in the folder of the configuration.
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
    """Return the content ``own`` of a configuration file, with missing keys taken from the content ``base`` of its base
    file."""
    return merge(without_replaced(base, own), own)


def without_replaced(base: dict, own: dict) -> dict:
    """Return ``base`` without the keys that ``own`` makes invalid. A key becomes invalid if it is an option of a
    ``name`` that ``own`` replaces, or an end of training while ``own`` sets another end."""
    base = dict(base)
    for name, shared in SHARED_KEYS.items():
        chosen, before = section(own, name).get("name"), section(base, name)
        if isinstance(chosen, str) and chosen != before.get("name"):
            base[name] = {key: value for key, value in before.items() if key in shared}
    # an end of training in ``own`` replaces the end of training in ``base``
    if not section(own, "train").keys().isdisjoint(STOP_CRITERIA):
        base["train"] = {key: value for key, value in section(base, "train").items() if key not in STOP_CRITERIA}
    return base


def merge(base: dict, own: dict) -> dict:
    """Return the merged content of the nested dictionaries ``base`` and ``own``. Tables in both dictionaries are
    merged. If a key that is not a table has a value in both dictionaries, the value in ``own`` is taken."""
    both = {
        key: merge(base[key], value)
        for key, value in own.items()
        if isinstance(value, dict) and isinstance(base.get(key), dict)
    }
    return base | own | both


def section(content: dict, name: str) -> dict:
    """Return the section ``name`` of a configuration's ``content``. Return an empty dictionary if the section is
    missing or, by mistake, a plain value."""
    found = content.get(name)
    return found if isinstance(found, dict) else {}


def check_whole_numbers(content, where: str, key: str = ""):
    """Raise ConfigError for an integer beyond 64 bits. TOML forbids integers beyond 64 bits, but Python's TOML reader
    accepts such integers."""
    if isinstance(content, int) and not -(2**63) <= content < 2**63:
        raise ConfigError(f"{where}: {key} = {content}: whole numbers are from -2^63 to 2^63 - 1")
    for name, value in content.items() if isinstance(content, dict) else ():
        check_whole_numbers(value, where, f"{key}.{name}" if key else str(name))
    for value in content if isinstance(content, list) else ():
        check_whole_numbers(value, where, key)


def override(content: dict, settings: list[str]) -> dict:
    """Return ``content`` with the ``key=value`` texts in ``settings`` applied. A setting that replaces a ``name`` drops
    the options of the old name, and a setting of an end of training drops the old end.

    If several settings set one key, the last setting counts. The order of settings of different keys has no effect.
    Raises ConfigError for a text that is not ``key=value``, and for a key that names a plain value as a section.
    """
    own = {}
    for setting in settings:
        apply(setting, own)
    content = without_replaced(content, own)
    for setting in settings:
        apply(setting, content)
    return content


def apply(override: str, content: dict):
    """Set a value in the nested dictionaries ``content`` by the text ``override`` = ``key=value``. The text after "="
    is read as a TOML value. A value that is not valid TOML is taken as a string."""
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
            table.pop(other, None)  # a new end of training replaces the old end, which may have another key
    table[path[-1]] = parsed
