"""Checks of the options of checkpoints (``--checkpoint``, ``--every``, ``--resume``), the lock of the folder, and the
choice of the checkpoint from which a job goes on."""

import sys
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import NamedTuple

from grsgd.config import Config
from grsgd.errors import ConfigError
from grsgd.job import launch, memory_resume, restarts
from grsgd.job.host_memory import HostFolder, check_memory, held
from grsgd.job.resume import Resumed, find, listed
from grsgd.training.checkpoint_folder import LEASE_SECONDS, LOCK_SECONDS, is_same_folder, name_of, take
from grsgd.training.checkpoints import Every
from grsgd.training.memory_folder import BASE
from grsgd.training.trainer import Trainer


class Keeping(NamedTuple):
    """Options of a run's checkpoints: ``folder`` for new checkpoints, ``every`` for their interval, and ``resume``, the
    folder from which the run goes on.

    ``memory`` is the number of steps between two checkpoints in the memory of hosts; None without such checkpoints.
    ``base`` is the folder in memory, such as /dev/shm, in which the folder with this host's checkpoints is made.
    ``host`` is the `HostFolder` of this host, which `alone` sets.
    """

    folder: Path | None = None
    every: Every | None = None
    resume: Path | None = None
    memory: int | None = None
    base: Path = BASE
    host: HostFolder | None = None


NOTHING_KEPT = Keeping()


@contextmanager
def alone(mpi, config: Config, keeping: Keeping):
    """Run the block while no other job writes checkpoints to the folder of ``keeping``. Yield ``keeping`` with the
    attribute ``host`` set to the job's folder in the memory of this host. Raises SetupError on all ranks if another job
    uses the folder for checkpoints."""
    lock = None
    try:
        with launch.collective_setup(mpi, config.comm.timeout):
            check_keeping(config, keeping)
        with launch.collective_setup(mpi, config.comm.timeout):
            if keeping.folder and mpi.rank == 0:
                lock = take(keeping.folder, LEASE_SECONDS if restarts.restarts() else LOCK_SECONDS)
        with held(mpi, config, keeping.base) if keeping.memory is not None else nullcontext() as host:
            yield keeping._replace(host=host)
    finally:
        if lock is not None:
            lock.close()


def check_keeping(config: Config, keeping: Keeping):
    """Raise ConfigError if the user has asked for checkpoints, but the algorithm or the folder does not allow
    checkpoints."""
    check_memory(config, keeping.memory, keeping.folder is not None)
    if keeping.folder and config.algorithm_class.remembers is None:
        raise ConfigError(f"--checkpoint: {config.algorithm.name} does not say which attributes to keep (`remembers`)")
    if keeping.folder and config.traits.tolerates_lost_ranks:
        option = "scheme = 'tolerant'" if config.traits.tolerates_silent_ranks else "on_lost_worker = 'evict'"
        raise ConfigError(f"--checkpoint: not with algorithm.{option}")
    if keeping.folder and not is_same_folder(keeping.folder, keeping.resume) and any(keeping.folder.glob("samples-*")):
        raise ConfigError(
            f"--checkpoint {keeping.folder}: there are checkpoints of another run: --resume {keeping.folder} goes on "
            "with it; or name another folder"
        )


def find_resumed(mpi, config: Config, keeping: Keeping, ranks: int) -> tuple[Resumed | None, Config]:
    """Return the checkpoint from which this run of ``ranks`` ranks goes on (None for a new run), and the configuration
    to use.

    In the memory of this host, the states (ranks' parts) of all other checkpoints of this job are removed. Raises
    SetupError if the run must go on from a checkpoint, but cannot.
    """
    timeout, resumed = config.comm.timeout, None
    if keeping.host is not None and restarts.restarts():
        on_disk = listed(mpi, keeping.folder, timeout)[0] if keeping.resume else ()
        least = next((each.samples for each in on_disk if not each.problem), 0)
        resumed = memory_resume.find(mpi, keeping.host, keeping.folder, timeout, ranks, least)
    if resumed is None and keeping.resume:
        resumed = find(mpi, keeping.resume, timeout, ranks)
    if resumed:
        with launch.collective_setup(mpi, config.comm.timeout):
            config = resumed.configured(config, ranks)
        for line in resumed.other_code(config) if mpi.rank == 0 else ():
            print(line, file=sys.stderr, flush=True)
    if keeping.host is not None:
        keeping.host.remove_except(mpi.rank, {name_of(resumed.samples)} if resumed and resumed.memory else set())
    return resumed, config


def about(resumed: Resumed | None, config: Config, ranks: int) -> dict:
    """Return the attributes of the run file about the checkpoint from which ``ranks`` ranks go on, and about restarts
    by `grsgd run`."""
    steps = resumed.steps(config.data.batch_size, ranks) if resumed else 0
    where = "in memory" if resumed and resumed.memory else ""
    return {"resumed": resumed.samples if resumed else None} | restarts.attributes(steps, ranks, where)


def say_from_where(resumed: Resumed, ranks: int):
    """Print the path of the checkpoint from which ``ranks`` ranks go on, on stderr."""
    others = f"; {ranks} ranks start from the average of the models of {resumed.ranks}"
    print(f"{resumed}: goes on from here{others * (resumed.ranks != ranks)}", file=sys.stderr, flush=True)


def go_on_from(resumed: Resumed, trainer: Trainer):
    """Set the state of ``trainer``'s rank, whose algorithm has just started, to the state in the checkpoint
    ``resumed``."""
    curve = resumed.restore(trainer)
    trainer.recovery.go_on_from_checkpoint(resumed.folder, resumed.samples, resumed.whole, curve)
