"""The configuration of a run: one TOML file, typed, checked before anything starts."""

import difflib
import inspect
import os.path
import tomllib
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal

import tomli_w
import torch
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from grsgd.algorithms import ALGORITHMS, Options

NOT_FOR_RUNS = {
    torch.optim.LBFGS: "it computes several gradients a step, a run one",
    torch.optim.SparseAdam: "it needs sparse gradients, which no model of a run has",
}
"""Optimizers of torch that no run can have, and why."""

ENDS = ("epochs", "steps", "samples", "seconds")
"""The keys of ``[train]`` that say when a run ends; it has exactly one of them."""
ELEMENT_WISE = "adadelta adagrad adam adamax adamw asgd nadam radam rmsprop rprop sgd".split()
"""Optimizers that treat every element of the model by itself, so that several of them can share a model."""


class ConfigError(ValueError):
    """A configuration that cannot be run; one line with the key, what it is and what is allowed."""


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class Named(Section):
    """A section with a name that decides which further keys there are; those are checked by who owns the name."""

    model_config = ConfigDict(extra="allow", strict=True, frozen=True)
    name: str

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


class Data(Named):
    dir: str = Field("data", description="folder with the data sets")
    batch_size: int = Field(16, ge=1, le=10**7, description="samples per rank and step")
    alpha: PositiveFloat | None = Field(None, description="shards by label, Dirichlet(alpha); iid if not given")
    augment: bool = Field(False, description="random crops and flips of the training images")
    only_classes: int | None = Field(None, ge=1, description="train and test on so many first classes; else on all")
    only_train: int | None = Field(None, ge=1, description="so many training samples, evenly spaced; else all")
    only_test: int | None = Field(None, ge=1, description="so many test samples, evenly spaced; else all")
    workers: int = Field(0, ge=0, description="processes per rank that decode images; 0: in the rank itself")


class Optimizer(Named):
    name: str = Field("sgd", description="a class of torch.optim, in any case; further keys are its arguments")
    lr: PositiveFloat = Field(0.1, description="learning rate")
    decay_norms: bool = Field(True, description="whether weight_decay applies to biases and normalisation weights")
    clip: PositiveFloat | None = Field(None, description="the norm that a gradient is scaled down to if it is larger")

    def build(self, parameters) -> torch.optim.Optimizer:
        """The torch optimizer; raises ConfigError for a name or an argument that torch does not take.

        With ``clip`` its ``step()`` begins by clipping what it is about to apply: the mean gradient of all ranks where
        gradients are sent, which is the same on all of them, else the rank's own.
        """
        classes = {
            name.lower(): value
            for name, value in vars(torch.optim).items()
            if isinstance(value, type) and issubclass(value, torch.optim.Optimizer) and name != "Optimizer"
        }
        if self.name.lower() not in classes:
            raise ConfigError(f"optimizer.name = {self.name!r}: unknown; allowed: {', '.join(sorted(classes))}")
        cls = classes[self.name.lower()]
        if cls in NOT_FOR_RUNS:
            raise ConfigError(f"optimizer.name = {self.name!r}: {NOT_FOR_RUNS[cls]}")
        allowed = [key for key in inspect.signature(cls).parameters if key != "params"]
        for key in self.options:
            if key not in allowed:
                raise ConfigError(unknown_key(f"optimizer.{key}", key, [*allowed, "decay_norms", "clip"]))
        parameters = list(parameters)
        if not self.decay_norms:
            vectors = [p for p in parameters if p.ndim <= 1]
            matrices = [p for p in parameters if p.ndim > 1]
            parameters = [{"params": matrices}, {"params": vectors, "weight_decay": 0.0}]
        try:
            optimizer = never_compiled(cls)(parameters, lr=self.lr, **self.options)
        except (TypeError, ValueError, RuntimeError) as error:
            given = ", ".join(f"{key} = {value!r}" for key, value in {"lr": self.lr, **self.options}.items())
            raise ConfigError(f"optimizer {self.name} with {given}: {error}") from None
        if self.clip is not None:
            optimizer.register_step_pre_hook(lambda *_: clip(optimizer, self.clip))
        return optimizer


