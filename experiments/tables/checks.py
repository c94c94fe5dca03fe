"""Loads and saves the results of checks that the results page quotes; each result is a dataclass in a JSON file."""

import json
from dataclasses import asdict
from pathlib import Path

from grsgd.files import atomic_write


def load(kind: type, path: Path):
    """Read a dataclass of type ``kind`` from a JSON file; return None if the file does not exist.

    Raises ValueError if the file is damaged.
    """
    if not path.exists():
        return None
    try:
        return kind(**json.loads(path.read_text(encoding="utf-8")))
    except (ValueError, TypeError) as error:
        raise ValueError(f"{path} is damaged, make it again: {error}") from None


def save(found, path: Path):
    """Write the dataclass ``found`` to a JSON file."""
    with atomic_write(path) as partly:
        partly.write_text(json.dumps(asdict(found), indent=1) + "\n", encoding="utf-8")
