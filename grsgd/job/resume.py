"""Continuation of a run from a checkpoint, on any number of ranks: choice of the checkpoint, check of the
configuration, and restoring of each rank's state."""

import math
import sys
import tomllib
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import torch

from grsgd import config as configurations
from grsgd.algorithms.base import Algorithm
from grsgd.algorithms.central import CentralAlgorithm
from grsgd.comm.watchdog import within
from grsgd.config import Config
from grsgd.config.sources import digests_of
from grsgd.errors import ConfigError, RunFileError
from grsgd.job import launch
from grsgd.models.flat import host_array, host_tensor
from grsgd.models.replica import Replica
from grsgd.models.values import fill
from grsgd.training.checkpoint_file import FORMAT, read
from grsgd.training.checkpoint_folder import COMPLETE, Found, checkpoints, file_of, name_of, parts
from grsgd.training.curve_file import CurveFile
from grsgd.training.rank_state import restore
from grsgd.training.trainer import Trainer

OWN_LOOP = "own_loop"
"""Key that only a user's own loop over `grsgd.surviving` writes into the configuration of a checkpoint."""
MAY_CHANGE = ("train", "comm", "device", "stragglers", "faults")
"""Top-level keys of a configuration whose values may change when a run goes on from a checkpoint."""
MIN_LOST = 1e-6
"""Smallest share of the sum of all ranks' model weights whose absence from a checkpoint is noticed. If a checkpoint
lacks a larger share than `MIN_LOST` of this sum, messages with weights were under way when the checkpoint was taken."""
MOST = 10**15
"""Upper bound of each count, and of each time in seconds, in a checkpoint's state."""


@dataclass(frozen=True)
class Resumed:
    """Checkpoint from which one rank continues its run.

    ``folder`` is the folder of the checkpoints. ``samples`` is the number of samples of all ranks at this checkpoint.
    ``ranks`` is the number of ranks of the job that took the checkpoint. ``state`` is this rank's state, or rank 0's
    state if the number of ranks has changed. ``model`` has parameters and buffers, averaged over all ranks. ``model``
    is None on every rank other than rank 0, and on rank 0 if the number of ranks has not changed. ``config`` is the
    checkpoint's configuration, as TOML. ``reached`` has the number of samples and the seconds that the run had reached.
    The numbers in ``reached`` are the largest that any rank knew. ``weights`` is the sum of all ranks' weights in the
    average of the models, if the number of ranks has not changed. ``memory`` is the folder in the memory of this host
    if the checkpoint was read from memory, else None. The model snapshots of the accuracy curve are always in
    ``folder``. For a checkpoint in memory, ``on_disk`` is the number of samples at the newest whole checkpoint in
    ``folder``, or 0.
    """

    folder: Path
    samples: int
    ranks: int
    state: dict
    model: tuple[np.ndarray, np.ndarray] | None
    config: str
    reached: tuple[float, float] = (0.0, 0.0)
    weights: float = math.nan
    memory: Path | None = None
    on_disk: int = 0

    def __str__(self):
        return str((self.memory or self.folder) / name_of(self.samples))

    @property
    def elapsed(self) -> float:
        """Seconds of training time of the run at this checkpoint."""
        return self.state["progress"]["elapsed"]

    @property
    def whole(self) -> list[tuple[str, str]]:
        """List with one pair of names: the newest whole checkpoint in ``folder``, and the folder of the curve's
        snapshots. The list is empty if ``folder`` has no whole checkpoint."""
        samples = self.on_disk if self.memory else self.samples
        return [(name_of(samples), self.state["curve"]["name"])] if samples else []

    def configured(self, config: Config, ranks: int) -> Config:
        """Return the configuration with which the run goes on. Options of the algorithm that are "auto" get the
        checkpoint's values.

        Raises ConfigError if ``config`` differs from the checkpoint's configuration, or if the run cannot go on with
        ``ranks`` ranks. The checkpoint may come from another user. So code that the checkpoint names is imported only
        if ``config`` names the same code.
        """
        try:
            before, wanted = tomllib.loads(self.config), tomllib.loads(config.toml())
        except (tomllib.TOMLDecodeError, RecursionError):
            raise ConfigError(f"{self}: its configuration is not TOML") from None
        if OWN_LOOP in before:
            raise ConfigError(f"{self}: is a checkpoint of a user's own loop: run its script, or name another folder")
        for key in {**before, **wanted}:
            was, now = before.get(key), wanted.get(key)
            if key == "algorithm" and isinstance(was, dict) and was.get("name") == now["name"]:
                now = {name: was.get(name) if value == "auto" else value for name, value in now.items()}
                wanted[key] = now
            if key not in MAY_CHANGE and now != was:
                raise ConfigError(f"{self}: was made with another {difference(key, was, now)}")
        if ranks != self.ranks and issubclass(config.algorithm_class, CentralAlgorithm):
            raise ConfigError(f"{self}: was taken on {self.ranks} ranks with a server: resume it on {self.ranks} ranks")
        return configurations.parse(wanted, str(self))

    def other_code(self, config: Config) -> list[str]:
        """Return a warning line for each file of the user's own code that has changed since the checkpoint."""
        before, now = self.state["code"], digests_of(config)
        return [
            f"{self}: {name.removesuffix('_sha256')} has changed since the checkpoint: SHA-256 "
            f"{short(before.get(name))}, now {digest!r}; the run goes on with the present code"
            for name, digest in now.items()
            if before.get(name) != digest
        ]

    def give_model(self, replica: Replica):
        """Copy the average of all ranks' models into ``replica``, if the number of ranks has changed.

        Raises ConfigError if the model in the checkpoint does not fit ``replica``.
        """
        if self.model is not None:
            try:
                fill(replica.params, self.model[0])
                fill(replica.buffers, self.model[1])
            except (TypeError, ValueError) as error:
                raise ConfigError(f"{self}: {unfit(error)}") from None

    def steps(self, batch: int, ranks: int) -> int:
        """Return the number of steps after which each of ``ranks`` ranks goes on, with ``batch`` samples per step. If
        the number of ranks has not changed, return the number of steps in the checkpoint's state."""
        return self.state["totals"]["steps"] if ranks == self.ranks else self.samples // (batch * ranks)

    def restore(self, trainer: Trainer) -> CurveFile | None:
        """Set the state of ``trainer``'s rank, whose algorithm has just started, to the state in the checkpoint. If the
        number of ranks has changed, set only the progress: the numbers of steps and samples, and the training time.

        Return the file of the rank's model snapshots if the file is undamaged, else None. Raises ConfigError if the
        state does not fit the trainer.
        """
        if self.ranks != trainer.comm.size:
            self._begin(trainer)
            return None
        try:
            restore(trainer, self.state, *self.reached)
            self.scale_weight(trainer.algorithm)
            kept = self.state["curve"]
            curve = CurveFile(self.folder, trainer.comm.rank, kept["name"], kept["digests"])
            return curve if curve.give(trainer.snapshots) else None
        except Exception as error:  # a state that another version or user has written may have any content
            raise ConfigError(f"{self}: {unfit(error)}") from error

    def scale_weight(self, algorithm: Algorithm):
        """Scale the weight of a rank's model, if messages with weights were under way when the checkpoint was taken."""
        if abs(self.weights - self.ranks) > MIN_LOST * self.ranks:
            algorithm.scale_weight(self.ranks / self.weights)

    def _begin(self, trainer: Trainer):
        batch, ranks = trainer.config.data.batch_size, trainer.comm.size
        steps = self.steps(batch, ranks)
        trainer.progress.elapsed_before = self.elapsed
        trainer.progress.skip(steps, batch, ranks)
        trainer.totals.steps, trainer.totals.samples = steps, steps * batch
        trainer.computing.go_on_from(steps, trainer.algorithm)


