"""Configuration of a run, read from a TOML file. The types and values of all keys are checked before the run starts."""

from pathlib import Path
from typing import Literal

import tomli_w
from pydantic import Field, ValidationError

from grsgd import tasks
from grsgd.algorithms import Algorithm, Options, Traits
from grsgd.algorithms.bfloat16 import check_bfloat16
from grsgd.algorithms.central import workers_of
from grsgd.algorithms.find import find
from grsgd.config.complaints import describe, unknown_key
from grsgd.config.reading import check_whole_numbers, override, read
from grsgd.config.sections import (
    Comm,
    Data,
    Faults,
    Gradient,
    NamedAlgorithm,
    NamedModel,
    NamedTask,
    Optimizer,
    Schedule,
    Section,
    Stragglers,
    Train,
)
from grsgd.errors import ConfigError
from grsgd.runs.metric import ACCURACY

ELEMENT_WISE = "adadelta adagrad adam adamax adamw asgd nadam radam rmsprop rprop sgd".split()
"""Names of optimizers whose update of a model element depends on no other element. With one of the optimizers in
`ELEMENT_WISE`, several parameter servers can each update a slice of the model."""


class Config(Section):
    """Configuration of a run, with one attribute per key or section of the TOML file. ``algorithm_options`` has the
    keys of ``[algorithm]`` other than ``name``."""

    seed: int = Field(0, ge=0, lt=2**63, description="seed of all random choices: models, shards, batches, partners")
    device: Literal["auto", "cpu", "cuda"] = Field(
        "auto", description="device on which ranks train; auto: a GPU if torch and CuPy find one, else the CPU"
    )
    dtype: Literal["bfloat16", "float32", "float64"] = Field(
        "float32", description="dtype of the model, its gradients and messages"
    )
    algorithm: NamedAlgorithm
    model: NamedModel
    data: Data
    task: NamedTask = NamedTask()
    optimizer: Optimizer = Optimizer()
    schedule: Schedule = Schedule()
    gradient: Gradient = Gradient()
    train: Train
    stragglers: Stragglers = Stragglers()
    faults: Faults = Faults()
    comm: Comm = Comm()

    @property
    def algorithm_class(self) -> type[Algorithm]:
        return find(self.algorithm.name)

    @property
    def algorithm_options(self) -> Options:
        return self.algorithm_class.Options(**self.algorithm.options)

    @property
    def traits(self) -> Traits:
        """Traits (facts about the behaviour) of the algorithm with the options of this configuration."""
        return self.algorithm_class.traits_of(self.algorithm_options)

    def make_task(self) -> tasks.Task:
        """Return the task for which the model is trained. Raises ConfigError if the task cannot be built."""
        return tasks.build(self.task.name, self.task.options)

    @property
    def target(self) -> float | None:
        """Value of the task's metric that the run should reach, or None. Reports give the time until the run reaches
        the target."""
        return self.train.target if self.train.target_accuracy is None else self.train.target_accuracy

    def toml(self) -> str:
        """Return this configuration with all defaults filled in, as TOML that `load` accepts."""
        content = self.model_dump(exclude_none=True)
        content["algorithm"] |= self.algorithm_options.model_dump(exclude_none=True)
        for kind in ("slowdown", "tail", "pause"):
            content["stragglers"][kind] = {str(rank): value for rank, value in content["stragglers"][kind].items()}
        for kind in ("die", "cut"):
            content["faults"][kind] = {str(rank): value for rank, value in content["faults"][kind].items()}
        for part, default in (("faults", Faults()), ("task", NamedTask()), ("gradient", Gradient())):
            if getattr(self, part) == default:
                del content[part]
        return tomli_w.dumps(content)

    def check_measured(self):
        """Raise ConfigError if this configuration has an option that is possible only in simulated time."""
        if self.train.stop_at_target:
            raise ConfigError(
                "train.stop_at_target = true: only in simulated time (grsgd simulate), because evaluation during "
                "training would disturb the measured times"
            )

    def check_simulated(self, timing_only: bool):
        """Raise ConfigError if this configuration has an option that is impossible in simulated time. ``timing_only``
        says whether only times are simulated, without gradients."""
        if self.gradient.compile and not timing_only:
            raise ConfigError(
                "gradient.compile = true: torch compiles for one rank per process, but all simulated ranks are in one "
                "process; allowed: false, or --timing-only"
            )

    def check_ranks(self, ranks: int):
        """Raise ConfigError if a value of this configuration is not possible in a job of ``ranks`` ranks."""
        for kind in ("slowdown", "tail", "pause"):
            for rank in getattr(self.stragglers, kind):
                if rank >= ranks:
                    raise ConfigError(f"stragglers.{kind}: rank {rank} in a job of {ranks}; allowed: 0 to {ranks - 1}")
        for kind in ("die", "cut"):
            for rank in getattr(self.faults, kind):
                if rank >= ranks:
                    raise ConfigError(f"faults.{kind}: rank {rank} in a job of {ranks}; allowed: 0 to {ranks - 1}")
        try:
            self.algorithm_class.check(self.algorithm_options, ranks)
        except ValueError as error:
            raise ConfigError(f"algorithm {self.algorithm.name}: {error}") from None
        workers = workers_of(self.algorithm_class, self.algorithm_options, ranks)
        if self.data.replication > workers:
            raise ConfigError(
                f"data.replication = {self.data.replication} with {workers} ranks that train; allowed: 1 to {workers}"
            )
        if self.traits.splits_model and self.optimizer.name.lower() not in ELEMENT_WISE:
            raise ConfigError(
                f"optimizer.name = {self.optimizer.name!r} with algorithm.servers > 1: this optimizer reads whole "
                f"layers, but a server holds a slice of them; allowed: servers = 1, or {', '.join(ELEMENT_WISE)}"
            )


