"""Checkpoints that a loop over `grsgd.surviving` takes, and the checkpoint from which such a loop goes on."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Set
from pathlib import Path

from grsgd.comm.watchdog import within
from grsgd.errors import ConfigError
from grsgd.job import launch, restarts
from grsgd.job.resume import Resumed, find, unfit
from grsgd.mpi_environment import fault_tolerant
from grsgd.own_loop.distribute import give_all_the_same
from grsgd.own_loop.loop_content import KEY, LoopContent, check_states
from grsgd.own_loop.packed_state import unpacked
from grsgd.own_loop.resume import other_options
from grsgd.training.checkpoint_folder import LEASE_SECONDS, LOCK_SECONDS, parts, take
from grsgd.training.checkpoint_writer import CheckpointWriter
from grsgd.training.checkpoints import Every
from grsgd.training.rank_state import restore_loop, restore_optimizer, restore_outside
from grsgd.training.recovery import Recovery
from grsgd.training.survival import recovery_by_checkpoints


class KeptLoop:
    """Checkpoints of one rank's loop over `surviving`.

    Parameters
    ----------
    folder
        Folder of the checkpoints, which all processes share.
    every
        Interval between two checkpoints: iterations, or seconds.
    lock
        Locked file of the folder, on the rank that holds the lock; None on the other ranks.
    """

    def __init__(self, folder: Path, every: Every, lock=None):
        self.folder, self.every, self.lock = folder, every, lock
        self.resumed: Resumed | None = None
        """Checkpoint from which the loop goes on; None if there is none, or after this rank has loaded its state."""

    def find(self, optimizer, mpi, timeout: float):
        """Find the checkpoint from which the loop goes on. All ranks call this method at once. If the checkpoint has
        another number of ranks, all ranks get the average of its models. Raises SetupError if the loop cannot go on
        from the checkpoints."""
        try:
            self._find(optimizer, mpi, timeout)
        except BaseException:
            self.close()
            raise

    def _find(self, optimizer, mpi, timeout: float):
        with within(timeout, "looking for checkpoints"):
            has_files = mpi.bcast(bool(parts(self.folder, 0, 1)) if mpi.rank == 0 else None)
        resumed = find(mpi, self.folder, timeout, mpi.size) if has_files else None
        if resumed is None:
            return
        with launch.collective_setup(mpi, timeout):
            check(resumed, optimizer, is_main=mpi.rank == 0)
            resumed.give_model(optimizer.replica)
        if resumed.ranks != mpi.size:
            give_all_the_same(optimizer.replica, optimizer.algorithm.uncounted_comm, optimizer.driver)
        self.resumed = resumed
        if mpi.rank == 0:
            about = f"; {mpi.size} ranks start from the average of the models of {resumed.ranks}"
            print(f"{resumed}: goes on from here{about * (mpi.size != resumed.ranks)}", file=sys.stderr, flush=True)

    def recovery(self, optimizer, lives) -> Recovery:
        """Return the recovery that takes this loop's checkpoints."""
        algorithm = optimizer.algorithm
        writer, where = CheckpointWriter(self.folder, LoopContent(algorithm)), (lives.checkpoints, optimizer.driver)
        return recovery_by_checkpoints(
            type(algorithm), algorithm.options, writer, self.every, *where, lives.membership, self._go_on
        )

    def _go_on(self, loop):
        """Set the state of a rank of ``loop`` to the state in the checkpoint, and free the checkpoint's memory."""
        resumed, self.resumed = self.resumed, None
        go_on_from(resumed, loop)

    def close(self):
        """Unlock the folder, so that other jobs can take checkpoints in the folder."""
        if self.lock is not None:
            self.lock.close()


