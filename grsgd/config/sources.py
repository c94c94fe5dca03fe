"""Files outside of the package grsgd that a configuration uses, and the attributes of a run file that record these
files."""

import hashlib
import json
import os

from grsgd import outside
from grsgd.config import Config

DIGEST_LETTERS = 12
"""Number of hexadecimal digits of a configuration's digest in the name of a run file."""


def sources_of(config: Config) -> dict[str, str | None]:
    """Return the attributes of a run file with the path, content and digest of each file outside of the package grsgd
    that ``config`` uses. If the configuration uses code of the package grsgd in place of a file, the attributes for
    this code are None."""
    attributes = {}
    for name, thing in parts_of(config).items():
        attributes |= outside.attributes_of(name, thing)
    return attributes


def digests_of(config: Config) -> dict[str, str | None]:
    """Return the attributes of `sources_of` that are digests. Runs whose code has changed have other digests than
    before the change."""
    return {name: value for name, value in sources_of(config).items() if name.endswith("_sha256")}


def digest(config: Config, ranks: int, *where: str) -> str:
    """Return a digest of all inputs of a run of ``config`` on ``ranks`` ranks. If a finished run has an equal digest,
    the run need not be made again.

    ``where`` has texts on further inputs of the run, such as its network, computing times or hosts.
    """
    outside_code = {name: value for name, value in digests_of(config).items() if value is not None}
    more = [json.dumps(outside_code, sort_keys=True)] if outside_code else []
    content = [config.toml(), str(ranks), *where, *more]
    return hashlib.sha256("\n".join(content).encode()).hexdigest()[:DIGEST_LETTERS]


def parts_of(config: Config) -> dict:
    """Return the classes and functions of a configuration that may come from a user's file. Each key of the returned
    dictionary, such as ``model_code``, begins the names of the run file's attributes about one of the classes or
    functions."""
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
