"""Functions that list values of algorithms' options from the options' schema, for sweeps and random runs."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from grsgd import config
from grsgd.algorithms import Algorithm, Options
from grsgd.errors import ConfigError


def choices(options: type[Options]) -> dict[str, list]:
    """Return, by name of the option, values of every option that are worth a try; the first value is the default.

    For an option with named choices, the values are all its choices; for an option with examples, all its examples.
    For an option without named choices and examples, the values are a few numbers from its least allowed value on.
    Options that are times are not in the returned dict, so that they keep their default.
    """
    properties = options.model_json_schema()["properties"]
    return {name: _values(schema) for name, schema in properties.items() if not name.endswith(("timeout", "seconds"))}


def variants(base: Path, algorithm: str) -> list[tuple[str, ...]]:
    """Return the overrides that turn the algorithm ``algorithm`` into its variants, for the configuration ``base``.

    The first variant is the algorithm with its default options and has no overrides. Each further variant sets a
    single option to a value that changes the algorithm's traits (``grsgd.algorithms.Traits``). Raises ConfigError if
    grsgd has no algorithm of this name.
    """
    named = f"algorithm.name={json.dumps(algorithm)}"
    plain = config.load(base, [named])
    found = {_identity(plain): ()}
    schema = type(plain.algorithm_options).model_json_schema()["properties"]
    for name, values in choices(type(plain.algorithm_options)).items():
        for value in values if "enum" in schema[name] or schema[name].get("type") == "boolean" else ():
            override = f"algorithm.{name}={json.dumps(value)}"
            try:
                found.setdefault(_identity(config.load(base, [named, override])), (override,))
            except ConfigError:  # the value needs certain values of other options
                continue
    return list(found.values())


def _identity(loaded: config.Config):
    """Return the configuration's traits, without traits that affect no run of ``grsgd train`` without faults."""
    return replace(loaded.traits, tolerates_lost_ranks=False, supports_own_loop=True)


def _values(schema: dict[str, Any]) -> list:
    default = schema.get("default")
    values = [default, *schema.get("examples", [])]
    for kind in schema.get("anyOf", [schema]):
        if "enum" in kind or "const" in kind:
            values += kind.get("enum", [kind.get("const")])
        elif kind.get("type") == "boolean":
            values += [False, True]
        elif kind.get("type") == "integer":
            least = kind.get("minimum", 1)
            values += range(least, min(least + 4, kind.get("maximum", least + 4)) + 1)
        elif kind.get("type") == "number":
            values += _numbers(kind, default)
    return [value for number, value in enumerate(values) if value not in values[:number]]


def _numbers(kind: dict[str, Any], default) -> list[float]:
    """Return the ends of an option's range that the option may take, and a number within the range.

    If the default depends on the run, the upper end is left out, because the option may then need a small number.
    """
    has_default = isinstance(default, float | int)
    least = kind.get("minimum", kind.get("exclusiveMinimum", 0))
    most = kind.get("maximum", kind.get("exclusiveMaximum"))
    if most is None:
        within = least + ((default - least) if has_default and default > least else 1) / 10
    else:
        within = least + (most - least) / (2 if has_default else 10)
    ends = [kind["minimum"]] if "minimum" in kind else []
    ends += [kind["maximum"]] if "maximum" in kind and has_default else []
    ends += [least + 1] if isinstance(default, int) else []  # for options without upper end, such as a number of steps
    return [float(value) for value in (*ends, within)]


def allowed(algorithm: type[Algorithm], options: dict[str, Any], ranks: int) -> bool:
    """Return True if an algorithm accepts the given options on ``ranks`` ranks."""
    try:
        algorithm.check(algorithm.Options(**options), ranks)
    except (ValidationError, ValueError):
        return False
    return True
