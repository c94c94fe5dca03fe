"""Whether a job goes on without processes that die, and what is refused where it does not."""

from grsgd.config import Config
from grsgd.errors import ConfigError
from grsgd.job.keeping import Keeping
from grsgd.mpi_environment import fault_tolerant

WHERE_SURVIVED = (
    "under mpiexec --with-ft ulfm (Open MPI 5), with an algorithm that survives deaths, and without checkpoints"
)


def survives(config: Config, keeping: Keeping) -> bool:
    """Whether the run goes on without processes that die."""
    return fault_tolerant() and config.traits.survives_deaths and not (keeping.folder or keeping.resume)


def check_spares(config: Config, keeping: Keeping, spares: int, processes: int):
    """Raise ConfigError where spares could not take the place of a rank, or none could die as planned."""
    if config.faults.cut:
        raise ConfigError("faults.cut: in simulated time alone; by the clock links can be cut on the testbed's hosts")
    if config.faults.are_deadly and not survives(config, keeping):
        raise ConfigError(f"faults: by the clock only {WHERE_SURVIVED}")
    if config.comm.silent_seconds is not None and not survives(config, keeping):
        raise ConfigError(
            f"comm.silent_seconds = {config.comm.silent_seconds:g}: only where the run goes on without a process: "
            f"{WHERE_SURVIVED}"
        )
    if not spares:
        return
    if not 0 < spares < processes:
        raise ConfigError(f"--spares {spares}: must be from 1 to {processes - 1}, for some of {processes} train")
    if not fault_tolerant():
        raise ConfigError(f"--spares {spares}: only where MPI survives deaths: Open MPI 5's mpiexec --with-ft ulfm")
    if not config.traits.survives_deaths:
        raise ConfigError(f"--spares {spares}: with {config.algorithm.name} the run ends when a rank dies")
    if keeping.folder or keeping.resume:
        raise ConfigError(f"--spares {spares}: not with --checkpoint or --resume")