def load(path: str | Path, overrides: list[str] = ()) -> Config:
    """Read a TOML file, apply ``key=value`` overrides such as ``"optimizer.lr=0.05"``, and return the checked
    configuration. Raises ConfigError for a file that cannot be read, and for a wrong key or value.

    The key ``base`` of a file names another file, from which missing keys are taken. If a file or an override
    replaces the ``name`` in a section, the section's options for the old name are dropped. If a file or an override
    sets an end of training in [train], the end of training that was set before is dropped.
    """
    return parse(override(read(Path(path)), list(overrides)), str(path))


def parse(content: dict, where: str = "config") -> Config:
    """Return the configuration whose keys and values are in the nested dictionaries ``content``. Each error message of
    the function begins with ``where``. Raises ConfigError for a wrong key or value."""
    check_whole_numbers(content, where)
    try:
        config = Config.model_validate(content)
        try:
            algorithm = config.algorithm_class
        except ConfigError as error:
            raise ConfigError(f"{where}: algorithm.name = {error}") from None
        try:
            config.algorithm_options  # noqa: B018 reading the options checks them
        except ValidationError as error:
            raise ConfigError(f"{where}: {describe(error, algorithm.Options, 'algorithm.')}") from None
    except ValidationError as error:
        raise ConfigError(f"{where}: {describe(error, Config)}") from None
    check_target(config, where)
    if config.schedule.options and not config.schedule.is_own:
        key = next(iter(config.schedule.options))
        raise ConfigError(f"{where}: {unknown_key(f'schedule.{key}', key, list(Schedule.model_fields))}")
    if config.optimizer.clip is not None and config.traits.splits_model:
        raise ConfigError(f"{where}: optimizer.clip with algorithm.servers > 1: no server sees the whole gradient")
    if config.dtype == "bfloat16":
        try:
            check_bfloat16(algorithm, config.algorithm_options)
        except ConfigError as error:
            raise ConfigError(f"{where}: {error}") from None
    for key, value in (("autocast", config.gradient.autocast), ("tf32", config.gradient.tf32)):
        if config.dtype != "float32" and value not in ("off", False):
            given = f"{value!r}" if key == "autocast" else "true"
            raise ConfigError(f"{where}: gradient.{key} = {given}: rounds float32 only, but dtype = {config.dtype!r}")
    if config.traits.tolerates_silent_ranks and config.train.seconds is not None:
        raise ConfigError(
            f"{where}: train.seconds with {config.traits.label}: its steps end without silent ranks, so not all ranks "
            "can agree on the time; allowed: train.epochs, steps or samples"
        )
    if config.schedule.name == "cosine" and config.train.seconds is not None:
        raise ConfigError(
            f"{where}: schedule.name = 'cosine' needs train.epochs, steps or samples; with seconds: constant or step"
        )
    return config


def check_target(config: Config, where: str):
    """Raise ConfigError for a task that cannot be built, and for a target key (``target`` or ``target_accuracy``) that
    does not fit the task's metric."""
    try:
        metric = config.make_task().metric
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from None
    is_accuracy = metric == ACCURACY
    wrong, right = ("target", "target_accuracy") if is_accuracy else ("target_accuracy", "target")
    if getattr(config.train, wrong) is not None:
        raise ConfigError(f"{where}: train.{wrong}: the metric of the task is {metric.words}: use train.{right}")