def difference(key: str, was, now) -> str:
    """Return a text with the first key below ``key`` whose value differs between ``was`` and ``now``, and with the two
    values of this key. ``was`` and ``now`` are the values of ``key`` in two configurations."""
    if not isinstance(was, dict) or not isinstance(now, dict):
        return f"{key}: {short(was)}, now {short(now)}"
    first = next(name for name in {**was, **now} if was.get(name) != now.get(name))
    return f"{key}.{first}: {short(was.get(first))}, now {short(now.get(first))}"


def short(value) -> str:
    text = repr(value)
    return text if len(text) <= 200 else f"{text[:200]}..."


def find(mpi, folder: Path, timeout: float, ranks: int) -> Resumed | None:
    """Return this rank's part of the newest whole checkpoint, for a run of the first ``ranks`` processes.

    Return None, on all ranks, if ``folder`` has only an incomplete first checkpoint of the job. If the function returns
    None, the run begins anew. For each checkpoint that is newer than the chosen checkpoint but not whole, the function
    prints a line with the reason. Raises SetupError on all ranks in any other case in which no checkpoint can be used.
    """
    found, was_complete = listed(mpi, folder, timeout)
    problems = []
    for checkpoint in found:
        problem, resumed = checkpoint.problem, None
        if not problem:
            problem, resumed = together(mpi, timeout, partial(load, folder, checkpoint, mpi.rank, ranks))
        if resumed:
            for line in problems if mpi.rank == 0 else ():
                print(f"{line}: the run uses an older checkpoint", file=sys.stderr, flush=True)
            return with_all_ranks(mpi, timeout, resumed, ranks)
        place = folder / name_of(checkpoint.samples)
        problems.append(f"{place}: {problem.removeprefix(f'{place}/')}")
    is_first = len(found) == 1 and found[0].ranks and found[0].problem and not was_complete
    with launch.collective_setup(mpi, timeout):
        if not found:
            raise RunFileError(f"{folder}: holds no checkpoint that this version can read (format {FORMAT})")
        if not is_first:
            raise RunFileError(f"{problems[0]}; no checkpoint is whole: with another folder the training begins anew")
    if mpi.rank == 0:
        print(f"{folder}: the first checkpoint is not complete: the training begins anew", file=sys.stderr, flush=True)
    return None


