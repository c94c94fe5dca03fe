"""Sections of a configuration as pydantic models, with the types, bounds, defaults and descriptions of all keys."""

from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, field_validator, model_validator

from grsgd import outside
from grsgd.runs.ending import STOP_CRITERIA

SCHEDULES = ("constant", "step", "cosine")


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class Named(Section):
    """Section in which the value of ``name`` decides which further keys are allowed. The algorithm, model or other
    class that ``name`` names checks the further keys."""

    model_config = ConfigDict(extra="allow", strict=True, frozen=True)
    name: str = Field(description="name of the part; it decides which further keys are allowed")

    @property
    def options(self) -> dict[str, Any]:
        return dict(self.__pydantic_extra__ or {})


def integer_keys(table):
    """Return ``table``, whose keys are ranks, with the keys as integers. Keys in a TOML file are strings."""
    if not isinstance(table, dict):
        return table
    return {int(k) if isinstance(k, str) and k.isdecimal() else k: v for k, v in table.items()}


PositiveFloat = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Rank = Annotated[int, Field(ge=0)]


class NamedAlgorithm(Named):
    name: str = Field(description="algorithm in `grsgd algorithms`, or FILE.py:CLASS; further keys are its options")


class NamedModel(Named):
    name: str = Field(description="model in `grsgd models`, or FILE.py:NAME; further keys are its options")


class NamedTask(Named):
    name: str = Field(
        "classification",
        description="task that the model is trained for: classification, language_modelling, regression, or "
        "FILE.py:CLASS; further keys are the task's options",
    )


class Data(Named):
    name: str = Field(
        description="data set in `grsgd data list`, or FILE.py:NAME; further keys are the options of imagefolder, of "
        "synthetic, or of the data set in the file"
    )
    dir: str = Field("data", description="folder with the data sets")
    batch_size: int = Field(16, ge=1, le=10**7, description="number of samples per rank and step")
    alpha: PositiveFloat | None = Field(
        None, description="skew of the ranks' classes: shares drawn from Dirichlet(alpha); not given: iid shards"
    )
    replication: int = Field(
        1, ge=1, description="number of ranks that hold each shard: shard k is on ranks k, k + 1 and so on"
    )
    augment: bool = Field(False, description="random crops and flips of the training images")
    only_classes: int | None = Field(
        None, ge=1, description="use only this number of classes, the first ones; not given: all"
    )
    only_train: int | None = Field(
        None, ge=1, description="use only this number of training samples, evenly spaced; not given: all"
    )
    only_test: int | None = Field(
        None, ge=1, description="use only this number of test samples, evenly spaced; not given: all"
    )
    workers: int = Field(
        0, ge=0, description="number of processes per rank that decode images; 0: the rank decodes images itself"
    )


class Optimizer(Named):
    name: str = Field(
        "sgd", description="class of torch.optim, in any letter case, or FILE.py:CLASS; further keys are its arguments"
    )
    lr: PositiveFloat = Field(0.1, description="learning rate")
    decay_norms: bool = Field(True, description="whether weight_decay also applies to biases and normalisation weights")
    clip: PositiveFloat | None = Field(
        None, description="largest L2 norm of a gradient; a gradient with a larger norm is scaled down to this norm"
    )
    clip_value: PositiveFloat | None = Field(
        None, description="largest magnitude of a gradient's elements; a larger element becomes this value"
    )

    @model_validator(mode="after")
    def one_clip(self):
        if self.clip is not None and self.clip_value is not None:
            raise ValueError(f"clip_value = {self.clip_value} with clip = {self.clip}: give only one of them")
        return self


class Schedule(Named):
    name: str = Field(
        "constant",
        description="learning rate over the run: constant; step (times factor at milestones); cosine (down to 0); or "
        "FILE.py:FUNCTION; further keys are its options",
    )
    warmup: float = Field(
        0.0, ge=0, le=10**9,
        description="number of epochs at the start in which the learning rate grows linearly from 0",
    )
    milestones: list[PositiveFloat] = Field(
        [], description="epochs after which `step` multiplies the learning rate by factor"
    )
    factor: PositiveFloat = Field(
        0.1, description="factor by which `step` multiplies the learning rate at each milestone"
    )

    @field_validator("name")
    @classmethod
    def is_known(cls, name: str) -> str:
        if name not in SCHEDULES and outside.place_of(name, "schedules") is None:
            raise ValueError(f"{name!r} is unknown; allowed: {', '.join(SCHEDULES)}, FILE.py:NAME, PACKAGE.MODULE:NAME")
        return name

    @property
    def is_own(self) -> bool:
        """Whether the learning-rate schedule is a function outside of the package grsgd, such as ``FILE.py:NAME``."""
        return self.name not in SCHEDULES

    @model_validator(mode="after")
    def milestones_belong_to_step(self):
        if self.name == "step" and not self.milestones:
            raise ValueError("name = 'step' needs milestones, such as milestones = [30.0, 60.0] (epochs)")
        if self.name != "step" and (self.milestones or self.factor != 0.1):
            key = "milestones" if self.milestones else "factor"
            raise ValueError(f"{key} with name = {self.name!r}: name = 'step' is needed")
        return self


class Gradient(Section):
    """Options for computing the gradient of a rank's batch: precision, compilation and micro-batches."""

    autocast: Literal["off", "bfloat16"] = Field(
        "off", description="dtype to which torch.autocast rounds the inputs of matrix products and convolutions"
    )
    tf32: bool = Field(
        False, description="whether a GPU rounds the inputs of float32 matrix products to TF32; no effect on a CPU"
    )
    compile: bool = Field(
        False, description="whether torch.compile compiles model, loss and backward pass; needs a C++ compiler"
    )
    micro_batch: int | None = Field(
        None,
        ge=1,
        description="largest number of samples computed at a time; the gradients of the micro-batches are added up; "
        "not given: the whole batch at once",
    )


