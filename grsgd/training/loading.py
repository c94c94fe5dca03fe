"""Functions that load models saved by runs (``load_model``), and evaluate them (``grsgd evaluate``)."""

import hashlib
import os
import tomllib
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import NamedTuple

import h5py
import torch

from grsgd import config as configurations
from grsgd.config import Config
from grsgd.config.reading import apply, code_in, read
from grsgd.data import Dataset
from grsgd.errors import ConfigError, ModelError
from grsgd.memory import available
from grsgd.models import zoo
from grsgd.outside import names_from
from grsgd.runs.metric import Metric
from grsgd.runs.numbers import human_bytes
from grsgd.runs.run_file import Run, load_run
from grsgd.runs.targets import naming, target_of
from grsgd.text import printable
from grsgd.training.device import allow_tf32, pick_device, use, use_threads
from grsgd.training.evaluation import metric_and_loss
from grsgd.training.inputs import Images, build_model, images_of, load_data
from grsgd.training.memory import blueprint
from grsgd.training.state_file import state_in

MAX_DIFFERENCES = 3
"""Largest number of differences between a model file and a model that an error message lists."""
CPU = torch.device("cpu")


class ModelSource(NamedTuple):
    """Model file and configuration from which `load_model` or `evaluate` builds a model."""

    path: Path
    """Path of the file that holds the model's state dict."""
    content: bytes
    """All bytes of the file ``path``."""
    config: Config
    run: Run | None
    """Content of the run file that has the configuration; None if the configuration is from a TOML file."""
    warning: str | None
    """Warning of one line to print before the model is used, or None."""


def load_model(
    path: str | os.PathLike, config: str | os.PathLike | None = None, *, best: bool = False, trust: bool = False
) -> torch.nn.Module:
    """Return a model that a run has saved with ``--save`` or ``--save-best``, in evaluation mode, on the CPU.

    Parameters
    ----------
    path
        Either a run file, which records the path of the saved model, or a file with a state dict. A file with a state
        dict needs ``config``.
    config
        A TOML file or a run file with the configuration from which the model is built. The data set must be present
        only in one case: a TOML file names a data set of unknown shape, such as "imagefolder".
    best
        Whether to load the model with the best test result, and not the final model. Only a run file allows
        ``best=True``.
    trust
        Whether Python code that a run file names may be imported. A run file may name the code of a model and of a data
        set. Code of a data set is imported only if the run file does not record the data's shape. The code must equal
        the copy of the code in the run file. Code that a TOML file names is always imported.

    Returns
    -------
    torch.nn.Module
        Model that maps images [b, channels, height, width] to logits [b, classes]. The input images have the
        configuration's dtype, and are normalised as in the data set. `gpt` maps tokens, int64 [b, places], to logits
        [b, places, tokens].

    Raises
    ------
    UsageError
        If a file is missing, has another format, does not fit the model, or has changed since the run saved the file.
        UsageError is also raised if a run file names Python code, and either ``trust`` is False or the code has
        changed.
    """
    with found(path, config, best=best, is_tested=False, trust=trust) as source:
        with torch.random.fork_rng(devices=[]):  # building a model draws random initial weights
            model = filled(recorded_images(source.run) or images_of(source.config), source)
        if source.warning:
            warnings.warn(source.warning, stacklevel=3)
        return model


class Evaluation(NamedTuple):
    """Test result of a model: the task's metric, the metric's value on the test data, and the mean loss."""

    metric: Metric
    value: float
    loss: float
    samples: int
    source: ModelSource


def evaluate(path, config=None, overrides: Sequence[str] = (), best: bool = False, trust: bool = False) -> Evaluation:
    """Evaluate a saved model on the test data of the model's configuration. The arguments ``path``, ``config``,
    ``best`` and ``trust`` are the arguments of `load_model`. ``overrides`` are changes of the configuration, such as
    ``data.dir=/scratch``.

    If ``path`` is a run file, the test data are cut into the same batches as in the run. So the test result equals the
    result in the run file. Raises UsageError if the model or the test data cannot be loaded.
    """
    with found(path, config, overrides, best, trust=trust) as source:
        device = pick_device(source.config.device)
        use_threads()
        use(device)
        allow_tf32(device, source.config.gradient.tf32)
        dataset = load_data(source.config)
        model = filled(dataset, source).to(device)
        ranks = source.run.attributes["ranks"] - len(source.run.attributes.get("lost", ())) if source.run else 1
        task = source.config.make_task()
        measured = metric_and_loss(model, dataset.test, task, device, ranks)
    return Evaluation(task.metric, *measured, len(dataset.test), source)


