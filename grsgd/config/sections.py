"""The sections of a configuration: their keys, types, bounds and defaults."""

from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, field_validator, model_validator

from grsgd import outside
from grsgd.runs.ending import STOP_CRITERIA

SCHEDULES = ("constant", "step", "cosine")


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class Named(Section):
    """Section whose ``name`` decides which further keys it has; the part called ``name`` checks these keys."""

    model_config = ConfigDict(extra="allow", strict=True, frozen=True)
    name: str = Field(description="name of the part; it decides which further keys there are")

    @property
    def options(self) -> dict[str, Any]:
        return dict(self.__pydantic_extra__ or {})


def integer_keys(table):
    """Return a table with ranks as numbers, because TOML's keys are strings."""
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
    batch_size: int = Field(16, ge=1, le=10**7, description="samples per rank and step")
    alpha: PositiveFloat | None = Field(None, description="shards by label, by Dirichlet(alpha); not given: iid shards")
    replication: int = Field(1, ge=1, description="ranks that hold each shard: shard k is on ranks k, k + 1 and so on")
    augment: bool = Field(False, description="random crops and flips of the training images")
    only_classes: int | None = Field(None, ge=1, description="number of first classes to train and test on; else all")
    only_train: int | None = Field(None, ge=1, description="number of training samples, evenly spaced; else all")
    only_test: int | None = Field(None, ge=1, description="number of test samples, evenly spaced; else all")
    workers: int = Field(0, ge=0, description="processes per rank that decode images; 0: the rank decodes them itself")


class Optimizer(Named):
    name: str = Field(
        "sgd", description="class of torch.optim, in any letter case, or FILE.py:CLASS; further keys are its arguments"
    )
    lr: PositiveFloat = Field(0.1, description="learning rate")
    decay_norms: bool = Field(True, description="whether weight_decay applies to biases and normalisation weights")
    clip: PositiveFloat | None = Field(None, description="largest norm of a gradient; a larger gradient is scaled down")


class Schedule(Named):
    name: str = Field(
        "constant",
        description="course of the learning rate: constant; step, times factor at milestones; cosine, down to 0; or "
        "FILE.py:FUNCTION; further keys are its options",
    )
    warmup: float = Field(0.0, ge=0, le=10**9, description="epochs of linear increase from 0 before any schedule")
    milestones: list[PositiveFloat] = Field([], description="epochs after which `step` multiplies the rate by factor")
    factor: PositiveFloat = Field(0.1, description="factor of the learning rate at each milestone of `step`")

    @field_validator("name")
    @classmethod
    def is_known(cls, name: str) -> str:
        if name not in SCHEDULES and outside.place_of(name, "schedules") is None:
            raise ValueError(f"{name!r} is unknown; allowed: {', '.join(SCHEDULES)}, FILE.py:NAME, PACKAGE.MODULE:NAME")
        return name

    @property
    def is_own(self) -> bool:
        """Whether the schedule is a function from outside."""
        return self.name not in SCHEDULES

    @model_validator(mode="after")
    def milestones_belong_to_step(self):
        if self.name == "step" and not self.milestones:
            raise ValueError("name = 'step' needs milestones, such as milestones = [30.0, 60.0] (epochs)")
        if self.name != "step" and (self.milestones or self.factor != 0.1):
            key = "milestones" if self.milestones else "factor"
            raise ValueError(f"{key} with name = {self.name!r}: name = 'step' is needed")
        return self


