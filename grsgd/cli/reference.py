"""Commands ``config``, ``algorithms`` and ``models``, which list the keys of a configuration, the algorithms, and the
models."""

from __future__ import annotations

import inspect
import json
import re
import shutil
import sys
import textwrap
from itertools import pairwise
from typing import TYPE_CHECKING

from grsgd import outside
from grsgd.cli.fields import describe_field, describe_fields
from grsgd.errors import ConfigError, UsageError

if TYPE_CHECKING:  # not imported at run time: importing pydantic takes long
    from pydantic import BaseModel

FURTHER_KEYS = {
    "algorithm": "further keys: the options of the algorithm, which `grsgd algorithms NAME` lists",
    "model": "further keys: the options of the model, which `grsgd models NAME` lists",
    "data": "further keys: size of imagefolder; samples, shape and classes of synthetic; block of moby-dick; block and "
    "file of text",
    "task": "further keys: metric and bytes_per_token of language_modelling, unit of regression",
    "optimizer": "further keys: the arguments of the torch optimizer, such as momentum and weight_decay",
}
"""Dictionary from a section of the configuration to a text on the section's keys that are not fields of a pydantic
model."""
WIDTH = 120
"""Number of characters of a line if the output is no terminal."""


def config(options) -> int:
    """list the keys of a configuration: their meaning, default and allowed values"""
    from grsgd.config import Config

    plain = [name for name in Config.model_fields if section_of(Config, name) is None]
    if options.keys:
        say([line for name in options.keys for line in described(Config, name)])
        return 0
    say([line for name in plain for line in describe_field(Config, name)])
    for name in Config.model_fields:
        if name not in plain:
            print()
            say(described(Config, name))
    return 0


def section_of(model: type[BaseModel], name: str) -> type[BaseModel] | None:
    """Return the class of the configuration section ``name``; None if ``name`` is a plain key."""
    annotation = model.model_fields[name].annotation
    return annotation if hasattr(annotation, "model_fields") else None


def described(model: type[BaseModel], wanted: str) -> list[str]:
    """Return the lines that describe a configuration's section or key, such as ``train`` or ``train.epochs``. Raises
    UsageError for an unknown section or key."""
    from grsgd.config.complaints import unknown_key

    name, _, key = wanted.partition(".")
    if name not in model.model_fields:
        raise UsageError(f"config: {unknown_key(name, name, list(model.model_fields))}")
    section, further = section_of(model, name), FURTHER_KEYS.get(name)
    if section is None and not key:
        return describe_field(model, name)
    if not key:
        return [f"[{name}]", *describe_fields(section), *([f"    {further}"] if further else [])]
    fields = section.model_fields if section else {}
    if key not in fields:
        hint = f"; {further}" if further else ""
        raise UsageError(f"config: {unknown_key(wanted, key, list(fields)) if fields else f'{name} has no keys'}{hint}")
    return describe_field(section, key, prefix=f"{name}.")


def algorithms(options) -> int:
    """list the algorithms, or describe some: source, options, defaults"""
    from grsgd.algorithms import ALGORITHMS
    from grsgd.algorithms.base import FAMILIES
    from grsgd.algorithms.find import find

    try:
        listed = [find(name) for name in options.names or sorted(ALGORITHMS)]
    except ConfigError as error:
        raise ConfigError(f"algorithms: {error}") from None
    if not (options.names or options.verbose):
        listed.sort(key=lambda cls: [*FAMILIES, cls.traits.family].index(cls.traits.family))
        rows = [
            (cls.traits.family, cls.name, kind(cls), brief(cls), authors(getattr(cls, "paper", "not given")))
            for cls in listed
        ]
        repeated = [row[0] == before[0] for before, row in pairwise(rows)]
        rows[1:] = [("", *row[1:]) if same else row for same, row in zip(repeated, rows[1:], strict=True)]
        others = outside.plugins_beside("algorithms", ALGORITHMS)
        rows += [("plug-in", name, "", "", place) for name, place in others.items()]
        print_table(rows, ["family", "name", "kind", "what it does", "source"], flexible=3)
        print("\n`grsgd algorithms NAME` lists the options of an algorithm, `grsgd algorithms --verbose` all options.")
        return 0
    for algorithm in listed:
        source = getattr(algorithm, "paper", "not given")
        say([f"{algorithm.name} ({kind(algorithm)})", f"    {summary(algorithm)}", f"    source: {source}"])
        say(describe_fields(algorithm.Options))
        print()
    return 0