def kept_loop(optimizer, checkpoints, every, objects: dict, is_late: bool) -> KeptLoop | None:
    """Return the checkpoints for which a script has asked with arguments of `surviving`, or None if the script asked
    for none. Rank 0 locks the folder.

    Raises ConfigError for unfit arguments, and if another job takes checkpoints in the folder.
    """
    if checkpoints is None:
        return None
    if not isinstance(checkpoints, str | os.PathLike):
        raise ConfigError(f"surviving(): checkpoints = {checkpoints!r}: must be the path of a folder")
    folder, every = Path(checkpoints), Every.read(str(every), "surviving(): every =")
    if optimizer.algorithm.remembers is None:
        name = optimizer.algorithm.name
        raise ConfigError(f"surviving(): checkpoints: {name} does not say which attributes to keep (`remembers`)")
    if not fault_tolerant():
        raise ConfigError(
            "surviving(): checkpoints: only Open MPI 5 with `mpiexec --with-ft ulfm` takes them (`grsgd run -n 4 "
            "--spares 0 SCRIPT.py`)"
        )
    check_states(optimizer.optimizer, objects)
    if is_late or optimizer.algorithm.comm.rank:
        return KeptLoop(folder, every)
    return KeptLoop(folder, every, take(folder, LEASE_SECONDS if restarts.restarts() else LOCK_SECONDS))


def check(resumed: Resumed, optimizer, is_main: bool):
    """Raise ConfigError if a loop with the distributed ``optimizer`` cannot go on from the checkpoint ``resumed``. Warn
    if the checkpoint's algorithm has other options."""
    kept, algorithm = resumed.state.get(KEY), optimizer.algorithm
    if not isinstance(kept, dict):
        raise ConfigError(f"{resumed}: is a checkpoint of `grsgd train`: name another folder")
    if kept.get("algorithm") != algorithm.name:
        raise ConfigError(f"{resumed}: is of {kept.get('algorithm')}, for {algorithm.name}: name another folder")
    if kept.get("optimizer") != (name := type(optimizer.optimizer).__name__):
        raise ConfigError(f"{resumed}: has the state of {kept.get('optimizer')}, for {name}: name another folder")
    if is_main and (others := other_options(kept, algorithm)):
        warnings.warn(f"{resumed}: is of {algorithm.name} with {', '.join(others)}", RuntimeWarning, stacklevel=4)


def check_names(resumed: Resumed, kept: Set[str], given: Set[str]):
    """Raise ConfigError unless the objects ``given`` to `surviving` have the names that the checkpoint has ``kept``."""
    if kept != given:
        of_kept, of_given = (", ".join(sorted(names)) or "nothing" for names in (kept, given))
        raise ConfigError(f"{resumed}: has states of {of_kept}, surviving() was given {of_given}: use the same names")


def go_on_from(resumed: Resumed, loop):
    """Set the state of a rank of ``loop`` to the state in the checkpoint ``resumed``. The loop's algorithm has just
    started.

    If the number of ranks has changed, all ranks get the states of the optimizer and of the user's objects from rank 0,
    and go on from rank 0's iteration. The algorithm then begins anew. Raises ConfigError if the checkpoint's state does
    not fit.
    """
    state, ranks = resumed.state, loop.context.comm.size
    try:
        kept = unpacked(state[KEY]["kept"], is_safe=False)
        check_names(resumed, kept["objects"].keys() | kept["generators"].keys(), loop.objects.keys())
        if resumed.ranks == ranks:
            restore_loop(loop, state)
            resumed.scale_weight(loop.algorithm)
            loop.streams, loop.generators = state["streams"], kept["generators"]
        else:
            restore_outside(loop.replica, state["model"])
            restore_optimizer(loop.optimizer.optimizer, state["optimizer"])
            loop.progress.elapsed_before = resumed.elapsed
            loop.progress.skip(state["progress"]["batches"], 1, ranks)
            loop.seed_generators()
        loop.take_objects(kept["objects"])
    except ConfigError:
        raise
    except Exception as error:  # a checkpoint of another version or another user may have any content
        raise ConfigError(f"{resumed}: {unfit(error)}") from error
    loop.go_on(resumed.samples, kept["record"] if resumed.ranks == ranks else None)
    loop.recovery.go_on_from_checkpoint(resumed.folder, resumed.samples, resumed.whole, None)