@cache
def never_compiled(cls: type[torch.optim.Optimizer]) -> type[torch.optim.Optimizer]:
    """The same optimizer, without what torch wraps around it for those who compile: as it is made, and in every step,
    that imports torch's compiler, to tell it to leave the optimizer alone. It takes as long as to import torch."""
    own = {"add_param_group": inspect.unwrap(cls.add_param_group), "step": torch.no_grad()(inspect.unwrap(cls.step))}
    return type(cls.__name__, (cls,), own)


def clip(optimizer: torch.optim.Optimizer, norm: float):
    """Scale all gradients of ``optimizer`` down to the L2 norm ``norm`` together, if theirs is larger."""
    torch.nn.utils.clip_grad_norm_([p for group in optimizer.param_groups for p in group["params"]], norm)


class Schedule(Section):
    name: Literal["constant", "step", "cosine"] = "constant"
    warmup: float = Field(0.0, ge=0, description="epochs of linear increase from 0")
    milestones: list[PositiveFloat] = Field([], description="epochs after which `step` multiplies the rate by factor")
    factor: PositiveFloat = Field(0.1, description="what `step` multiplies by")


class Train(Section):
    epochs: PositiveFloat | None = Field(None, description="end after so many passes over the data, summed over ranks")
    steps: int | None = Field(None, ge=1, description="end after so many steps a rank (on average, if asynchronous)")
    samples: int | None = Field(None, ge=1, description="end after so many samples, summed over ranks")
    seconds: PositiveFloat | None = Field(None, description="end after so much time")
    target_accuracy: float | None = Field(None, gt=0, le=1, description="reports give the time to it")
    snapshots: int = Field(20, ge=1, le=10**6, description="points of the curve, evenly spread over the run")
    evaluate_replicas: bool = Field(True, description="test single replicas too; else their average alone")

    @model_validator(mode="after")
    def one_end(self):
        ends = [key for key in ENDS if getattr(self, key) is not None]
        if len(ends) != 1:
            found = " and ".join(ends) or "none"
            raise ValueError(f"give exactly one of epochs, steps, samples and seconds; found {found}")
        return self


class Tail(Section):
    """With ``probability`` a step takes longer by an exponentially distributed time of mean ``seconds``."""

    probability: float = Field(gt=0, le=1)
    seconds: PositiveFloat


class Pause(Section):
    """Every ``every`` steps a pause of ``seconds``."""

    every: int = Field(ge=1)
    seconds: PositiveFloat


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


class Comm(Section):
    progress: Literal["auto", "thread", "inline"] = Field("auto", description="who moves messages in the background")
    transfer: Literal["auto", "direct", "ipc", "staged"] = Field(
        "auto", description="how arrays in GPU memory travel; auto: the fastest, as measured at the start of the run"
    )
    timeout: PositiveFloat = Field(600.0, description="seconds after which a wait for other ranks is an error")


