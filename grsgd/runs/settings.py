"""Configurations of runs as dictionaries, and the keys in which the configurations of several runs differ, for names
and tables of runs."""

import json
import tomllib
from collections.abc import Iterator, Mapping, Sequence

from grsgd.runs.run_file import Run
from grsgd.text import printable

MAX_KEYS = 4
"""Largest number of configuration keys whose values are part of a run's name in reports."""
MAX_LETTERS = 40
"""Largest number of characters of a key with its value in a run's name."""


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
"""Dictionary from a key under which a recorded loop of a user stores a setting to the configuration key with the same
meaning."""
WHERE = ("network", "compute", "device")
"""Attributes of a run file about the machine on which a run took place. `settings` treats the attributes in `WHERE` as
configuration keys."""


def settings(run: Run) -> dict[str, object]:
    """Return a dictionary from the keys of a run's configuration, in order, to their values, followed by the attributes
    in `WHERE`. Keys of the returned dictionary have the form ``SECTION.KEY``. The seed of the run is left out. If the
    configuration is no valid TOML, return only the attributes in `WHERE`."""
    where = {name: run.attributes[name] for name in WHERE if run.attributes.get(name) not in (None, "meta")}
    try:
        table = tomllib.loads(run.attributes["config"])
        known = {OF_LOOPS.get(key, key): value for key, value in flattened(table)}
        return {key: value for key, value in known.items() if key.rpartition(".")[2] != "seed"} | where
    except (ValueError, RecursionError):  # the configuration is no TOML, or has a number with too many digits
        return where


def flattened(table: Mapping, prefix: str = "") -> Iterator[tuple[str, object]]:
    """Yield (key, value) of each value in nested tables. The name of a table and a dot precede each key in the
    table."""
    for key, value in table.items():
        if isinstance(value, Mapping):
            yield from flattened(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def differing(runs: Sequence[Run]) -> list[str]:
    """Return the keys in which the configurations of ``runs`` differ, in the order in which the configurations have
    these keys."""
    known = [settings(run) for run in runs]
    keys = dict.fromkeys(key for one in known for key in one)
    return [key for key in keys if len({_comparable(one.get(key)) for one in known}) > 1]


def distinguishing(runs: Sequence[Run]) -> list[str]:
    """Return a short list of keys, at most `MAX_KEYS`, in which the configurations of ``runs`` differ.

    A key is left out if it distinguishes no more runs than the keys before it. Some runs may have equal values of all
    returned keys.
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
    """Return a value of a configuration as text for a name or a table."""
    if isinstance(value, float):
        return f"{value:g}"
    return value if isinstance(value, str) else json.dumps(value, default=str)


def _short(key: str) -> str:
    """Return the last word of a dotted key. If the last word is a rank number, return the last two words."""
    *_, before, last = f".{key}".split(".")
    return f"{before}.{last}" if last.isdigit() else last


def _comparable(value: object) -> str:
    return repr(value)
