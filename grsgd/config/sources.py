"""The files outside of this package that a configuration takes something from: what of them a run file keeps."""

import hashlib
import json
import os

from grsgd import outside
from grsgd.config import Config

DIGEST_LETTERS = 12
"""Of a digest in the name of a file."""


def sources_of(config: Config) -> dict[str, str | None]:
    """Return path, content and digest of each, as attributes of a run file; None where there is no such file."""
    attributes = {}
    for name, thing in parts_of(config).items():
        attributes |= outside.attributes_of(name, thing)
    return attributes


def digests_of(config: Config) -> dict[str, str | None]:
    """Return the digests alone: a run with others is another experiment."""
    return {name: value for name, value in sources_of(config).items() if name.endswith("_sha256")}


def digest(config: Config, ranks: int, *where: str) -> str:
    """Return a digest of all that decides what is in a run: the same for the same run alone.

    where: all in words on which the run depends besides, such as its network, what its gradients take, its hosts.
    """
    outside_code = {name: value for name, value in digests_of(config).items() if value is not None}
    more = [json.dumps(outside_code, sort_keys=True)] if outside_code else []
    content = [config.toml(), str(ranks), *where, *more]
    return hashlib.sha256("\n".join(content).encode()).hexdigest()[:DIGEST_LETTERS]


def parts_of(config: Config) -> dict:
    """Return what a configuration names that may be of a file, by how the run file calls it."""
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
