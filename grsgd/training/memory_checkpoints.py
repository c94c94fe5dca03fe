"""Checkpoints in the memory of hosts, which survive the loss of a host: the state of each rank lies on the rank's own
host and on the next host.

The thread that writes checkpoints writes a rank's state to the folder in memory (`grsgd.training.memory_folder`). A
schedule in the background then sends the file, piece by piece, to a rank on the next host. No step waits for the file:
a checkpoint that is due while the last checkpoint is still under way on any rank is left out.
"""

import errno
import math
import os
import sys
import threading
import time
from pathlib import Path

import numpy as np

from grsgd.comm import tags
from grsgd.comm.allreduce import halving_doubling_allreduce
from grsgd.comm.communicator import Communicator
from grsgd.comm.driver import MpiDriver
from grsgd.comm.pollables import Until
from grsgd.errors import ConfigError, RunFileError
from grsgd.files import temporary_beside
from grsgd.training import memory_folder
from grsgd.training.checkpoint_file import Header, read_header
from grsgd.training.checkpoint_folder import file_of, make_place, name_of
from grsgd.training.checkpoint_writer import CheckpointWriter
from grsgd.training.curve_file import CurveFile
from grsgd.training.memory_folder import Neighbours
from grsgd.training.trainer import Trainer

PIECE = 2**20
"""Number of bytes in a message with a piece of a state. At most one such message is under way from each rank, so a
message of the algorithm waits for at most this number of bytes."""


class NoMemory:
    """Stand-in for `MemoryCheckpoints` in a run whose checkpoints are all in the folder of all ranks."""

    every = math.inf
    step = samples = 0

    def attach(self, trainer: Trainer):
        pass

    def watch(self):
        pass

    def is_due(self, step: int) -> bool:
        return False

    def agree(self, in_folder: bool):
        return True, True, True
        yield  # makes this method a schedule

    def over(self):
        yield from ()

    def warnings(self) -> list[str]:
        return []


