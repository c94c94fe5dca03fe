"""Checkpoints that are stored in the memory of hosts, and survive the loss of a host. The state of each rank is stored
on the rank's own host and on the next host.

A thread writes the rank's state to a file in the folder in memory (`grsgd.training.memory_folder`). When the file is
written, a schedule (generator) in the background sends the file, in pieces of `PIECE` bytes, to a rank on the next
host. Training steps do not wait until the file is written or sent. A checkpoint that is due while a rank still writes
or sends the last checkpoint is not taken.
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
"""Number of bytes in a message with a piece of a rank's state. Each rank has at most one message with a piece of a
state under way. So a message of the algorithm waits until at most `PIECE` bytes of a state are sent."""


class NoMemory:
    """Substitute for `MemoryCheckpoints` in a run without checkpoints in the memory of hosts."""

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
        yield  # the unreachable yield makes this method a generator

    def over(self):
        yield from ()

    def warnings(self) -> list[str]:
        return []


class MemoryCheckpoints:
    """Checkpoints of one rank in the memory of hosts.

    Parameters
    ----------
    writer
        Writer of this rank's checkpoint files.
    folder
        Folder in the memory of this host: see `grsgd.training.memory_folder`.
    every
        Number of steps between two checkpoints in memory.
    comm, driver
        Communicator for the states of ranks, and the driver that runs the schedules. No other messages on the
        communicator have the tags of states.
    neighbours
        Ranks to which this rank sends its state, and from which it receives states.
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
        """Number of this rank's step at which a checkpoint in memory was last due."""
        self.samples = 0
        """Number of samples that all ranks had processed when the last checkpoint in memory was begun."""
        self.problem = ""
        """Reason why this rank could not store a state of the last checkpoint in memory; empty if it has stored its own
        state and its neighbours' states."""
        self._exchanges: list = []
        self._begun = ""
        """Name of the last checkpoint in memory that was begun; empty after `conclude`."""
        self._has_whole = False
        """Whether the job has taken a whole checkpoint in memory since its last start."""
        self._touched = 0.0

    def attach(self, trainer: Trainer):
        """Check that checkpoints of ``trainer`` can fit into the folder in memory. Raises ConfigError if the folder in
        memory is certainly too small.

        The bytes of states from the job's last start count as free, because new checkpoints replace these states.
        """
        replica = trainer.replica
        least = replica.params.array.nbytes + replica.buffers.array.nbytes
        needed = memory_folder.COPIES * self.neighbours.states * least
        free = memory_folder.size(self.folder) + memory_folder.room(self.folder)
        if needed > free:
            raise ConfigError(f"--memory: {self.folder}: {memory_folder.too_small(needed, free)}")

    def watch(self):
        """Touch the folder in memory from time to time, to show other jobs that this job lives."""
        if self.neighbours.leads and time.monotonic() - self._touched > memory_folder.TOUCH_SECONDS:
            self._touched = time.monotonic()
            memory_folder.touch(self.folder)

    def is_due(self, step: int) -> bool:
        """Return whether a checkpoint in memory is due before step number ``step``, if all ranks take the same
        steps."""
        return step % self.every == 0 and step > self.step

    @property
    def is_under_way(self) -> bool:
        """Whether this rank is still writing, sending or receiving the state of a rank."""
        return self.writer.is_writing or not all([exchange.Test() for exchange in self._exchanges])

    @property
    def lacks_part(self) -> bool:
        """Whether this rank could not store its own state, or a neighbour's state, in the last checkpoint in memory."""
        return bool(self._begun and self.problem)

    def agree(self, in_folder: bool):
        """Agree with all ranks on the three truth values that are returned. This method is a generator (schedule) that
        all ranks run at once.

        The first returned value says whether the checkpoint that is due is written to the folder of checkpoints, and
        not to memory. The first returned value is True if ``in_folder`` is True on any rank. The second returned value
        says whether no rank still writes or sends a state. The third returned value says whether all ranks have stored
        their states of the last checkpoint in memory.
        """
        own = [in_folder, self.is_under_way, self.lacks_part]
        told = np.array(own, float)
        yield from halving_doubling_allreduce(self.comm, told, tags.CHECKPOINT)
        in_folder, under_way, failed = told.astype(bool).tolist()
        return in_folder, not under_way, not failed

    def conclude(self, is_whole: bool, following: str):
        """Remove the states in this host's memory that are no longer needed. If the last begun checkpoint is whole (has
        the states of all ranks), all older checkpoints in memory are removed. If the last begun checkpoint is not
        whole, only the last begun checkpoint is removed.

        All ranks call this method while no rank writes or sends a state. ``following`` is the name of the next
        checkpoint, whose files other ranks on this host may have begun.
        """
        self._has_whole |= bool(self._begun and is_whole)
        if self._begun and self.neighbours.leads:
            if is_whole:
                memory_folder.remove_except(self.folder, {self._begun, following})
            else:
                memory_folder.remove(self.folder / self._begun)
        self._begun = ""

    def begin(self, header: Header, curve: CurveFile):
        """Copy this rank's state, and start to write, send and receive states in the background."""
        self._begun, self.samples, self.problem = name_of(header.samples), header.samples, ""
        before = self._check_room if self.neighbours.leads else None
        writing = self.writer.begin(header, curve, before=before, folder=self.folder)
        schedules = [self._send(header, writing), *map(self._receive, self.neighbours.sources)]
        self._exchanges = [self.driver.start(schedule) for schedule in schedules]

    def over(self):
        """Wait until this rank has written, sent and received all states. This method is a generator (schedule) that
        the rank's driver (event loop) runs after the last step."""
        yield from self.writer.written()
        yield list(self._exchanges)

    def warnings(self) -> list[str]:
        """Return a warning for the run file if this rank could not store a state of the last checkpoint in memory."""
        return [f"the last checkpoint in memory is not whole: {self.problem}"] if self.problem else []

    def _check_room(self):
        """Raise OSError if the states that this host stores for a checkpoint do not fit into the folder in memory.

        If the job has taken no whole checkpoint in memory since its last start, states from before this start are
        removed when their memory is needed. If the states from before the start stayed, later checkpoints would not fit
        into the folder either.
        """
        needed, free = self.neighbours.states * self.writer.state_bytes, self._room()
        if needed > free and not self._has_whole:
            memory_folder.remove_except(self.folder, {self._begun})
            free = self._room()
        if needed > free:
            raise OSError(errno.ENOSPC, memory_folder.too_small(needed, free))

    def _room(self) -> int:
        """Return the number of bytes that the last begun checkpoint can have in the folder in memory. The result
        includes the files of this checkpoint that other ranks of this host have already written."""
        return memory_folder.size(self.folder / self._begun) + memory_folder.room(self.folder)

    def _send(self, header: Header, writing: threading.Thread):
        """Send this rank's checkpoint file to a rank on the next host, after the thread ``writing`` has written the
        file. This method is a generator (schedule) that the rank's driver (event loop) runs."""
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
        """Receive the checkpoint file of rank ``source``, and write it to the folder in this host's memory. This method
        is a generator (schedule) that the rank's driver (event loop) runs.

        All pieces of the file are received, even if a piece cannot be written to the folder. A received size of 0 means
        that rank ``source`` could not write its state.
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
        """Append the bytes ``part`` to the file ``path``. If this rank could not store a state before, remove ``path``,
        and write nothing."""
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
