"""The files outside of this package that a configuration takes something from: what of them a run file keeps."""

from grsgd import outside
from grsgd.config import Config


def sources_of(config: Config) -> dict[str, str | None]:
    """Return path, content and digest of each, as attributes of a run file; None where there is no such file."""
    attributes = {}
    for name, thing in parts_of(config).items():
        attributes |= outside.attributes_of(name, thing)
    return attributes


def digests_of(config: Config) -> dict[str, str | None]:
    """Return the digests alone: a run with others is another experiment."""
    return {name: value for name, value in sources_of(config).items() if name.endswith("_sha256")}


def parts_of(config: Config) -> dict:
    """Return what a configuration names that may be of a file, by how the run file calls it."""
    return {
        "algorithm": config.algorithm_class,
        "model_code": outside.loaded(config.model.name, "models"),
        "data_code": outside.loaded(config.data.name, "data"),
        "task_code": outside.loaded(config.task.name, "tasks"),
        "schedule_code": outside.loaded(config.schedule.name, "schedules"),
        "optimizer_code": outside.loaded(config.optimizer.name, "optimizers"),
    }