class Train(Section):
    epochs: PositiveFloat | None = Field(
        None, le=10**9, description="end after this number of passes over the data, summed over ranks"
    )
    steps: int | None = Field(None, ge=1, description="end after this number of steps per rank (mean if asynchronous)")
    samples: int | None = Field(None, ge=1, description="end after this number of samples, summed over ranks")
    seconds: PositiveFloat | None = Field(None, description="end after this time, in seconds")
    target_accuracy: float | None = Field(None, gt=0, le=1, description="accuracy to reach; reports give its time")
    target: float | None = Field(
        None, allow_inf_nan=False, description="value to reach of another metric than accuracy, such as bits_per_byte"
    )
    stop_at_target: bool = Field(
        False, description="end at the first snapshot that reaches the target; only in simulated time"
    )
    snapshots: int = Field(20, ge=1, le=10**6, description="points of the curve, evenly spread over the run")
    compute_seconds: float = Field(
        0.0,
        ge=0,
        le=3600,
        description="least processor time of a gradient in seconds, to stand for a larger model; not in simulated "
        "time",
    )
    evaluate_replicas: bool = Field(True, description="test single replicas, too; else only their average")

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
    """Random delays of a rank: with ``probability`` a step takes longer, by an exponential time of mean ``seconds``."""

    probability: float = Field(gt=0, le=1, description="probability of a delay in a step")
    seconds: PositiveFloat = Field(description="mean of the delays in seconds")


class Pause(Section):
    """Pauses of a rank: a pause of ``seconds`` comes after every ``every`` steps."""

    every: int = Field(ge=1, description="steps from one pause to the next")
    seconds: PositiveFloat = Field(description="length of a pause in seconds")


class Stragglers(Section):
    slowdown: Annotated[dict[Rank, Annotated[float, Field(ge=1)]], BeforeValidator(integer_keys)] = Field(
        {}, description="rank = factor by which the rank's computation takes longer"
    )
    tail: Annotated[dict[Rank, Tail], BeforeValidator(integer_keys)] = Field(
        {}, description="rank = { probability, seconds }: random exponential delays"
    )
    pause: Annotated[dict[Rank, Pause], BeforeValidator(integer_keys)] = Field(
        {}, description="rank = { every, seconds }: periodic pauses"
    )


class Cut(Section):
    """Cut of a rank's link, from ``at`` seconds after the start of training, for ``seconds``."""

    at: float = Field(ge=0, description="seconds after the start of training")
    seconds: PositiveFloat = Field(description="seconds until the link works again")


class Faults(Section):
    """Planned deaths of processes and cuts of links.

    docs/how-to/failures.md says which algorithms and MPI libraries go on after a death.
    """

    die: Annotated[dict[Rank, PositiveFloat], BeforeValidator(integer_keys)] = Field(
        {}, description="rank = seconds from the start of training to the death of the rank's process"
    )
    every: PositiveFloat | None = Field(
        None, description="mean seconds between deaths of random ranks; exponentially distributed"
    )
    back_seconds: PositiveFloat | None = Field(
        None,
        description="seconds after the k-th planned death at which the k-th spare arrives, as if the dead process had "
        "come back; by default all spares are there from the start",
    )
    cut: Annotated[dict[Rank, Cut], BeforeValidator(integer_keys)] = Field(
        {}, description="rank = { at, seconds }: messages from and to the rank wait meanwhile; only in simulated time"
    )
    notice_seconds: float = Field(
        0.01, ge=0, le=3600, description="seconds until the other ranks notice a death; only in simulated time"
    )

    @property
    def are_deadly(self) -> bool:
        """Whether the death of any process is planned."""
        return bool(self.die) or self.every is not None


class Comm(Section):
    renamed: ClassVar[dict[str, str]] = {"progress": "progress_mode"}

    progress_mode: Literal["auto", "thread", "inline"] = Field(
        "auto", description="mover of messages in the background: a thread, or the training loop itself"
    )
    transfer: Literal["auto", "direct", "ipc", "staged"] = Field(
        "auto", description="transfer of arrays in GPU memory; auto: the fastest, as measured at the start of the run"
    )
    timeout: PositiveFloat = Field(600.0, description="seconds after which a wait for other ranks is an error")
    silent_seconds: float | None = Field(
        None,
        ge=1,
        description="seconds without a sign of life after which a process is ended, if the run can go on without it; "
        "by default the run waits for it",
    )