# ---- functions that find the model's file and configuration


@contextmanager
def found(
    path, config=None, overrides: Sequence[str] = (), best: bool = False, is_tested: bool = True, trust: bool = False
) -> Iterator[ModelSource]:
    """Find the file and the configuration of a model, and yield them as a `ModelSource`. Either ``path`` is a run file,
    or ``path`` is a file with a state dict. For a state dict, ``config`` is a TOML file or a run file with the model's
    configuration. If ``is_tested``, the model will be tested, so that the configuration's task must exist. Raises
    UsageError if a file is missing, has changed, or has another format.

    If ``path`` is a run file, a model file that has changed since the run raises an error. Python code that a run file
    names is imported in the ``with`` block only if ``trust`` is True, and if the code equals the copy in the run file.
    Code that ``overrides`` name is imported without ``trust``, because the user has given the overrides.
    """
    if config is None and not is_run_file(path):
        raise ModelError(f"{path}: is not a run file: name the configuration of the model, or its run file, after it")
    place = path if config is None else config
    content, run = configuration(place, overrides, is_tested)
    with nullcontext() if run is None else names_of(place, run, overrides, trust):
        yield source_of(path, config, best, configurations.parse(content, str(place)), run)


def names_of(path, run: Run, overrides: Sequence[str], trust: bool):
    """Return the context manager for a block that imports Python code which the run file ``path`` names. The imported
    code must equal the copy of the code in the run file. Code that ``overrides`` name is not compared with the run
    file."""
    own = {}
    for override in overrides:
        apply(override, own)
    remedy = "" if trust else "--trust (trust=True) imports it, if you know who has written it"
    return names_from(path, own=code_in(own), remedy=remedy, sha256=run.attributes)


def source_of(path, config, best: bool, settings: Config, run: Run | None) -> ModelSource:
    """Read the model file, which is ``path`` or, if ``path`` is a run file, the file that the run has saved. Return a
    `ModelSource` with the content of the model file and with ``settings``, the model's configuration. Raises UsageError
    if the model file is missing or has changed."""
    if is_run_file(path):
        file, sha256 = saved_model(path, run if config is None else load_run(path), best)
        content = read_file(file)
        if hashlib.sha256(content).hexdigest() != sha256:
            raise ModelError(f"{file}: is not the model that the run of {path} has saved: its SHA-256 differs")
        return ModelSource(file, content, settings, run, None)
    content, warning = read_file(path), None
    saved = {run.attributes.get(f"{name}_sha256") for name in ("model", "best_model")} - {None} if run else set()
    if saved and hashlib.sha256(content).hexdigest() not in saved:
        warning = f"{path} is not a model that the run of {config} has saved: its SHA-256 differs"
    return ModelSource(Path(path), content, settings, run, warning)


def read_file(path) -> bytes:
    with naming(path):
        target = target_of(path)
        # A sparse file needs as much memory as its size says, although it takes little space on disk.
        if (size := target.stat().st_size) > (free := available()):
            raise ValueError(f"holds {human_bytes(size)}, and {human_bytes(free)} of memory are free")
        return target.read_bytes()


def is_run_file(path) -> bool:
    with naming(path):
        target = target_of(path)
        open(target, "rb").close()
        return h5py.is_hdf5(target)


def configuration(path, overrides: Sequence[str], is_tested: bool) -> tuple[dict, Run | None]:
    """Read the configuration of a model from a TOML file or a run file. Return the configuration and the content of the
    run file; the second value is None for a TOML file. Raises UsageError if the configuration cannot be read.

    The algorithm and the learning-rate schedule are replaced by defaults, because a test does not need them. If
    ``is_tested`` is False, the task is replaced by the default task. So files with a user's own algorithm, schedule or
    task may be missing.
    """
    run = load_run(path) if is_run_file(path) else None
    if run:
        try:
            content = tomllib.loads(run.attributes["config"])
        except (ValueError, RecursionError) as error:
            raise ConfigError(f"{path}: the run's configuration is not valid TOML: {printable(str(error))}") from None
    else:
        content = read(Path(path))
    for override in overrides:
        apply(override, content)
    content |= {"algorithm": {"name": "ring_allreduce"}, "schedule": {}, "train": {"steps": 1}}
    if not is_tested:
        content.pop("task", None)
    return content, run


