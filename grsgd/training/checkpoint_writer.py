"""Files of one rank's checkpoints, which a thread writes while the rank trains on."""

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
    """Content of one rank's files: `grsgd.training.run_content.RunContent`, or the content of an own loop's files."""

    config: str
    """Text that each file keeps besides the state."""

    def attach(self, trainer):
        """Take the states of ``trainer`` from now on. Raises ConfigError if a state cannot be written to a file."""

    def copied(self, copied: Callable, members: Sequence[int] | None) -> dict:
        """Return a copy of the state between two steps; see `rank_state.state_of` for the arguments."""

    def complete(self, state: dict, curve: CurveFile, id: str):
        """Complete a copied state, in the thread that writes the files of the checkpoint ``id``."""


class CheckpointWriter:
    """Writer of one rank's checkpoints to ``folder``, the folder of the run's checkpoints."""

    def __init__(self, folder: Path, content: FileContent):
        self.folder, self.content = folder, content
        self.problem = ""
        """The reason why the last checkpoint could not be written; empty if the last checkpoint was written."""
        self._folder = folder
        """Folder to which the last checkpoint is written."""
        self._copies = Copies()
        self._thread: threading.Thread | None = None

    def attach(self, trainer):
        """Write states of ``trainer`` from now on. Raises ConfigError if a state cannot be written to a file."""
        self.trainer = trainer
        self.content.attach(trainer)

    @property
    def state_bytes(self) -> int:
        """Number of bytes of the arrays in the state that was copied last."""
        return self._copies.nbytes

    @property
    def has_begun(self) -> bool:
        """Whether a file has been begun, and `written` has not been called since."""
        return self._thread is not None

    @property
    def is_writing(self) -> bool:
        """Whether the thread writes a file now."""
        return self._thread is not None and self._thread.is_alive()

    def begin(
        self,
        header: Header,
        curve: CurveFile,
        members: Sequence[int] | None = None,
        before: Callable[[], None] | None = None,
        folder: Path | None = None,
    ) -> threading.Thread:
        """Copy the state of the trainer between two steps, and begin to write the copy in a thread, which is returned.

        New snapshots are appended to ``curve``. ``members`` is the argument of `rank_state.state_of`. The thread first
        calls ``before()``, if given. The copy is written to ``folder``, by default to the writer's own folder.
        """
        self._folder = folder or self.folder
        try:
            self._copies.begin()
            state = self.content.copied(self._copies.of, members)
        except Exception as error:  # training goes on after any error of a user's optimizer or model
            self._has_failed(error)
            state = None
        self._thread = threading.Thread(target=self._write, args=(state, header, curve, before), daemon=True)
        self._thread.start()
        return self._thread

    def written(self):
        """Wait until this rank's file is written; a schedule (a generator that yields each object it waits for)."""
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
        except Exception as error:  # the disk may fail, or an optimizer's state may fit into no file
            self._has_failed(error)

    def _has_failed(self, error: Exception):
        """Record the reason why a checkpoint could not be written, and print a reason that differs from the last
        reason."""
        before = self.problem
        self.problem = f"{self._folder}: {getattr(error, 'strerror', None) or error}"
        if self.problem != before:
            rank = self.trainer.algorithm.comm.rank
            line = f"rank {rank}: a checkpoint could not be written, training goes on: {self.problem}"
            print(f"\ngrsgd: {line}", file=sys.stderr, flush=True)
