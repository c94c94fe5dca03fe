"""Checkpoints: what every rank needs to go on, in a folder that outlives the job.

``FOLDER/samples-000000012800/rank-0003.h5`` is the state of a rank (`rank_state`), ``FOLDER/curve-rank-0003.bin`` its
snapshots so far. Each rank writes its own files, beside the training. A checkpoint is complete when every rank finds
its file.
"""

import json
import os
import re
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import h5py
import numpy as np

from grsgd.comm import tags
from grsgd.comm.allreduce import halving_doubling_allreduce
from grsgd.comm.meeting import GO_ON, Meeting
from grsgd.comm.pollables import Until
from grsgd.comm.stop_signal import Stopped
from grsgd.config import Config
from grsgd.errors import ConfigError, RunFileError
from grsgd.files import atomic_write
from grsgd.runs.hdf5 import Reader
from grsgd.training.rank_state import state_of

KEPT = 2
"""Complete checkpoints that are kept."""
CHUNK = 2**20
"""Elements of an array that are written at once: in between the training goes on."""
NAME = re.compile(r"samples-([0-9]{12,})")
MAY_CHANGE = ("train", "comm", "device", "stragglers")
"""Parts of a configuration that may be others when a run goes on."""


@dataclass(frozen=True)
class Every:
    """How often checkpoints are taken: every so many steps, or seconds."""

    steps: int | None = None
    seconds: float | None = None

    @classmethod
    def read(cls, text: str) -> "Every":
        """Read ``100`` (steps) or ``60s`` (seconds); raises ConfigError."""
        with suppress(ValueError):
            if text.endswith("s") and float(text[:-1]) > 0:
                return cls(seconds=float(text[:-1]))
            if int(text) > 0:
                return cls(steps=int(text))
        raise ConfigError(f"--every {text}: expected steps, as in 100, or seconds, as in 60s")


class Checkpoints:
    """Takes the checkpoints of one rank.

    Of an algorithm with messages under way between two steps all ranks rest first: they take in every message and end
    what goes on in the background.

    Parameters
    ----------
    folder
        Of all checkpoints of the run; all ranks share it, or each has its own.
    every
        How often.
    meeting
        By which ranks agree on when, where the clock, a signal, or a rank that runs free asks for one.
    config
        The configuration, as TOML.
    """

    def __init__(self, folder: Path, every: Every, meeting: Meeting, config: Config):
        self.folder, self.every, self.meeting, self.config = folder, every, meeting, config.toml()
        self.comm, self.in_lockstep = meeting.comm, meeting.in_lockstep
        self.rests_between_steps = config.traits.rests_between_steps
        self.last: Path | None = None
        """The last one that all ranks have written."""
        self.problem = ""
        """Why the last one could not be written."""
        self._thread: threading.Thread | None = None
        self._at = 0
        """Samples of all ranks at the last one that was begun."""
        self._step, self._time = 0, time.monotonic()
        """This rank's step, and when it was."""
        self._meets = False
        """Whether ranks in lockstep rest because one of them has asked."""
        self._kept = 0
        """Snapshots whose bytes are in the file of the curve."""

    def start(self, at: int, step: int, kept: int):
        """Go on from the checkpoint of so many samples, before this rank's step ``step``; the file of the curve has the
        first ``kept`` snapshots."""
        self._at, self._step, self._kept, self._time = at, step, kept, time.monotonic()
        for samples in samples_of(self.folder, self.comm.rank):
            if samples > at:  # not complete, or of a run that has gone another way
                self._remove(samples)

    def watch(self, step: int):
        """Look whether it is time, or somebody has asked for a checkpoint; called while this rank waits, too."""
        if self.comm.rank == 0 and self._is_time(step):
            self._step, self._time = step, time.monotonic()
            self.meeting.ask()
        self.meeting.watch(step)

    def _is_time(self, step: int) -> bool:
        """Whether rank 0 is to ask all ranks; those in lockstep count steps themselves."""
        if self.every.seconds is not None:
            return time.monotonic() - self._time >= self.every.seconds
        return not self.in_lockstep and step >= self._step + self.every.steps

    def before_step(self, trainer, step: int):
        """Schedule, before each step: take a checkpoint if it is time, or return that all ranks are to rest first.

        Raises Stopped, on all ranks, after a checkpoint that was asked for by a signal.
        """
        self.watch(step)
        meets = yield from self.meeting.before_step(step)
        is_due = self.in_lockstep and self.every.steps and step % self.every.steps == 0 and step > self._step
        if not self.rests_between_steps:
            self._meets = meets
            return bool(meets or is_due)
        if meets or is_due:
            yield from self._take(trainer, self.meeting.over() if meets else GO_ON)
        return False

    def leave_steps(self):
        """This rank steps no more before `at_rest`, where all meet. In lockstep others may still ask for a step that
        nobody takes."""
        self.meeting.is_held = not self.in_lockstep

    def at_rest(self, trainer, ended: bool):
        """Schedule, on all ranks at once, while no message is under way: take a checkpoint, unless one of them has
        reached the end of the run; returns whether it has.

        ``ended``: whether this rank has. Raises Stopped as `before_step`.
        """
        if self.in_lockstep:  # all have ended, or none has
            if ended:
                yield from self.meeting.end()
                yield from self.written()
                return True
            reason = self.meeting.over() if self._meets else GO_ON
        else:
            votes = np.array([float(ended), float(bool(self.meeting.reason))])
            yield from halving_doubling_allreduce(self.comm, votes, tags.CHECKPOINT)
            reason = self.meeting.over(votes[1])
            if votes[0]:
                yield from self.meeting.end()
                yield from self.written()
                return True
        yield from self._take(trainer, reason)
        return False

    def _take(self, trainer, reason: str):
        """Schedule, on all ranks at once: copy the state, and begin to write it; raises Stopped for a reason."""
        yield from self.written()
        samples = np.array([float(trainer.totals.samples)])
        yield from halving_doubling_allreduce(self.comm, samples, tags.CHECKPOINT)
        if int(samples[0]) > self._at:
            self._at, self._step, self._time = int(samples[0]), trainer.totals.steps, time.monotonic()
            state = state_of(trainer)
            self._thread = threading.Thread(target=self._write, args=(state, trainer.snapshots, self._at), daemon=True)
            self._thread.start()
        if reason:
            yield from self.written()
            raise Stopped(reason)

    def written(self):
        """Schedule, on all ranks at once: wait until all have written their part of the last one; remove older ones."""
        if self._thread is None:
            return
        thread, self._thread = self._thread, None
        yield Until(lambda: not thread.is_alive(), "writing a checkpoint")
        failed = np.array([float(bool(self.problem))])
        yield from halving_doubling_allreduce(self.comm, failed, tags.CHECKPOINT)
        if not failed[0]:
            self.last = self.folder / name_of(self._at)
            self._remove_old()

    def warnings(self) -> list[str]:
        return [f"the last checkpoint could not be written: {self.problem}"] if self.problem else []

    def _write(self, state: dict, snapshots, samples: int):
        try:
            rank = self.comm.rank
            self._write_curve(snapshots, state["curve"]["numbers"])
            path = self.folder / name_of(samples) / file_of(rank)
            path.parent.mkdir(parents=True, exist_ok=True)
            with atomic_write(path) as temporary:
                write(temporary, state, {"ranks": self.comm.size, "rank": rank, "config": self.config})
            self.problem = ""
        except (OSError, RuntimeError) as error:  # HDF5 raises the other one where it cannot close a file
            self.problem = f"{self.folder}: {getattr(error, 'strerror', None) or error}"

    def _write_curve(self, snapshots, numbers: list[int]):
        """Append the snapshots that are not in the file of the curve yet."""
        count = 1 + max(numbers, default=-1)
        self.folder.mkdir(parents=True, exist_ok=True)
        with open(self.folder / curve_of(self.comm.rank), "r+b" if self._kept else "wb") as file:
            for number in range(self._kept, count):
                content = snapshots.content(number)
                file.seek(number * len(content))
                file.write(content)
            file.flush()
            os.fsync(file.fileno())
        self._kept = count

    def _remove_old(self):
        """Remove this rank's files of all but the last complete checkpoints."""
        mine = sorted(samples for samples in samples_of(self.folder, self.comm.rank) if samples <= self._at)
        for samples in mine[:-KEPT]:
            self._remove(samples)

    def _remove(self, samples: int):
        folder = self.folder / name_of(samples)
        with suppress(OSError):
            (folder / file_of(self.comm.rank)).unlink()
            folder.rmdir()  # if it was the last one's


