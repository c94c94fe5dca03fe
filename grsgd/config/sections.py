"""The sections of a configuration: their keys, types, bounds and defaults."""

from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, field_validator, model_validator

from grsgd import outside
from grsgd.runs.ending import STOP_CRITERIA

SCHEDULES = ("constant", "step", "cosine")


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class Named(Section):
    """A section with a name that decides which further keys there are; those are checked by who owns the name."""

    model_config = ConfigDict(extra="allow", strict=True, frozen=True)
    name: str = Field(description="what it is; it decides which further keys there are")

    @property
    def options(self) -> dict[str, Any]:
        return dict(self.__pydantic_extra__ or {})


def integer_keys(table):
    """TOML's keys are strings; a rank is a number."""
    if not isinstance(table, dict):
        return table
    return {int(k) if isinstance(k, str) and k.isdecimal() else k: v for k, v in table.items()}


PositiveFloat = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Rank = Annotated[int, Field(ge=0)]


class NamedAlgorithm(Named):
    name: str = Field(description="`grsgd algorithms` lists them, and NAME's further keys; or FILE.py:CLASS")


class NamedModel(Named):
    name: str = Field(description="`grsgd models` lists them, and NAME's further keys; or FILE.py:NAME")


class NamedTask(Named):
    name: str = Field(
        "classification",
        description="what a model is trained for: classification, language_modelling, regression, or FILE.py:CLASS; "
        "further keys are its options",
    )


class Data(Named):
    name: str = Field(
        description="`grsgd data list` lists them; or FILE.py:NAME; further keys are options of imagefolder and "
        "synthetic, or of what is in the file"
    )
    dir: str = Field("data", description="folder with the data sets")
    batch_size: int = Field(16, ge=1, le=10**7, description="samples per rank and step")
    alpha: PositiveFloat | None = Field(None, description="shards by label, Dirichlet(alpha); iid if not given")
    replication: int = Field(1, ge=1, description="on how many ranks each shard lies: shard k on k, k + 1 and so on")
    augment: bool = Field(False, description="random crops and flips of the training images")
    only_classes: int | None = Field(None, ge=1, description="train and test on so many first classes; else on all")
    only_train: int | None = Field(None, ge=1, description="so many training samples, evenly spaced; else all")
    only_test: int | None = Field(None, ge=1, description="so many test samples, evenly spaced; else all")
    workers: int = Field(0, ge=0, description="processes per rank that decode images; 0: in the rank itself")


class Optimizer(Named):
    name: str = Field(
        "sgd", description="a class of torch.optim, in any case; or FILE.py:CLASS; further keys are its arguments"
    )
    lr: PositiveFloat = Field(0.1, description="learning rate")
    decay_norms: bool = Field(True, description="whether weight_decay applies to biases and normalisation weights")
    clip: PositiveFloat | None = Field(None, description="the norm that a gradient is scaled down to if it is larger")


class Schedule(Named):
    name: str = Field(
        "constant",
        description="how the learning rate changes: constant; step, by factor at milestones; cosine, to 0 along one; "
        "or FILE.py:FUNCTION; further keys are its options",
    )
    warmup: float = Field(0.0, ge=0, le=10**9, description="epochs of linear increase from 0, whatever follows")
    milestones: list[PositiveFloat] = Field([], description="epochs after which `step` multiplies the rate by factor")
    factor: PositiveFloat = Field(0.1, description="what `step` multiplies the rate by at each milestone")

    @field_validator("name")
    @classmethod
    def is_known(cls, name: str) -> str:
        if name not in SCHEDULES and outside.place_of(name, "schedules") is None:
            raise ValueError(f"{name!r} is unknown; allowed: {', '.join(SCHEDULES)}, FILE.py:NAME, PACKAGE.MODULE:NAME")
        return name

    @property
    def is_own(self) -> bool:
        """Return whether it is a function from outside."""
        return self.name not in SCHEDULES

    @model_validator(mode="after")
    def milestones_belong_to_step(self):
        if self.name == "step" and not self.milestones:
            raise ValueError("name = 'step' needs milestones, such as milestones = [30.0, 60.0] (epochs)")
        if self.name != "step" and (self.milestones or self.factor != 0.1):
            key = "milestones" if self.milestones else "factor"
            raise ValueError(f"{key} with name = {self.name!r}: only name = 'step' has it")
        return self


