"""The function `surviving`, with which a user's own loop goes on after the death of a process."""

import os
import warnings
from collections.abc import Iterable, Iterator

import torch

from grsgd.comm.watchdog import within
from grsgd.errors import ConfigError
from grsgd.job import launch
from grsgd.job.alike import check_alike
from grsgd.mpi_environment import fault_tolerant
from grsgd.own_loop import ranks, spares
from grsgd.own_loop.distributed_optimizer import DistributedOptimizer
from grsgd.own_loop.kept_loop import kept_loop
from grsgd.own_loop.lives import Lives
from grsgd.own_loop.script_end import SCRIPT_END
from grsgd.own_loop.survival import SurvivingLoop


def surviving(
    optimizer: DistributedOptimizer,
    items: Iterable,
    /,
    *,
    checkpoints: str | os.PathLike | None = None,
    every: int | str = "600s",
    **state,
) -> Iterator:
    """Return an iterator over ``items`` in which the training goes on when processes die. All ranks must call this.

    Each iteration has one step. Put everything that the loop needs per step into ``items``, such as ``range(steps)``,
    or ``(batch for epoch in range(9) for batch in loader)``. If a rank was behind the other ranks at a death, it leaves
    out the items of the steps that it has missed. Call ``optimizer.finish()`` after the loop.

    Parameters
    ----------
    optimizer
        The optimizer that `distribute` has returned, before its first step.
    checkpoints
        Folder for checkpoints, which all processes share. If the folder has a complete checkpoint, of any number of
        ranks, the loop goes on from the newest complete checkpoint. The signal SIGUSR2 asks for a checkpoint. After
        SIGUSR1, the loop takes a checkpoint and raises SystemExit with the code 75, on all ranks.
    every
        Interval between two checkpoints: a number of iterations, as in 100, or of seconds, as in "60s".
    state
        Objects with ``state_dict()`` and ``load_state_dict()`` that the loop changes in each iteration. Their names are
        free, as in ``scheduler=scheduler, scaler=scaler``. A process that takes a rank, or that was behind at a death,
        takes over the objects' states from another rank. A ``torch.Generator`` then gets a new seed.

    Raises
    ------
    ConfigError
        On all ranks, for an algorithm that does not go on after a death, for a second call, and for unfit arguments;
        also for checkpoints without a fault-tolerant MPI library, and for checkpoints of another training.
    """
    mpi, timeout = optimizer.transport.backend.mpi, optimizer.driver.timeout
    job = spares.of_script()
    is_late = job is not None and job.is_late
    optimizer.meet("in surviving()")
    with launch.collective_setup(mpi, timeout):
        check(optimizer, state)
        if job is not None:
            check_job(optimizer, job)
        kept = kept_loop(optimizer, checkpoints, every, state, is_late)
    asked = {"checkpoints": f"{checkpoints}", "every": f"{every}"}
    check_alike(mpi, lambda: asked, "all ranks must give surviving() the same arguments", timeout)
    if kept is not None and not is_late:
        kept.find(optimizer, mpi, timeout)
    if not fault_tolerant() or (mpi.size == 1 and kept is None):
        if mpi.rank == 0 and mpi.size > 1:
            what = "surviving(): a death ends this job: only Open MPI 5 with `mpiexec --with-ft ulfm` goes on after it"
            warnings.warn(what, RuntimeWarning, stacklevel=2)
        return iter(items)
    lives = job.lives if job is not None else lives_of(optimizer)
    ranks.survive(lives.membership)
    if is_late:
        lives.membership.take_over(mpi.rank)
    optimizer.survive(SurvivingLoop(optimizer, lives, state, is_late, kept))
    return optimizer.loop.iterate(items)


def lives_of(optimizer: DistributedOptimizer) -> Lives:
    """Return the communicators of the ranks of a script without spares. The script will then end without MPI_Finalize.
    All ranks call this function at once."""
    with within(optimizer.driver.timeout, "surviving(), to which all ranks must come"):
        lives = Lives(optimizer.transport.backend, optimizer.transport.backend.size, optimizer.driver.clock)
    ranks.guard()
    SCRIPT_END.leave_out_finalize(lives.world)
    return lives


def check(optimizer: DistributedOptimizer, state: dict):
    """Raise ConfigError if `surviving` cannot take the arguments ``optimizer`` and ``state``."""
    algorithm = optimizer.algorithm
    if not algorithm.traits.survives_deaths:
        raise ConfigError(f"surviving(): with {algorithm.traits.label} the job ends when a process dies")
    if optimizer.replica.narrow:
        raise ConfigError(
            "surviving(): with trained parameters of several dtypes, or of bfloat16 with messages of float32, the job "
            "ends when a process dies; allowed: one dtype for model and messages"
        )
    if optimizer.finished:
        raise ConfigError("surviving() after finish(): call distribute() again")
    if optimizer.loop.survives:
        raise ConfigError("surviving() twice: give one call an iterable over all epochs")
    if optimizer.loop.lifecycle.has_started:
        raise ConfigError("surviving() after a step or load_state_dict(): call it right after distribute()")
    for name, each in state.items():
        methods = [getattr(each, method, None) for method in ("state_dict", "load_state_dict")]
        if not (isinstance(each, torch.Generator) or all(map(callable, methods))):
            raise ConfigError(f"surviving(): {name} has no state_dict() and load_state_dict()")


def check_job(optimizer: DistributedOptimizer, job: spares.ScriptJob):
    """Raise ConfigError if spares could not take over ranks of this loop."""
    if optimizer.transport.backend.mpi is not job.mpi:
        raise ConfigError("surviving() with --spares: give distribute() no communicator")
    if optimizer.replica.device.type != "cpu":
        raise ConfigError("surviving() with --spares: on CPUs only")
    if job.is_used:
        raise ConfigError("surviving() with --spares: once in a script, because spares take the ranks of one loop")
    job.is_used = True