class Config(Section):
    """Everything that decides a run. ``algorithm_options`` are ``[algorithm]``'s further keys, checked."""

    seed: int = Field(0, ge=0, lt=2**63)
    device: Literal["auto", "cpu", "cuda"] = "auto"
    dtype: Literal["float32", "float64"] = "float32"
    algorithm: Named
    model: Named
    data: Data
    optimizer: Optimizer = Optimizer()
    schedule: Schedule = Schedule()
    train: Train
    stragglers: Stragglers = Stragglers()
    comm: Comm = Comm()

    @property
    def algorithm_options(self) -> Options:
        return ALGORITHMS[self.algorithm.name].Options(**self.algorithm.options)

    def toml(self) -> str:
        """This configuration with all defaults filled in, as TOML that `load` accepts."""
        content = self.model_dump(exclude_none=True)
        content["algorithm"] |= self.algorithm_options.model_dump(exclude_none=True)
        for kind in ("slowdown", "tail", "pause"):
            content["stragglers"][kind] = {str(rank): value for rank, value in content["stragglers"][kind].items()}
        return tomli_w.dumps(content)

    def check_ranks(self, ranks: int):
        """Raise ConfigError for what cannot work with this many ranks."""
        for kind in ("slowdown", "tail", "pause"):
            for rank in getattr(self.stragglers, kind):
                if rank >= ranks:
                    raise ConfigError(f"stragglers.{kind}: rank {rank} in a job of {ranks}; allowed: 0 to {ranks - 1}")
        try:
            ALGORITHMS[self.algorithm.name].check(self.algorithm_options, ranks)
        except ValueError as error:
            raise ConfigError(f"algorithm {self.algorithm.name}: {error}") from None
        servers = getattr(self.algorithm_options, "servers", 1)
        if servers > 1 and self.optimizer.name.lower() not in ELEMENT_WISE:
            raise ConfigError(
                f"optimizer.name = {self.optimizer.name!r} with algorithm.servers = {servers}: this optimizer looks at "
                f"whole layers, but a server has a part of them; allowed: servers = 1, or {', '.join(ELEMENT_WISE)}"
            )


def load(path: str | Path, overrides: list[str] = ()) -> Config:
    """Read a TOML file and apply ``key=value`` overrides such as ``"optimizer.lr=0.05"``; raises ConfigError.

    What the file does not have is taken from the file that its key ``base`` names, if it has one.
    """
    content = read(Path(path))
    for override in overrides:
        apply(override, content)
    return parse(content, str(path))


def read(path: Path, heirs: tuple[str, ...] = ()) -> dict:
    """The content of a TOML file, merged into that of its base; raises ConfigError.

    ``heirs``: real paths of the files that are based on this one.
    """
    try:
        content = tomllib.loads(path.read_text())
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: {getattr(error, 'strerror', None) or error}") from None
    except (ValueError, RecursionError) as error:  # not only TOMLDecodeError: a number may have too many digits
        raise ConfigError(f"{path}: not valid TOML: {error}") from None
    if "base" not in content:
        return content
    name = content.pop("base")
    where = f"{path}: base = {name!r}"
    if not isinstance(name, str):
        raise ConfigError(f"{where}: expected the path of another configuration file")
    base = path.parent / name
    heirs = (*heirs, os.path.realpath(path))
    if os.path.realpath(base) in heirs:
        raise ConfigError(f"{where}: {base} is itself based on {path}")
    try:
        return inherit(read(base, heirs), content)
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from None


def inherit(base: dict, own: dict) -> dict:
    """``own`` content of a configuration, and from ``base`` what it lacks."""
    base = dict(base)
    for section in ("algorithm", "model"):  # whose further keys mean something to one name only
        name = table(own, section).get("name")
        if name is not None and name != table(base, section).get("name"):
            base.pop(section, None)
    if not table(own, "train").keys().isdisjoint(ENDS):  # to give one end is to mean that one
        base["train"] = {key: value for key, value in table(base, "train").items() if key not in ENDS}
    return merge(base, own)


def merge(base: dict, own: dict) -> dict:
    """Both; where both have a key, tables are merged and any other value is ``own``'s."""
    both = {
        key: merge(base[key], value)
        for key, value in own.items()
        if isinstance(value, dict) and isinstance(base.get(key), dict)
    }
    return base | own | both


def table(content: dict, name: str) -> dict:
    """A section, empty if it is missing or, by mistake, a plain value."""
    section = content.get(name)
    return section if isinstance(section, dict) else {}