def listed(mpi, folder: Path, timeout: float) -> tuple[list[Found], bool]:
    """Return the checkpoints in ``folder``, the newest first, and whether any checkpoint in ``folder`` was ever
    complete; to be called on all ranks."""
    with within(timeout, "looking for checkpoints"):
        told = mpi.allgather((parts(folder, mpi.rank, mpi.size), (folder / COMPLETE).exists()))
    return checkpoints(part for of_rank, _ in told for part in of_rank), told[0][1]


def with_all_ranks(mpi, timeout: float, resumed: Resumed, ranks: int) -> Resumed:
    """Return ``resumed`` with two values computed from all ranks' states: the progress of the run, and the sum of the
    models' weights."""
    with within(timeout, "telling all ranks how far the run is"):
        told = mpi.allgather((resumed.reached, resumed.state["weight"]))
    reached = tuple(max(each) for each in zip(*(each for each, _ in told), strict=True))
    return replace(resumed, reached=reached, weights=math.fsum(weight for _, weight in told[:ranks]))


def together(mpi, timeout: float, read: Callable[[], Resumed]) -> tuple[str, Resumed | None]:
    """Call ``read()`` on all ranks. If no call fails, return ("", result of ``read()`` on this rank). If ``read()``
    fails on any rank, return (error message of the lowest failed rank, None) on all ranks."""
    try:
        problem, resumed = "", read()
    except RunFileError as error:
        problem, resumed = str(error), None
    launch.barrier(mpi, timeout)
    with within(timeout, "asking all ranks whether they can read a checkpoint"):
        problem = next(filter(None, mpi.allgather(problem)), "")
    return problem, None if problem else resumed


def load(folder: Path, checkpoint: Found, rank: int, ranks: int) -> Resumed:
    """Read this rank's part of ``checkpoint`` in ``folder``. A spare reads rank 0's part, and so do all ranks if the
    number of ranks has changed. Raises RunFileError if a rank's part of the checkpoint is damaged or does not fit."""
    place, is_same = folder / name_of(checkpoint.samples), checkpoint.ranks == ranks
    _, state, config = read(place / file_of(rank if is_same and rank < ranks else 0))
    try:
        model = None if is_same or rank else average(place, checkpoint.ranks)
        check_counts(state)
        if not 0 <= state["weight"] < math.inf:
            raise ValueError(f"weight = {short(state['weight'])}")
        reached = state["progress"]["samples"], state["progress"]["elapsed"]
        str(state["curve"]["name"]), dict(state["code"])
    except RunFileError:
        raise
    except (LookupError, AttributeError, TypeError, ValueError, RuntimeError) as error:
        raise RunFileError(f"{place}: {unfit(error)}") from None
    return Resumed(folder, checkpoint.samples, checkpoint.ranks, state, model, config, reached)


def check_counts(state: dict):
    """Raise ValueError for an impossible count or time in ``state``, with which training would fail later."""
    for section in ("progress", "totals"):
        for name, value in state[section].items():
            if type(value) not in (int, float) or not 0 <= value < MOST:
                raise ValueError(f"{section}.{name} = {short(value)}")


def unfit(error: Exception) -> str:
    """Return the part of an error message which says that ``error`` prevents a run from going on from a checkpoint."""
    what = " ".join(f"{type(error).__name__}: {error}".split())[:300]
    return f"is not what this version of grsgd, or of your own code, goes on from ({what})"


def average(folder: Path, ranks: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the mean of all ranks' parameters, weighted by each rank's ``weight`` in its checkpoint, and the
    unweighted mean of their buffers."""
    weights, parameters, buffers, alike = 0.0, 0.0, 0.0, set()
    for rank in range(ranks):
        # one rank's state is read at a time, because states of optimizers are large
        _, state, _ = read(folder / file_of(rank))
        weight, model = float(state["weight"]), state["model"] | state["result"]
        weights += weight
        parameters = parameters + weight * host_tensor(model["parameters"]).double().numpy()
        buffers = buffers + host_tensor(model["buffers"]).double().numpy() / ranks
        alike.add(tuple((model[name].dtype, model[name].shape) for name in ("parameters", "buffers")))
        if len(alike) > 1:
            raise ValueError(f"the models in {file_of(0)} and {file_of(rank)} have different shapes or dtypes")
    if not 0 < weights < math.inf:
        raise ValueError(f"weights that sum to {weights:g}")
    ((of_parameters, _), (of_buffers, _)) = alike.pop()
    return rounded(parameters / weights, of_parameters), rounded(buffers, of_buffers)


def rounded(mean: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """Return ``mean`` in the dtype that `host_array` gives to the arrays of a checkpoint."""
    return host_array(torch.from_numpy(mean).to(host_tensor(np.empty(0, dtype)).dtype))