class Train(Section):
    epochs: PositiveFloat | None = Field(
        None, le=10**9, description="end after so many passes over the data, summed over ranks"
    )
    steps: int | None = Field(None, ge=1, description="end after so many steps a rank (on average, if asynchronous)")
    samples: int | None = Field(None, ge=1, description="end after so many samples, summed over ranks")
    seconds: PositiveFloat | None = Field(None, description="end after so much time")
    target_accuracy: float | None = Field(None, gt=0, le=1, description="reports give the time to it")
    target: float | None = Field(
        None, allow_inf_nan=False, description="the same of a task whose metric is another one, such as bits_per_byte"
    )
    stop_at_target: bool = Field(
        False, description="end at the first snapshot that reaches it, if that comes first; in simulated time alone"
    )
    snapshots: int = Field(20, ge=1, le=10**6, description="points of the curve, evenly spread over the run")
    compute_seconds: float = Field(
        0.0,
        ge=0,
        le=3600,
        description="a gradient takes at least so many seconds of the processor, as that of a larger model would; not "
        "in simulated time",
    )
    evaluate_replicas: bool = Field(True, description="test single replicas too; else their average alone")

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
    """With ``probability`` a step takes longer by an exponentially distributed time of mean ``seconds``."""

    probability: float = Field(gt=0, le=1, description="of a delay in a step")
    seconds: PositiveFloat = Field(description="mean of the delays")


class Pause(Section):
    """Every ``every`` steps a pause of ``seconds``."""

    every: int = Field(ge=1, description="steps from one pause to the next")
    seconds: PositiveFloat = Field(description="of a pause")


class Stragglers(Section):
    slowdown: Annotated[dict[Rank, Annotated[float, Field(ge=1)]], BeforeValidator(integer_keys)] = Field(
        {}, description="rank = factor by which its computation takes longer"
    )
    tail: Annotated[dict[Rank, Tail], BeforeValidator(integer_keys)] = Field(
        {}, description="rank = { probability, seconds }: random exponential delays"
    )
    pause: Annotated[dict[Rank, Pause], BeforeValidator(integer_keys)] = Field(
        {}, description="rank = { every, seconds }: periodic pauses"
    )


class Cut(Section):
    """The link of a rank is cut ``at`` seconds after the start of training, for ``seconds``."""

    at: float = Field(ge=0, description="seconds after the start of training")
    seconds: PositiveFloat = Field(description="until the link is whole again")


class Faults(Section):
    """Planned deaths of processes and cuts of links.

    docs/how-to/failures.md says which algorithms and MPI libraries go on after a death.
    """

    die: Annotated[dict[Rank, PositiveFloat], BeforeValidator(integer_keys)] = Field(
        {}, description="rank = seconds after the start of training when its process dies"
    )
    every: PositiveFloat | None = Field(
        None, description="mean seconds from one death to the next, of a random rank; exponentially distributed"
    )
    back_seconds: PositiveFloat | None = Field(
        None,
        description="seconds after the k-th planned death from which on the k-th spare is there, as if the process had "
        "come back; by default all are there from the start",
    )
    cut: Annotated[dict[Rank, Cut], BeforeValidator(integer_keys)] = Field(
        {}, description="rank = { at, seconds }: messages from and to it wait meanwhile; in simulated time alone"
    )
    notice_seconds: float = Field(
        0.01, ge=0, le=3600, description="seconds until the others notice it; in simulated time alone"
    )

    @property
    def are_deadly(self) -> bool:
        """Whether any process is to die."""
        return bool(self.die) or self.every is not None


class Comm(Section):
    renamed: ClassVar[dict[str, str]] = {"progress": "progress_mode"}

    progress_mode: Literal["auto", "thread", "inline"] = Field(
        "auto", description="what moves messages in the background: a thread, or the training itself"
    )
    transfer: Literal["auto", "direct", "ipc", "staged"] = Field(
        "auto", description="how arrays in GPU memory travel; auto: the fastest, as measured at the start of the run"
    )
    timeout: PositiveFloat = Field(600.0, description="seconds after which a wait for other ranks is an error")
    silent_seconds: float | None = Field(
        None,
        ge=1,
        description="end a process that gives no sign of life for so long, where the run goes on without it; by "
        "default it is waited for",
    )
