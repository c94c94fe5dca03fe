"""Writer of one rank's checkpoint files. A thread writes each checkpoint file while the rank continues to train."""

import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from grsgd.comm.pollables import Until
from grsgd.files import atomic_write
from grsgd.models.values import Copies
from grsgd.training import checkpoint_file
from grsgd.training.checkpoint_file import Header
from grsgd.training.checkpoint_folder import file_of, make_place, mark_if_whole, name_of
from grsgd.training.curve_file import CurveFile


class FileContent(Protocol):
    """Content of one rank's checkpoint files. `grsgd.training.run_content.RunContent` implements the interface
    `FileContent` for ``grsgd train``. `grsgd.own_loop.loop_content.LoopContent` implements `FileContent` for users' own
    training loops."""

    config: str
    """Configuration as text, which each checkpoint file stores besides the rank's state."""

    def attach(self, trainer):
        """Store the state of ``trainer`` in all checkpoint files that are written from now on. Raises ConfigError if
        the state of ``trainer`` cannot be written to a file."""

    def copied(self, copied: Callable, members: Sequence[int] | None) -> dict:
        """Return a copy of the rank's state that is made between two training steps. `rank_state.state_of` describes
        the arguments."""

    def complete(self, state: dict, curve: CurveFile, id: str):
        """Add to ``state``, the copy of a rank's state, all entries that the method `copied` leaves out, such as
        digests of snapshots. The thread that writes the file of the checkpoint ``id`` calls this method."""


class CheckpointWriter:
    """Writer of one rank's checkpoint files to ``folder``, which has all checkpoints of the run."""

    def __init__(self, folder: Path, content: FileContent):
        self.folder, self.content = folder, content
        self.problem = ""
        """Reason why this rank's file of the last checkpoint could not be written; empty if the file was written."""
        self._folder = folder
        """Folder to which this rank writes its file of the last checkpoint."""
        self._copies = Copies()
        self._thread: threading.Thread | None = None

    def attach(self, trainer):
        """Store the state of ``trainer`` in all checkpoint files that are written from now on. Raises ConfigError if
        the state of ``trainer`` cannot be written to a file."""
        self.trainer = trainer
        self.content.attach(trainer)

    @property
    def state_bytes(self) -> int:
        """Number of bytes of all arrays in the last copied state."""
        return self._copies.nbytes

    @property
    def has_begun(self) -> bool:
        """Whether `begin` has started to write a checkpoint file, and `written` has not waited for this file yet."""
        return self._thread is not None

    @property
    def is_writing(self) -> bool:
        """Whether the writing thread is still writing a checkpoint file."""
        return self._thread is not None and self._thread.is_alive()

    def begin(
        self,
        header: Header,
        curve: CurveFile,
        members: Sequence[int] | None = None,
        before: Callable[[], None] | None = None,
        folder: Path | None = None,
    ) -> threading.Thread:
        """Copy the state of the trainer between two steps, and start a thread that writes the copy. Return the started
        thread.

        The writing thread first calls ``before()``, if given, and appends new snapshots to the file ``curve``. The copy
        of the trainer's state is written to ``folder``, by default to the folder of this writer. ``members`` is passed
        to `rank_state.state_of`.
        """
        self._folder = folder or self.folder
        try:
            self._copies.begin()
            state = self.content.copied(self._copies.of, members)
        except Exception as error:  # an error in a user's optimizer or model must not stop training
            self._has_failed(error)
            state = None
        self._thread = threading.Thread(target=self._write, args=(state, header, curve, before), daemon=True)
        self._thread.start()
        return self._thread

    def written(self):
        """Wait until this rank's checkpoint file is written. This method is a generator (schedule) that the rank's
        driver (event loop) runs."""
        if self._thread is not None:
            thread = self._thread
            yield Until(lambda: not thread.is_alive(), "writing a checkpoint")
            self._thread = None

    def warnings(self) -> list[str]:
        """Return a warning for the run file if the last checkpoint could not be written."""
        return [f"the last checkpoint could not be written: {self.problem}"] if self.problem else []

    def _write(self, state: dict | None, header: Header, curve: CurveFile, before: Callable | None):
        if state is None:
            return
        try:
            if before is not None:
                before()
            self.content.complete(state, curve, header.id)
            path = self._folder / name_of(header.samples) / file_of(header.rank)
            make_place(path.parent)
            with atomic_write(path) as temporary:
                checkpoint_file.write(temporary, header, state, self.content.config)
            self.problem = ""
            if self._folder == self.folder:
                mark_if_whole(self.folder, header.samples)
        except Exception as error:  # the disk may fail, or a file cannot store the optimizer's state
            self._has_failed(error)

    def _has_failed(self, error: Exception):
        """Record the reason why a checkpoint file could not be written. Print the reason if it differs from the reason
        that was recorded before."""
        before = self.problem
        self.problem = f"{self._folder}: {getattr(error, 'strerror', None) or error}"
        if self.problem != before:
            rank = self.trainer.algorithm.comm.rank
            line = f"rank {rank}: a checkpoint could not be written, training goes on: {self.problem}"
            print(f"\ngrsgd: {line}", file=sys.stderr, flush=True)