def parse(content: dict, where: str = "config") -> Config:
    """Check a configuration given as nested dictionaries; raises ConfigError."""
    check_whole_numbers(content, where)
    try:
        config = Config.model_validate(content)
        name = config.algorithm.name
        if name not in ALGORITHMS:
            raise ConfigError(f"{where}: algorithm.name = {name!r}: unknown; allowed: {', '.join(sorted(ALGORITHMS))}")
        try:
            config.algorithm_options  # noqa: B018  checks them
        except ValidationError as error:
            raise ConfigError(f"{where}: {describe(error, ALGORITHMS[name].Options, 'algorithm.')}") from None
    except ValidationError as error:
        raise ConfigError(f"{where}: {describe(error, Config)}") from None
    if config.optimizer.clip is not None and getattr(config.algorithm_options, "servers", 1) > 1:
        raise ConfigError(f"{where}: optimizer.clip with algorithm.servers > 1: no server sees the whole gradient")
    if config.schedule.name == "cosine" and config.train.seconds is not None:
        raise ConfigError(f"{where}: schedule.name = 'cosine' needs train.epochs, steps or samples, not seconds")
    return config


def check_whole_numbers(content, where: str, key: str = ""):
    """Raise ConfigError for one beyond 64 bits, which TOML forbids and Python's reader lets through."""
    if isinstance(content, int) and not -(2**63) <= content < 2**63:
        raise ConfigError(f"{where}: {key} = {content}: whole numbers are from -2^63 to 2^63 - 1")
    for name, value in content.items() if isinstance(content, dict) else ():
        check_whole_numbers(value, where, f"{key}.{name}" if key else str(name))
    for value in content if isinstance(content, list) else ():
        check_whole_numbers(value, where, key)


def apply(override: str, content: dict):
    """Set ``key=value`` in nested dictionaries; the value is TOML, or else a plain string."""
    key, equals, value = override.partition("=")
    path = key.strip().split(".")
    if not equals or not all(path):
        raise ConfigError(f"--set {override}: expected key=value, such as optimizer.lr=0.05")
    try:
        parsed = tomllib.loads(f"value = {value}")["value"]
    except (ValueError, RecursionError):
        parsed = value.strip()
    table = content
    for part in path[:-1]:
        table = table.setdefault(part, {})
        if not isinstance(table, dict):
            raise ConfigError(f"--set {override}: {part} is not a section")
    if path[0] == "train" and path[-1] in ENDS:
        for other in ENDS:
            table.pop(other, None)  # to set one end is to mean that one
    table[path[-1]] = parsed


def describe(error: ValidationError, model: type[BaseModel], prefix: str = "") -> str:
    """All complaints of a validation in one line."""
    return "; ".join(describe_one(complaint, model, prefix) for complaint in error.errors())


def describe_one(complaint: dict, model: type[BaseModel], prefix: str) -> str:
    path = [str(part) for part in complaint["loc"] if part != "[key]"]
    key = prefix + ".".join(path)
    if complaint["type"] == "extra_forbidden":
        return unknown_key(key, path[-1], allowed_keys(model, path[:-1]))
    if complaint["type"] == "missing":
        return f"{key}: missing"
    message = complaint["msg"].removeprefix("Value error, ")
    message = message[0].lower() + message[1:]
    if complaint["type"] == "value_error" or isinstance(complaint["input"], dict):
        return f"{key}: {message}"
    return f"{key} = {complaint['input']!r}: {message}"


def unknown_key(key: str, last: str, allowed: list[str]) -> str:
    near = difflib.get_close_matches(last, allowed, 1)
    hint = f" (did you mean {near[0]}?)" if near else ""
    return f"{key}: unknown key{hint}; allowed: {', '.join(allowed)}"


def allowed_keys(model: type[BaseModel], path: list[str]) -> list[str]:
    for part in path:
        annotation = model.model_fields[part].annotation if part in model.model_fields else None
        if not (isinstance(annotation, type) and issubclass(annotation, BaseModel)):
            for candidate in (Tail, Pause):  # the values of the tables keyed by rank
                if path[1:2] == [candidate.__name__.lower()]:
                    return list(candidate.model_fields)
            return []
        model = annotation
    return list(model.model_fields)
