"""Reading TOML files that build on one another, and ``key=value`` overrides: nested dictionaries, not yet checked."""

import os
import tomllib
from pathlib import Path

from grsgd.errors import ConfigError
from grsgd.runs.ending import STOP_CRITERIA


def read(path: Path, derived: tuple[str, ...] = ()) -> dict:
    """The content of a TOML file, merged into that of its base; raises ConfigError.

    ``derived``: real paths of the files that are based on this one.
    """
    try:
        content = tomllib.loads(path.read_text())
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: {getattr(error, 'strerror', None) or error}") from None
    except (ValueError, RecursionError) as error:  # not only TOMLDecodeError: a number may have too many digits
        raise ConfigError(f"{path}: not valid TOML: {error}") from None
    find_algorithm_beside(path, content)
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


def find_algorithm_beside(path: Path, content: dict):
    """Put a path that exists into ``algorithm.name = "FILE.py:CLASS"``.

    It is relative to the working directory, or else to the folder of the configuration.
    """
    name = section(content, "algorithm").get("name")
    place, _, wanted = name.rpartition(":") if isinstance(name, str) else ("", "", "")
    if place.endswith(".py") and not os.path.exists(place) and (path.parent / place).exists():
        content["algorithm"]["name"] = f"{path.parent / place}:{wanted}"


def merge_with_base(base: dict, own: dict) -> dict:
    """The content of a file's own, and from its ``base`` what it lacks."""
    base = dict(base)
    for name in ("algorithm", "model"):  # whose further keys mean something to one name only
        chosen = section(own, name).get("name")
        if chosen is not None and chosen != section(base, name).get("name"):
            base.pop(name, None)
    if not section(own, "train").keys().isdisjoint(STOP_CRITERIA):  # to give one end is to mean that one
        base["train"] = {key: value for key, value in section(base, "train").items() if key not in STOP_CRITERIA}
    return merge(base, own)


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