class Train(Section):
    epochs: PositiveFloat | None = Field(
        None, le=10**9, description="end after this number of passes over the data by all ranks together"
    )
    steps: int | None = Field(
        None, ge=1, description="end after this number of steps per rank (on average if asynchronous)"
    )
    samples: int | None = Field(None, ge=1, description="end after this number of samples of all ranks together")
    seconds: PositiveFloat | None = Field(None, description="end after this time, in seconds")
    target_accuracy: float | None = Field(
        None, gt=0, le=1, description="accuracy to reach; reports give the time until then"
    )
    target: float | None = Field(
        None,
        allow_inf_nan=False,
        description="value to reach if the metric is not accuracy but, for example, bits_per_byte",
    )
    stop_at_target: bool = Field(
        False, description="end at the first snapshot that reaches the target; only in simulated time"
    )
    snapshots: int = Field(20, ge=1, le=10**6, description="number of points of the curve, evenly spread over the run")
    compute_seconds: float = Field(
        0.0,
        ge=0,
        le=3600,
        description="shortest processor time of a gradient in seconds, to imitate a larger model; not in simulated "
        "time",
    )
    evaluate_replicas: bool = Field(
        True, description="whether to test each rank's model, too; else only the average of the models"
    )

    @model_validator(mode="after")
    def one_end(self):
        ends = [key for key in STOP_CRITERIA if getattr(self, key) is not None]
        if len(ends) != 1:
            found = " and ".join(ends) or "none"
            raise ValueError(f"give exactly one of epochs, steps, samples and seconds; found {found}")
        return self

    @model_validator(mode="after")
    def target_to_stop_at(self):
        if self.stop_at_target and self.target_accuracy is None and self.target is None:
            raise ValueError("stop_at_target = true needs target_accuracy, or a target of another metric")
        return self


class Tail(Section):
    """Random delays of a rank. Each step is delayed with ``probability``, by an exponentially distributed time with
    mean ``seconds``."""

    probability: float = Field(gt=0, le=1, description="probability that a step is delayed")
    seconds: PositiveFloat = Field(description="mean of the delays in seconds")


class Pause(Section):
    """Periodic pauses of a rank. After each ``every`` steps the rank pauses for ``seconds``."""

    every: int = Field(ge=1, description="number of steps from one pause to the next")
    seconds: PositiveFloat = Field(description="length of a pause in seconds")


class Stragglers(Section):
    slowdown: Annotated[dict[Rank, Annotated[float, Field(ge=1)]], BeforeValidator(integer_keys)] = Field(
        {}, description="rank = factor by which each step's computation takes longer"
    )
    tail: Annotated[dict[Rank, Tail], BeforeValidator(integer_keys)] = Field(
        {}, description="rank = { probability, seconds }: random delays, exponentially distributed"
    )
    pause: Annotated[dict[Rank, Pause], BeforeValidator(integer_keys)] = Field(
        {}, description="rank = { every, seconds }: periodic pauses"
    )


class Cut(Section):
    """Interruption of a rank's link to the network. The interruption begins ``at`` seconds after the start of training,
    and lasts for ``seconds``."""

    at: float = Field(ge=0, description="seconds after the start of training")
    seconds: PositiveFloat = Field(description="seconds until the link works again")


class Faults(Section):
    """Planned faults of a run: deaths of processes, and interruptions of links.

    docs/how-to/failures.md says with which algorithms and MPI libraries a run goes on after the death of a process.
    """

    die: Annotated[dict[Rank, PositiveFloat], BeforeValidator(integer_keys)] = Field(
        {}, description="rank = seconds from the start of training to the death of the rank's process"
    )
    every: PositiveFloat | None = Field(
        None, description="mean number of seconds between deaths of random ranks; exponentially distributed"
    )
    back_seconds: PositiveFloat | None = Field(
        None,
        description="seconds after the k-th planned death at which the k-th spare arrives, as if the dead process had "
        "come back; by default all spares wait from the start",
    )
    cut: Annotated[dict[Rank, Cut], BeforeValidator(integer_keys)] = Field(
        {},
        description="rank = { at, seconds }: messages from and to the rank wait for this time; only in simulated time",
    )
    notice_seconds: float = Field(
        0.01, ge=0, le=3600, description="seconds until the other ranks notice a death; only in simulated time"
    )

    @property
    def are_deadly(self) -> bool:
        """Whether this section plans the death of any process."""
        return bool(self.die) or self.every is not None


class Comm(Section):
    renamed: ClassVar[dict[str, str]] = {"progress": "progress_mode"}

    progress_mode: Literal["auto", "thread", "inline"] = Field(
        "auto", description="what moves messages in the background: a thread, or the training loop itself (inline)"
    )
    transfer: Literal["auto", "direct", "ipc", "staged", "nccl"] = Field(
        "auto",
        description="way of sending arrays in GPU memory; auto: the fastest of direct, ipc and staged, measured at the "
        "start of the run",
    )
    timeout: PositiveFloat = Field(600.0, description="seconds after which a wait for other ranks is an error")
    silent_seconds: float | None = Field(
        None,
        ge=1,
        description="seconds without a sign of life after which a process is ended, if the run can go on without the "
        "process; by default the run waits",
    )
