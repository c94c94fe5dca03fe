"""Configurations of runs as keys with values, and the keys in which the configurations of several runs differ."""

import json
import tomllib
from collections.abc import Iterator, Mapping, Sequence

from grsgd.runs.run_file import Run
from grsgd.text import printable

MAX_KEYS = 4
"""Largest number of keys whose values are part of a run's name in reports."""
MAX_LETTERS = 40
"""Largest number of letters of a value that is part of a run's name."""


OF_LOOPS = {
    "config.lr": "optimizer.lr",
    "config.momentum": "optimizer.momentum",
    "config.weight_decay": "optimizer.weight_decay",
    "config.batch_size": "data.batch_size",
    "config.dataset": "data.name",
    "config.model": "model.name",
    "config.epochs": "train.epochs",
    "config.steps": "train.steps",
}
"""Keys under which a recorded user's own loop keeps a value, each with the key of `grsgd train` that means the same."""
WHERE = ("network", "compute", "device")
"""Attributes of a run file that say on which machine a run took place. They are treated as keys of the
configuration."""


def settings(run: Run) -> dict[str, object]:
    """Return the keys of a run's configuration with their values, in order, and the attributes in `WHERE`. Keys have
    the form ``SECTION.KEY``; the seed is left out. Returns only the attributes if the configuration is no valid
    TOML."""
    where = {name: run.attributes[name] for name in WHERE if run.attributes.get(name) not in (None, "meta")}
    try:
        table = tomllib.loads(run.attributes["config"])
        known = {OF_LOOPS.get(key, key): value for key, value in flattened(table)}
        return {key: value for key, value in known.items() if key.rpartition(".")[2] != "seed"} | where
    except (ValueError, RecursionError):  # ValueError also for whole numbers with thousands of digits
        return where


def flattened(table: Mapping, prefix: str = "") -> Iterator[tuple[str, object]]:
    """Yield the keys of nested tables with their values; a key in a table has the table's name and a dot in front."""
    for key, value in table.items():
        if isinstance(value, Mapping):
            yield from flattened(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def differing(runs: Sequence[Run]) -> list[str]:
    """Return the keys in which the configurations of runs differ, in the order of the configurations."""
    known = [settings(run) for run in runs]
    keys = dict.fromkeys(key for one in known for key in one)
    return [key for key in keys if len({_comparable(one.get(key)) for one in known}) > 1]


def distinguishing(runs: Sequence[Run]) -> list[str]:
    """Return as few keys as possible that tell the configurations of runs apart, in order, and at most `MAX_KEYS`.

    A key is left out if it tells no more runs apart than the keys before it. Some runs may still not be told apart.
    """
    known, chosen = [settings(run) for run in runs], []
    kinds = 1
    for key in differing(runs):
        found = len({tuple(_comparable(one.get(each)) for each in (*chosen, key)) for one in known})
        if found > kinds and len(chosen) < MAX_KEYS:
            chosen.append(key)
            kinds = found
    return chosen


def in_words(run: Run, keys: Sequence[str]) -> str:
    """Return the values of ``keys`` in a run's configuration as text, such as "lr 0.05, H 4"."""
    known, short = settings(run), [_short(key) for key in keys]
    names = [name if short.count(name) == 1 else key for key, name in zip(keys, short, strict=True)]
    return ", ".join(
        printable(f"{name} {text(known[key])}" if key in known else f"no {name}", MAX_LETTERS)
        for key, name in zip(keys, names, strict=True)
    )


def text(value: object) -> str:
    """Return a value of a configuration as text."""
    if isinstance(value, float):
        return f"{value:g}"
    return value if isinstance(value, str) else json.dumps(value, default=str)


def _short(key: str) -> str:
    """Return the last word of a key. If it is the number of a rank, return it with the word before."""
    *_, before, last = f".{key}".split(".")
    return f"{before}.{last}" if last.isdigit() else last


def _comparable(value: object) -> str:
    return repr(value)
