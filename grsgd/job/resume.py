"""A run that goes on from a checkpoint: which one, and what each rank takes from it."""

import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from grsgd import config as configurations
from grsgd.algorithms.central import CentralAlgorithm
from grsgd.comm.watchdog import within
from grsgd.config import Config
from grsgd.config.reading import code_in
from grsgd.errors import ConfigError, RunFileError
from grsgd.job import launch
from grsgd.models.replica import Replica
from grsgd.models.values import fill
from grsgd.outside import names_from
from grsgd.training.checkpoints import MAY_CHANGE, curve_of, file_of, name_of, read, samples_of
from grsgd.training.rank_state import restore
from grsgd.training.trainer import Trainer


@dataclass(frozen=True)
class Resumed:
    """A checkpoint, as one rank goes on from it.

    folder: of the checkpoints. samples: of all ranks, at this one. ranks: of the job that has made it. state: of this
    rank, or, where there were other ranks, of rank 0. model: parameters and buffers, the average of all ranks'; on rank
    0 alone, and only where there were other ranks. config: the configuration, as TOML.
    """

    folder: Path
    samples: int
    ranks: int
    state: dict
    model: tuple[np.ndarray, np.ndarray] | None
    config: str

    def __str__(self):
        return str(self.folder / name_of(self.samples))

    @property
    def elapsed(self) -> float:
        """Seconds that the run had taken."""
        return self.state["progress"]["elapsed"]

    def configured(self, config: Config, ranks: int) -> Config:
        """Return the configuration with all options of the algorithm as they were decided; raises ConfigError if it is
        not the one of the checkpoint, or cannot go on with so many ranks."""
        wanted = tomllib.loads(config.toml())
        with names_from(self, own=code_in(wanted), remedy="the configuration of this job names no such code"):
            before = configurations.parse(tomllib.loads(self.config), str(self))
        for key, was in tomllib.loads(before.toml()).items():
            now = wanted.get(key)
            if key in MAY_CHANGE or now == was:
                continue
            if key == "algorithm" and now["name"] == was["name"]:
                now = {name: was.get(name) if value == "auto" else value for name, value in now.items()}
            if now != was:
                raise ConfigError(f"{self}: was made with another {difference(key, was, now)}")
        if ranks != self.ranks and issubclass(config.algorithm_class, CentralAlgorithm):
            raise ConfigError(f"{self}: is of {self.ranks} ranks, a server among them: go on with as many")
        return config.model_copy(update={"algorithm": before.algorithm})

    def give_model(self, replica: Replica):
        """Put the average of all models into a replica, where ranks are others than they were."""
        if self.model is not None:
            fill(replica.params, self.model[0])
            fill(replica.buffers, self.model[1])

    def restore(self, trainer: Trainer):
        """Put a rank whose algorithm has started where it was; or, among other ranks, as far in the run."""
        if self.ranks == trainer.comm.size:
            restore(trainer, self.state)
            self._restore_curve(trainer)
            return
        batch, ranks = trainer.config.data.batch_size, trainer.comm.size
        steps = self.samples // (batch * ranks)
        trainer.progress.elapsed_before = self.elapsed
        trainer.progress.skip(steps, batch, ranks)
        trainer.totals.steps, trainer.totals.samples = steps, steps * batch
        trainer.go_on_from(steps)

    def _restore_curve(self, trainer: Trainer):
        """Bring the snapshots back."""
        count, path = trainer.snapshots.count, self.folder / curve_of(trainer.comm.rank)
        with open(path, "rb") as file:
            for _ in range(count):
                trainer.snapshots.append(file.read(trainer.snapshots.bytes))


def difference(key: str, was, now) -> str:
    """Return the first key in which two parts of a configuration differ, with both values."""
    if not isinstance(was, dict) or not isinstance(now, dict):
        return f"{key}: {was!r}, now {now!r}"
    first = next(name for name in {**was, **now} if was.get(name) != now.get(name))
    return f"{key}.{first}: {was.get(first)!r}, now {now.get(first)!r}"


def find(mpi, folder: Path, timeout: float) -> Resumed | None:
    """Return what this rank goes on from: the newest checkpoint of which every rank finds its file. None, on all ranks,
    where there is but a part of a first one: the job was killed while that was written, and the run begins anew.

    Raises SetupError, on all ranks.
    """
    with within(timeout, "looking for checkpoints"):
        there = mpi.allgather(samples_of(folder, mpi.rank))
    common, has_one = set.intersection(*there), len(set.union(*there)) == 1
    with launch.collective_setup(mpi, timeout):
        if not there[0] and not has_one:
            raise RunFileError(f"{folder}: there is no checkpoint of rank 0")
        ranks = mpi.size
        if mpi.rank == 0 and there[0]:  # others may not see its files
            ranks = read(folder / name_of(max(common or there[0])) / file_of(0))[1]["ranks"]
    with within(timeout, "telling all ranks how many there were"):
        ranks = mpi.bcast(ranks)
    is_same = ranks == mpi.size
    with launch.collective_setup(mpi, timeout):
        complete = common if is_same else set.intersection(*(samples_of(folder, rank) for rank in range(ranks)))
        if not complete and not has_one:
            whose = "of which every rank finds its file" if is_same else f"with the files of all {ranks} ranks"
            raise RunFileError(f"{folder}: there is no checkpoint {whose}")
    if not complete:
        if mpi.rank == 0:
            print(f"{folder}: the first checkpoint is not complete: the run begins anew", file=sys.stderr, flush=True)
        return None
    with launch.collective_setup(mpi, timeout):
        samples = max(complete)
        state, attributes = read(folder / name_of(samples) / file_of(mpi.rank if is_same else 0))
        model = None if is_same or mpi.rank else average(folder / name_of(samples), ranks)
        return Resumed(folder, samples, ranks, state, model, attributes["config"])


def average(folder: Path, ranks: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the average of all ranks' parameters, by their weights, and of their buffers."""
    states = [read(folder / file_of(rank))[0] for rank in range(ranks)]
    weights = torch.tensor([state["weight"] for state in states], dtype=torch.float64)
    models = {
        name: [torch.from_numpy(state["result"].get(name, state["model"][name])) for state in states]
        for name in ("parameters", "buffers")
    }
    shares = weights / weights.sum()
    parameters = sum(share * model for share, model in zip(shares, models["parameters"], strict=True))
    buffers = sum(models["buffers"]) / ranks
    kinds = (states[0]["model"][name].dtype for name in models)
    return tuple(tensor.numpy().astype(kind) for tensor, kind in zip((parameters, buffers), kinds, strict=True))
