"""Lock and removal of the folder that a job has in the memory of each host, for checkpoints in memory
(``--memory``)."""

from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from grsgd.comm.watchdog import within
from grsgd.config import Config
from grsgd.errors import ConfigError
from grsgd.job import launch, places
from grsgd.job.restarts import job_id, restarts
from grsgd.job.survival import survives
from grsgd.training import memory_folder
from grsgd.training.checkpoint_folder import LEASE_SECONDS
from grsgd.training.memory_folder import LOCK_SECONDS, Neighbours


class HostFolder(NamedTuple):
    """Folder of a job in the memory of this rank's host. ``hosts`` has the name of each rank's host."""

    folder: Path
    hosts: list[str]

    def neighbours(self, rank: int) -> Neighbours:
        """Return the ranks with which ``rank`` exchanges states (a state is a rank's part of a checkpoint)."""
        return Neighbours.of(rank, self.hosts)

    def remove_except(self, rank: int, keep: set[str]):
        """Remove the states (ranks' parts of checkpoints) in memory on the host of process ``rank``, except the states
        of checkpoints whose names are in ``keep``. All processes must call this method, while no process uses the
        states to be removed."""
        if self.neighbours(rank).leads:
            memory_folder.remove_except(self.folder, keep)


def check_memory(config: Config, steps: int | None, has_folder: bool):
    """Raise ConfigError if the user has asked for checkpoints in memory every ``steps`` steps, but this job cannot take
    such checkpoints. ``has_folder`` says whether the run also takes checkpoints in a folder."""
    if steps is None:
        return
    if steps < 1:
        raise ConfigError(f"--memory {steps}: must be 1 or more steps")
    if not has_folder:
        raise ConfigError("--memory: only with --checkpoint FOLDER, because two neighbouring hosts may be lost at once")
    if not job_id():
        raise ConfigError("--memory: only in a job of `grsgd run --restarts N`, which starts the job again")
    if survives(config):
        raise ConfigError("--memory: not in a run that survives the death of processes (--with-ft ulfm, --spares)")


@contextmanager
def held(mpi, config: Config, base: Path):
    """Run the block with this job's folder in the memory of each host. On each host the rank with the lowest number
    locks the folder.

    The job's folder is removed at the end if the block ends without an error, or if the folder holds no states. Folders
    that dead jobs have left are removed at the beginning. After a restart, the job waits up to `LEASE_SECONDS` for the
    lock, because stopped ranks of the job's previous start may hold the lock. Raises SetupError on all ranks if a
    folder cannot be used.
    """
    timeout = config.comm.timeout
    with within(timeout, "telling all ranks their hosts"):
        hosts = places.hosts(mpi)
    memory = HostFolder(memory_folder.path_of(base, job_id(), hosts[mpi.rank]), hosts)
    leads, lock, has_ended = memory.neighbours(mpi.rank).leads, None, False
    try:
        with launch.collective_setup(mpi, timeout):
            if leads:
                memory_folder.remove_remains(base, job_id())
                lock = memory_folder.take(memory.folder, LEASE_SECONDS if restarts() else LOCK_SECONDS)
        yield memory
        has_ended = True
    finally:
        if leads and (has_ended or not memory_folder.headers(memory.folder)):
            memory_folder.remove(memory.folder)
        if lock is not None:
            lock.close()
