"""Conditions under which a run survives the death of processes, and errors for options that need these conditions."""

from grsgd.config import Config
from grsgd.errors import ConfigError
from grsgd.mpi_environment import fault_tolerant

WHERE_SURVIVED = "under mpiexec --with-ft ulfm (Open MPI 5), with an algorithm that survives deaths"


def survives(config: Config) -> bool:
    """Return whether a run of ``config`` survives the death of processes: MPI is fault-tolerant, and the algorithm
    allows deaths."""
    return fault_tolerant() and bool(config.traits.survives_deaths)


def check_spares(config: Config, spares: int, processes: int):
    """Raise ConfigError for ``spares``, planned deaths or other faults that are impossible in this job of ``processes``
    processes."""
    if config.faults.cut:
        raise ConfigError(
            "faults.cut works in simulated time only; to cut links in real time, use the hosts of grsgd testbed"
        )
    if config.faults.are_deadly and not survives(config):
        raise ConfigError(f"faults: deaths of processes in real time need a run {WHERE_SURVIVED}")
    if config.comm.silent_seconds is not None and not survives(config):
        raise ConfigError(
            f"comm.silent_seconds = {config.comm.silent_seconds:g}: only in a run that survives deaths: "
            f"{WHERE_SURVIVED}"
        )
    if not spares:
        return
    if not 0 < spares < processes:
        raise ConfigError(
            f"--spares {spares}: must be from 1 to {processes - 1}, because one of {processes} processes must train"
        )
    if not fault_tolerant():
        raise ConfigError(f"--spares {spares}: needs an MPI that survives deaths: Open MPI 5's mpiexec --with-ft ulfm")
    if not config.traits.survives_deaths:
        raise ConfigError(f"--spares {spares}: with {config.algorithm.name} the run ends when a rank dies")
