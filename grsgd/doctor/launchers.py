"""Facts and findings about the job's launcher: its name, the interface by which it connects ranks, and the number of
ranks found and asked for."""

import os
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from grsgd.doctor.findings import Finding, by_ranks
from grsgd.job.foreign_launchers import FOREIGN_LAUNCHERS, disagreement, remedy, unconnected

GROUP = "launcher"
INTERFACES = {
    "PMIX_NAMESPACE": "PMIx",
    "PMI_FD": "PMI",
    "PMI_PORT": "PMI",
    "PALS_APID": "PALS",
    "FLUX_TASK_RANK": "Flux",
    "JSM_NAMESPACE_RANK": "JSM",
}
"""Dictionary from an environment variable to the interface between launchers and MPI libraries, such as PMIx, that sets
this variable."""
KINDS = ("SLURM_MPI_TYPE", "SLURM_STEP_ID", "PALS_APID", "FLUX_JOB_ID", "PMIX_VERSION", "I_MPI_PMI_LIBRARY")
"""Environment variables with details about the launcher, which a finding shows if they are set."""
INNER = ("OMPI_COMM_WORLD_SIZE", "MV2_COMM_WORLD_SIZE", "MPI_LOCALNRANKS")
"""Environment variables of launchers that may be started by the launcher of a batch system. If a variable in `INNER` is
set, the launcher to which this variable belongs has started the process."""


class LauncherFacts(NamedTuple):
    """Facts about the launcher that has started one rank."""

    name: str
    """Name of the launcher that has started this rank; "none" without a launcher."""
    asked: int | None
    """Number of processes that the launcher had to start; None if no environment variable has this number."""
    interfaces: tuple[str, ...]
    details: tuple[str, ...]


def facts(environment: Mapping[str, str] = os.environ) -> LauncherFacts:
    """Return the facts about the launcher that the environment variables of this process show."""
    present = [launcher for launcher in FOREIGN_LAUNCHERS if launcher.has_started(environment)]
    inner = [launcher for launcher in present if launcher.size in INNER]
    outer = [launcher for launcher in present if launcher.starts_jobs]
    nearest = next(iter([*inner, *outer, *present]), None)
    local = ("MPI_LOCALNRANKS", "PALS_LOCAL_SIZE", "PALS_RANKID")
    whole = [launcher for launcher in present if launcher.size not in local]
    counted = nearest if nearest in whole else next(iter(whole), None)
    interfaces = [name for variable, name in INTERFACES.items() if variable in environment]
    if "PMI" in interfaces and "PMI_SIZE" not in environment:
        interfaces[interfaces.index("PMI")] = "PMI2"
    return LauncherFacts(
        nearest.name if nearest else "none",
        counted.started(environment) if counted else None,
        tuple(dict.fromkeys(interfaces)),
        tuple(f"{name}={environment[name]}" for name in KINDS if name in environment),
    )


def findings(ranks: Sequence[LauncherFacts], size: int, library: str) -> list[Finding]:
    """Return the findings about the launcher. ``ranks`` has the facts of each rank that has answered.

    ``size`` is the number of ranks that MPI connects. ``library`` is the name and version of the MPI library.
    """
    asked = ranks[0].asked
    foreign = unconnected(size, os.environ)
    value = f"{size} found, {'none' if asked is None else asked} asked for"
    if foreign is not None:
        found = Finding(GROUP, "ranks", disagreement(foreign, size), remedy(foreign, library))
    else:
        found = Finding(GROUP, "ranks", value)
    interfaces = by_ranks([", ".join(of_rank.interfaces) or "none" for of_rank in ranks])
    details = [Finding(GROUP, "details", by_ranks([", ".join(of_rank.details) for of_rank in ranks]))]
    return [
        Finding(GROUP, "launcher", by_ranks([of_rank.name for of_rank in ranks])),
        Finding(GROUP, "interface", interfaces),
        *(details if any(of_rank.details for of_rank in ranks) else []),
        found,
    ]