def name_of(samples: int) -> str:
    return f"samples-{samples:012d}"


def file_of(rank: int) -> str:
    return f"rank-{rank:04d}.h5"


def curve_of(rank: int) -> str:
    return f"curve-rank-{rank:04d}.bin"


def samples_of(folder: Path, rank: int) -> set[int]:
    """Return at how many samples the folder has checkpoints of the rank."""
    found = (NAME.fullmatch(path.parent.name) for path in folder.glob(f"samples-*/{file_of(rank)}"))
    return {int(match[1]) for match in found if match}


# ---- files


def write(path: Path, state: dict, attributes: dict):
    """Write a state: groups and datasets for its arrays, and one JSON text with all else."""
    values: dict = {}
    with h5py.File(path, "w") as file:
        file.attrs.update({key: value for key, value in attributes.items() if key != "config"})
        _put(file, values, state)
        for name, text in (("values", json.dumps(values)), ("config", attributes["config"])):
            file[name] = np.frombuffer(text.encode(), np.uint8)


def _put(group: h5py.Group, values: dict, tree: dict):
    for name, value in tree.items():
        if isinstance(value, dict):
            _put(group.require_group(name), values.setdefault(name, {}), value)
        elif isinstance(value, np.ndarray):
            dataset = group.create_dataset(name, value.shape, value.dtype)
            flat = value.reshape(-1)
            if value.ndim != 1:
                dataset[...] = value
                continue
            for begin in range(0, flat.size, CHUNK):
                dataset[begin : begin + CHUNK] = flat[begin : begin + CHUNK]
        else:
            values[name] = value


def read(path: Path) -> tuple[dict, dict]:
    """Return a state and its attributes; raises RunFileError."""
    try:
        with h5py.File(path, "r") as file:
            attributes, tree = Reader(file, path.stat().st_size).tree()
        values, config = (tree.pop(name).tobytes().decode() for name in ("values", "config"))
        return merged(tree, json.loads(values)), attributes | {"config": config}
    except (OSError, ValueError, KeyError, AttributeError) as error:
        raise RunFileError(f"{path}: not a checkpoint, or a damaged one: {error}") from None


def merged(arrays: dict, values: dict) -> dict:
    """Return the tree of both."""
    both = dict(values)
    for name, value in arrays.items():
        both[name] = merged(value, values.get(name, {})) if isinstance(value, dict) else value
    return both