class MemoryCheckpoints:
    """Checkpoints of one rank in the memory of hosts.

    Parameters
    ----------
    writer
        Writer of this rank's files.
    folder
        Folder in the memory of this host.
    every
        Number of steps between two checkpoints.
    comm, driver
        Communicator on which no other messages have the tags of states, and the driver of the schedules.
    neighbours
        Ranks with which this rank exchanges states.
    """

    def __init__(
        self,
        writer: CheckpointWriter,
        folder: Path,
        every: int,
        comm: Communicator,
        driver: MpiDriver,
        neighbours: Neighbours,
    ):
        self.writer, self.folder, self.every = writer, folder, every
        self.comm, self.driver, self.neighbours = comm, driver, neighbours
        self.step = 0
        """This rank's step at which a checkpoint was last due."""
        self.samples = 0
        """Number of samples of all ranks at the checkpoint that was begun last."""
        self.problem = ""
        """The reason why this rank lacks a part of the checkpoint that was begun last; empty if it lacks none."""
        self._exchanges: list = []
        self._begun = ""
        """Name of the checkpoint that was begun last; empty after `conclude`."""
        self._has_whole = False
        """Whether this attempt has taken a whole checkpoint in memory."""
        self._touched = 0.0

    def attach(self, trainer: Trainer):
        """Take checkpoints of ``trainer`` from now on. Raises ConfigError if the folder is certainly too small.

        States of the last attempt count as free, because the new checkpoints replace these states.
        """
        replica = trainer.replica
        least = replica.params.array.nbytes + replica.buffers.array.nbytes
        needed = memory_folder.COPIES * self.neighbours.states * least
        free = memory_folder.size(self.folder) + memory_folder.room(self.folder)
        if needed > free:
            raise ConfigError(f"--memory: {self.folder}: {memory_folder.too_small(needed, free)}")

    def watch(self):
        """Give a sign now and then that this job lives."""
        if self.neighbours.leads and time.monotonic() - self._touched > memory_folder.TOUCH_SECONDS:
            self._touched = time.monotonic()
            memory_folder.touch(self.folder)

    def is_due(self, step: int) -> bool:
        """Return whether ranks in lockstep take a checkpoint before step number ``step``."""
        return step % self.every == 0 and step > self.step

    @property
    def is_under_way(self) -> bool:
        """Whether a state is being written, sent or received."""
        return self.writer.is_writing or not all([exchange.Test() for exchange in self._exchanges])

    @property
    def lacks_part(self) -> bool:
        """Whether this rank lacks a part of the checkpoint that was begun last."""
        return bool(self._begun and self.problem)

    def agree(self, in_folder: bool):
        """Return (whether the checkpoint that is due is for the folder of all ranks, whether no state is under way,
        whether the checkpoint that was begun last is whole).

        This method is a schedule, run on all ranks at once. ``in_folder`` of any rank suffices.
        """
        own = [in_folder, self.is_under_way, self.lacks_part]
        told = np.array(own, float)
        yield from halving_doubling_allreduce(self.comm, told, tags.CHECKPOINT)
        in_folder, under_way, failed = told.astype(bool).tolist()
        return in_folder, not under_way, not failed

    def conclude(self, is_whole: bool, following: str):
        """Remove all states on this host that are not needed any more: all older states if the checkpoint that was
        begun last is whole, else the states of this checkpoint.

        To be called on all ranks while no state is under way. ``following`` is the name of the next checkpoint, whose
        files other ranks on this host may have begun.
        """
        self._has_whole |= bool(self._begun and is_whole)
        if self._begun and self.neighbours.leads:
            if is_whole:
                memory_folder.remove_except(self.folder, {self._begun, following})
            else:
                memory_folder.remove(self.folder / self._begun)
        self._begun = ""

    def begin(self, header: Header, curve: CurveFile):
        """Copy this rank's state, and begin to write and exchange states."""
        self._begun, self.samples, self.problem = name_of(header.samples), header.samples, ""
        before = self._check_room if self.neighbours.leads else None
        writing = self.writer.begin(header, curve, before=before, folder=self.folder)
        schedules = [self._send(header, writing), *map(self._receive, self.neighbours.sources)]
        self._exchanges = [self.driver.start(schedule) for schedule in schedules]

    def over(self):
        """Wait until no state is under way; a schedule, run after the last step."""
        yield from self.writer.written()
        yield list(self._exchanges)

    def warnings(self) -> list[str]:
        """Return a warning for the run file if this rank lacks a part of the last checkpoint in memory."""
        return [f"the last checkpoint in memory is not whole: {self.problem}"] if self.problem else []

    def _check_room(self):
        """Raise OSError if the states of this host do not fit into the folder.

        The first checkpoint of an attempt takes the room of the last attempt's states, if the room is needed: otherwise
        no later checkpoint would fit either.
        """
        needed, free = self.neighbours.states * self.writer.state_bytes, self._room()
        if needed > free and not self._has_whole:
            memory_folder.remove_except(self.folder, {self._begun})
            free = self._room()
        if needed > free:
            raise OSError(errno.ENOSPC, memory_folder.too_small(needed, free))

    def _room(self) -> int:
        """Return the number of bytes for the checkpoint that was begun last, including files that other ranks of this
        host have already written for it."""
        return memory_folder.size(self.folder / self._begun) + memory_folder.room(self.folder)

    def _send(self, header: Header, writing: threading.Thread):
        """Send this rank's file to the next host as soon as ``writing`` has written the file; a schedule."""
        yield Until(lambda: not writing.is_alive(), "writing a checkpoint")
        to, path = self.neighbours.to, self.folder / self._begun / file_of(header.rank)
        try:
            size = path.stat().st_size if read_header(path) == header else 0
        except RunFileError:
            size = 0
        if not size:
            self.problem = self.writer.problem or f"{path}: was not written"
        if to is None:
            return
        yield self.comm.Isend(np.array([size], np.int64), to, tags.STATE_SIZE)
        piece = np.empty(PIECE, np.uint8)
        with open(path if size else os.devnull, "rb", buffering=0) as file:
            for begin in range(0, size, PIECE):
                part = piece[: min(PIECE, size - begin)]
                file.readinto(part)
                yield self.comm.Issend(part, to, tags.STATE_PIECE)

    def _receive(self, source: int):
        """Receive the file of rank ``source``, and write it to this host's folder; a schedule.

        All pieces are received, even if the file cannot be written. An empty file stands for a state that rank
        ``source`` could not write.
        """
        size, piece = np.zeros(1, np.int64), np.empty(PIECE, np.uint8)
        yield self.comm.Irecv(size, source, tags.STATE_SIZE)
        path, left = self.folder / self._begun / file_of(source), int(size[0])
        with temporary_beside(path) as temporary:
            while left > 0:
                part = piece[: min(PIECE, left)]
                yield self.comm.Irecv(part, source, tags.STATE_PIECE)
                left -= part.size
                self._append(temporary, part)
            try:
                os.replace(temporary, path)
            except OSError:
                self.problem = self.problem or f"{path}: was not received"

    def _append(self, path: Path, part: np.ndarray):
        """Append bytes to a file, unless an earlier part could not be written."""
        if self.problem:
            path.unlink(missing_ok=True)
            return
        try:
            make_place(path.parent)
            with open(path, "ab", buffering=0) as file:
                if file.write(part) < part.size:
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError as error:
            self.problem = f"{self.folder}: {error.strerror or error}"
            line = f"rank {self.comm.rank}: a neighbour's state could not be kept, training goes on: {self.problem}"
            print(f"\ngrsgd: {line}", file=sys.stderr, flush=True)
