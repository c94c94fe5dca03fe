"""Files of one rank's checkpoints, which a thread writes while the rank trains on."""

import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from grsgd.comm.pollables import Until
from grsgd.config import Config
from grsgd.config.sources import digests_of
from grsgd.errors import ConfigError
from grsgd.files import atomic_write
from grsgd.models.values import Copies
from grsgd.training import checkpoint_file
from grsgd.training.checkpoint_file import Header
from grsgd.training.checkpoint_folder import file_of, make_place, name_of
from grsgd.training.curve_file import CurveFile
from grsgd.training.rank_state import digests_of_frozen, state_of, state_of_optimizer
from grsgd.training.trainer import Trainer


class CheckpointWriter:
    """Writer of one rank's checkpoints to ``folder``, the folder of the run's checkpoints. ``config`` is kept in each
    file, as TOML."""

    def __init__(self, folder: Path, config: Config):
        self.folder, self.config = folder, config.toml()
        self.code = digests_of(config)
        """Digests of the files outside this package that the configuration uses."""
        self.problem = ""
        """The reason why the last checkpoint could not be written; empty if the last checkpoint was written."""
        self._copies = Copies()
        self._thread: threading.Thread | None = None

    def attach(self, trainer: Trainer):
        """Write states of ``trainer`` from now on. Raises ConfigError if the state of the trainer's optimizer cannot be
        written to a file."""
        self.trainer = trainer
        try:
            checkpoint_file.check({"optimizer": state_of_optimizer(trainer.optimizer.optimizer)})
        except (TypeError, ValueError) as error:
            name = trainer.config.optimizer.name
            raise ConfigError(
                f"--checkpoint: optimizer {name}: {error}: keep numbers, text, lists or tensors"
            ) from None
        self._frozen = digests_of_frozen(trainer.replica)
        trainer.snapshots.share()  # the thread reads snapshots while the trainer takes further snapshots

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
    ):
        """Copy the state of the trainer between two steps, and begin to write the copy in a thread.

        New snapshots are appended to ``curve``. ``members`` is the argument of `state_of`. The thread first
        calls ``before()``, if given.
        """
        try:
            self._copies.begin()
            state = state_of(self.trainer, self._frozen, self._copies.of, members)
        except Exception as error:  # training goes on after any error of a user's optimizer or model
            self._has_failed(error)
            state = None
        self._thread = threading.Thread(
            target=self._write, args=(state, self.trainer.snapshots, header, curve, before), daemon=True
        )
        self._thread.start()

    def written(self):
        """Wait until this rank's file is written; a schedule (a generator that yields each object it waits for)."""
        if self._thread is not None:
            thread = self._thread
            yield Until(lambda: not thread.is_alive(), "writing a checkpoint")
            self._thread = None

    def warnings(self) -> list[str]:
        """Return a warning for the run file if the last checkpoint could not be written."""
        return [f"the last checkpoint could not be written: {self.problem}"] if self.problem else []

    def _write(self, state: dict | None, snapshots, header: Header, curve: CurveFile, before: Callable | None):
        if state is None:
            return
        try:
            if before is not None:
                before()
            count = 1 + max(state["curve"]["numbers"], default=-1)
            curve.write(snapshots, count, header.id)
            state["code"] = self.code
            state["curve"] |= {"name": curve.name, "digests": curve.digests[:count]}
            path = self.folder / name_of(header.samples) / file_of(header.rank)
            make_place(path.parent)
            with atomic_write(path) as temporary:
                checkpoint_file.write(temporary, header, state, self.config)
            self.problem = ""
        except Exception as error:  # the disk may fail, or an optimizer's state may fit into no file
            self._has_failed(error)

    def _has_failed(self, error: Exception):
        """Record the reason why a checkpoint could not be written, and print a reason that differs from the last
        reason."""
        before = self.problem
        self.problem = f"{self.folder}: {getattr(error, 'strerror', None) or error}"
        if self.problem != before:
            rank = self.trainer.algorithm.comm.rank
            line = f"rank {rank}: a checkpoint could not be written, training goes on: {self.problem}"
            print(f"\ngrsgd: {line}", file=sys.stderr, flush=True)