def saved_model(path, run: Run, best: bool) -> tuple[Path, str]:
    """Return the path of the file in which a run has saved its model, and the file's SHA-256 in the run file. Raises
    ModelError if the run has saved no model, or if the file is missing.

    A model file that is not at its recorded path is searched for in the folder of the run file.
    """
    name, other = ("best_model", "model") if best else ("model", "best_model")
    file, sha256 = (run.attributes.get(f"{name}_{what}") for what in ("file", "sha256"))
    if not file or not sha256:
        if f"{other}_file" in run.attributes:
            has = "final model, not the best one" if best else "best model, not the final one (--best, best=True)"
            raise ModelError(f"{path}: the run has saved its {has}")
        option = "--save-best" if best else "--save"
        raise ModelError(f"{path}: its run has saved no model: train and simulate need {option} MODEL.pt")
    places = [Path(file), Path(path).parent / Path(file).name]
    found = next((place for place in places if place.is_file()), None)
    if found is None:
        looked = " or ".join(str(place) for place in dict.fromkeys(os.path.abspath(place) for place in places))
        raise ModelError(f"{path}: the model that its run has saved is not at {looked}")
    return found, sha256


def recorded_images(run: Run | None) -> Images | None:
    """Return the shape and the number of classes of a run's data, as the run file records them. Return None if the run
    file lacks the shape or the number of classes, or if a value is invalid."""
    shape, classes = (run.attributes.get(name) if run else None for name in ("input_shape", "classes"))
    whole = isinstance(shape, list) and all(type(size) is int for size in [*shape, classes])
    return Images(tuple(shape), classes) if whole else None


# ---- functions that build the model and load its weights


def filled(images: Dataset | Images, source: ModelSource) -> torch.nn.Module:
    """Build the model of ``source`` for data of the shape ``images``, with the weights in the model file. The returned
    model has the configuration's dtype, and is in evaluation mode.

    For a model of this package, the shapes in the file are checked before memory is allocated for the model. Raises
    ModelError if the model and the file differ in names or shapes. Raises ConfigError if the model cannot be built.
    """
    state = state_in(source.path, source.content)
    if source.config.model.name in zoo.NAMES:
        check_fit(blueprint(source.config, images), state, source)
    model = build_model(source.config, images, CPU).to(getattr(torch, source.config.dtype)).eval()
    check_fit(model, state, source)
    try:
        model.load_state_dict(state)
    except (RuntimeError, TypeError) as error:  # load_state_dict() raises RuntimeError or TypeError for unusual tensors
        raise does_not_fit(source, printable(str(error), 200)) from None
    return model


def check_fit(model: torch.nn.Module, state: Mapping[str, torch.Tensor], source: ModelSource):
    """Raise ModelError if the names or shapes in a model's state dict differ from the names or shapes in ``state``, the
    state dict of the model file."""
    if different := differences(model.state_dict(), state):
        more = len(different) - MAX_DIFFERENCES
        raise does_not_fit(source, "; ".join(different[:MAX_DIFFERENCES]) + (f"; and {more} more" if more > 0 else ""))


def does_not_fit(source: ModelSource, why: str) -> ModelError:
    return ModelError(f"{source.path}: does not fit model.name = {source.config.model.name!r}: {why}")


def differences(expected: Mapping[str, torch.Tensor], found: Mapping[str, torch.Tensor]) -> list[str]:
    """Return the differences between the names and shapes of two state dicts, as short texts for an error message."""
    shapes = [
        f"{name} is {size(found[name])}, expected {size(value)}"
        for name, value in expected.items()
        if name in found and found[name].shape != value.shape
    ]
    missing = [f"{name} is missing" for name in expected if name not in found]
    unknown = [f"the model has no {printable(str(name), 100)}" for name in found if name not in expected]
    return shapes + missing + unknown


def size(tensor: torch.Tensor) -> str:
    return "x".join(map(str, tensor.shape)) or "a number"
