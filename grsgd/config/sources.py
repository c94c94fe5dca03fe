"""Files outside this package that a configuration uses, and the attributes of a run file that record them."""

import hashlib
import json
import os

from grsgd import outside
from grsgd.config import Config

DIGEST_LETTERS = 12
"""Hexadecimal digits of a digest in the name of a file."""


def sources_of(config: Config) -> dict[str, str | None]:
    """Return the attributes of a run file with path, content and digest of each file outside this package; None for
    parts of this package."""
    attributes = {}
    for name, thing in parts_of(config).items():
        attributes |= outside.attributes_of(name, thing)
    return attributes


def digests_of(config: Config) -> dict[str, str | None]:
    """Return only the digests of `sources_of`, by which runs with changed code are told apart."""
    return {name: value for name, value in sources_of(config).items() if name.endswith("_sha256")}


def digest(config: Config, ranks: int, *where: str) -> str:
    """Return a digest of everything that decides the results of a run, so that runs with equal digests need not be
    repeated.

    ``where`` describes in text everything else on which the run depends, such as its network, computing times or hosts.
    """
    outside_code = {name: value for name, value in digests_of(config).items() if value is not None}
    more = [json.dumps(outside_code, sort_keys=True)] if outside_code else []
    content = [config.toml(), str(ranks), *where, *more]
    return hashlib.sha256("\n".join(content).encode()).hexdigest()[:DIGEST_LETTERS]


def parts_of(config: Config) -> dict:
    """Return the parts of a configuration that may come from a user's file, by the beginning of their attributes in the
    run file."""
    topology = config.algorithm_options.model_dump().get("topology")
    names = {
        "models": config.model.name,
        "data": config.data.name,
        "tasks": config.task.name,
        "schedules": config.schedule.name,
        "optimizers": config.optimizer.name,
        "topologies": topology if isinstance(topology, str) and not os.path.isfile(topology) else "",
    }
    things = {outside.KINDS[kind].record: outside.loaded(name, kind) for kind, name in names.items()}
    return {"algorithm": config.algorithm_class, **things}