def models(options) -> int:
    """list the models, or describe some: size, options, source"""
    from grsgd.models.zoo import MODELS, find

    of_others = outside.plugins_beside("models", MODELS)
    for name in options.names:
        if name not in MODELS and name not in of_others:
            raise UsageError(f"models: {name}: unknown; allowed: {', '.join([*MODELS, *of_others])}")
    if not options.names:
        rows = [(name, f"{m.parameters():,}", m.usual_data(), m.summary(), m.source) for name, m in MODELS.items()]
        rows += [(name, "", "", "plug-in", place) for name, place in of_others.items()]
        print_table(rows, ["name", "parameters", "for", "what it is", "source"], flexible=3)
        print("\n`grsgd models NAME` lists the options of a model.")
        return 0
    for name in options.names:
        network = find(name)
        size = [f"    {network.parameters():,} parameters for {network.usual_data()}"] if name in MODELS else []
        say([name, *(f"    {line}".rstrip() for line in network.text()), *size, f"    source: {network.source}"])
        say(
            [f"    {option} = {json.dumps(value)}" for option, value in network.options().items()] or ["    no options"]
        )
        print()
    return 0


def kind(algorithm) -> str:
    """Return "synchronous" if the ranks of an algorithm wait for each other, else "asynchronous"."""
    return "synchronous" if algorithm.traits.synchronous else "asynchronous"


def summary(cls: type) -> str:
    """Return the first paragraph of the docstring of the class ``cls``, in one line."""
    paragraph = (inspect.getdoc(cls) or "").partition("\n\n")[0]
    return " ".join(paragraph.split()).replace("``", "`").rstrip(" :")


def brief(cls: type) -> str:
    """Return the first sentence of the docstring of the class ``cls``, without a full stop."""
    return summary(cls).partition(". ")[0].rstrip(".")


def authors(paper: str) -> str:
    """Return the authors and the year of a paper from its citation ``paper``. If there are more than two authors, only
    the first author is named, with "et al."."""
    found = re.match(r"(.*?)( \d{4})", paper)
    if not found:
        return paper
    names = found[1].split(", ")
    return (f"{names[0]} et al." if len(names) > 2 else " and ".join(names)) + found[2]


def columns() -> int:
    """Return the largest number of characters of an output line: the terminal's width, or `WIDTH`."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else WIDTH


def say(lines: list[str]):
    """Print ``lines``, one below the other. On a terminal, lines that are too long are wrapped, with an indent."""
    for line in lines:
        indent = line[: len(line) - len(line.lstrip())] + "    "
        if sys.stdout.isatty() and len(line) > columns():
            line = textwrap.fill(line, columns(), subsequent_indent=indent, break_on_hyphens=False)
        print(line)


def print_table(rows: list[tuple], headers: list[str], flexible: int):
    """Print a table with the titles ``headers`` above its columns. If the table is wider than the output, column number
    ``flexible``, counted from 0, is made narrower."""
    from tabulate import tabulate

    widths = [max(len(str(row[k])) for row in [headers, *rows]) for k in range(len(headers))]
    left = max(columns() - sum(widths) + widths[flexible] - 2 * (len(headers) - 1), 30)
    limits = [left if k == flexible else None for k in range(len(headers))]
    print(tabulate(rows, headers, tablefmt="simple", maxcolwidths=limits, disable_numparse=True))
