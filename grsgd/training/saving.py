"""Files in which a run saves the weights of its final model, and of its best model."""

import hashlib
import io
import math
import os
import tempfile
from pathlib import Path
from typing import NamedTuple

import torch

from grsgd.errors import ConfigError, RunFileError
from grsgd.files import atomic_write
from grsgd.runs.ending import Ended, how_ended
from grsgd.runs.run_file import check_writable
from grsgd.runs.targets import naming, target_of
from grsgd.training.evaluation import Quality
from grsgd.training.state_file import bytes_of, check_format

HEADER_BYTES = 2**10
"""Largest number of bytes that a model file has for each tensor besides the tensor's content."""


class Saved(NamedTuple):
    """Result of saving a run's models: the attributes of the run file, warnings, and error messages."""

    attributes: dict
    """Attributes for the run file: paths and digests of the saved model files, and the best model's metric."""
    warnings: list[str]
    """Warnings about saved models, for example that some weights are not finite."""
    problems: list[str]
    """Error messages about model files that could not be written to the paths which the user gave."""


class ModelFiles:
    """Files in which a run saves its final model (``final``) and its best model (``best``). A model whose path is None
    is not saved.

    The final model is the average of the ranks' models at the end of the run. The best model is the averaged model with
    the best value of the task's metric, among the snapshots and the final model. Among models with equally good values
    of the metric, the earliest model is saved. One rank writes both files, after all models have been tested.
    """

    def __init__(self, final: str | os.PathLike | None = None, best: str | os.PathLike | None = None):
        self.final, self.best = (None if path is None else Path(path) for path in (final, best))
        self._best: Quality | None = None
        self._best_state: dict | None = None

    def check(self, out: str | os.PathLike, model: torch.nn.Module):
        """Check before training whether the model files and the run file ``out`` differ, and whether the model files
        can be written.

        Raises ConfigError if two options name the same file, or if the package for a file's format is not installed.
        Raises RunFileError if a file cannot be written.
        """
        size = sum(tensor.nbytes + HEADER_BYTES for tensor in [*model.parameters(), *model.buffers()])
        taken = {os.path.realpath(out): "--out"}
        for option, path in self.asked_for().items():
            if other := taken.get(os.path.realpath(path)):
                raise ConfigError(f"{option} {path}: is the file of {other}, too: each option needs its own file")
            taken[os.path.realpath(path)] = option
            check_format(path)
            check_writable(path, size)

    def asked_for(self) -> dict[str, Path]:
        """Return the path of each model file that the user asks for, by the option: "--save" or "--save-best"."""
        paths = {"--save": self.final, "--save-best": self.best}
        return {option: path for option, path in paths.items() if path is not None}

    @property
    def places(self) -> dict[str, str | None]:
        """Attributes for the run file: the absolute paths at which the user wants the models to be saved. The path of a
        model that is not saved is None."""
        paths = {"model_file": self.final, "best_model_file": self.best}
        return {name: None if path is None else os.path.abspath(path) for name, path in paths.items()}

    def evaluated(self, model: torch.nn.Module, quality: Quality):
        """Keep a copy of ``model`` if its metric is better than the metric of all models that were evaluated before.
        Call this method with every averaged model in order of time, and with the final model last."""
        if self.best is None or math.isnan(quality.mean):
            return
        if self._best is None or quality.metric.is_better(quality.mean, self._best.mean):
            self._best, self._best_state = quality, state_of(model)

    def save(self, model: torch.nn.Module, reason: str) -> Saved:
        """Write the file of the final ``model`` and the file of the best model of a run that ended for ``reason``. If
        the run has ended early, no existing model file is replaced. A model file that cannot be written to its path is
        written to a temporary folder.
        """
        saved = Saved({}, [], [])
        weights = [name for name, _ in model.named_parameters()]
        if self.final is not None:
            self._save(saved, "model", path_of(self.final, reason), state_of(model), weights)
            if how_ended(reason) is Ended.DIVERGED and "model_file" in saved.attributes:
                saved.warnings.append(f"{saved.attributes['model_file']}: is the model of a run that diverged")
        if self._best_state is not None:
            self._save(saved, "best_model", path_of(self.best, reason), self._best_state, weights)
            saved.attributes[self._best.metric.best] = self._best.mean
        return saved

    def _save(self, saved: Saved, name: str, path: Path, state: dict, weights: list[str]):
        place, sha256, problem = save_state(path, state)
        if problem:
            saved.problems.append(problem)
        if place is None:
            return
        saved.attributes.update({f"{name}_file": os.path.abspath(place), f"{name}_sha256": sha256})
        if not all(state[weight].isfinite().all() for weight in weights):  # buffers may be infinite, such as masks
            saved.warnings.append(f"{place}: some of its weights are not finite")


def state_of(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Return a copy of the ``state_dict()`` of a model, in CPU memory; each tensor has memory of its own."""
    state = model.state_dict()
    for name, value in state.items():
        if isinstance(value, torch.Tensor):  # a value from a module's get_extra_state() may be no tensor
            state[name] = value.detach().to("cpu", copy=True)
    return state


def path_of(path: Path, reason: str) -> Path:
    """Return the path to which the run writes a model for which the user has given ``path``. The result is ``path``, or
    ``path`` with ".interrupted" before its suffix if ``path`` exists and the run has ended early."""
    early = how_ended(reason) is not Ended.COMPLETED and path.exists()
    return path.with_suffix(f".interrupted{path.suffix}") if early else path


def save_state(path: Path, state: dict[str, torch.Tensor]) -> tuple[Path | None, str, str | None]:
    """Write a state dict to ``path``. If ``path`` cannot be written, write a file of the same name to a temporary
    folder. If a write fails, no incomplete file is left.

    Returns (path of the written file, SHA-256 of its content, error message of one line). The returned path is None if
    the file could be written neither to ``path`` nor to a temporary folder. The returned error message is None if the
    file was written to ``path``.
    """
    content = bytes_of(path, state)
    sha256 = hashlib.sha256(content.getbuffer()).hexdigest()
    try:
        write(path, content)
        return path, sha256, None
    except RunFileError as error:
        problem = str(error)
    try:
        elsewhere = Path(tempfile.mkdtemp(prefix="grsgd-")) / path.name
        write(elsewhere, content)
        return elsewhere, sha256, f"{problem}; the model was saved as {elsewhere} instead"
    except (OSError, RunFileError) as error:
        return None, sha256, f"{problem}; nor could the model be saved in {tempfile.gettempdir()}: {error}"


def write(path: Path, content: io.BytesIO):
    with naming(path), atomic_write(target_of(path)) as temporary:
        temporary.write_bytes(content.getbuffer())
