"""Binding of the ranks of a job to cores, by srun or by the ranks themselves if their launcher does not bind them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from grsgd.machine.binding import BIND, NO_ALLOCATION, OFF, SPARE, Sharing, bind, describe, sharing
from grsgd.machine.cores import allowed_cores
from grsgd.machine.gpus import address, numa_node

if TYPE_CHECKING:
    import torch

MAX_NAMED = 4
"""Largest number of ranks whose cores are printed at the start of a run."""


def srun_options(trains: bool, way: str | None = None) -> list[str]:
    """Return the command-line options by which srun binds ranks to cores.

    ``trains`` is True if the ranks run ``grsgd train``, and False if they run a script. On hosts with GPUs, the ranks
    of ``grsgd train`` bind themselves near their GPUs, and scripts get the site's default binding. If SLURM_CPU_BIND is
    set, or if ``way`` is "off", all jobs get the site's default binding. ``way`` is the value of GRSGD_BIND, by default
    the value in the present environment.
    """
    environment = os.environ
    if "SLURM_CPU_BIND" in environment or (way or environment.get(BIND)) == OFF or not slurm_binds():
        return []
    if environment.get("SLURM_GPUS_ON_NODE") or environment.get("SLURM_JOB_GPUS"):
        return ["--cpu-bind=none"] if trains else []
    return ["--cpu-bind=cores"]


def slurm_binds() -> bool:
    """Return whether Slurm has the plug-in that binds tasks to cores. Without Slurm's affinity plug-in srun prints an
    error for ``--cpu-bind``, but starts the job."""
    try:
        config = subprocess.run(["scontrol", "show", "config"], capture_output=True, text=True, timeout=60).stdout
    except (OSError, subprocess.SubprocessError):
        return False
    return re.search(r"^TaskPlugin\s*=.*affinity", config, re.MULTILINE) is not None


def bind_ranks(mpi, ranks: int, device: torch.device) -> list[str]:
    """Bind each of the first ``ranks`` processes of ``mpi`` to its share of its host's cores, unless binding is off.
    Return a text for each process with its cores and the reason for this choice. All processes must call this function.

    The cores are near ``device`` if ``device`` is a GPU. Processes whose number in ``mpi`` is ``ranks`` or higher are
    spares, which only wait.
    """
    from mpi4py import MPI

    host = mpi.Split_type(MPI.COMM_TYPE_SHARED)
    mine = (mpi.rank, allowed_cores(), node_of(device))
    numbers, allowed, nodes = zip(*[each for each in host.allgather(mine) if each[0] < ranks] or [mine], strict=True)
    host.Free()
    is_spare = mpi.rank >= ranks
    share = Sharing(mine[1], SPARE) if is_spare else bind(sharing(numbers.index(mpi.rank), allowed, nodes))
    return mpi.allgather(describe(share))


def node_of(device: torch.device) -> int:
    """Return the NUMA node of ``device``; -1 for a CPU, or if the system does not tell the node of a GPU."""
    if device.type != "cuda":
        return -1
    import torch

    return numa_node(address(torch.cuda.get_device_properties(device), device.index or 0))


def tell(bindings: Sequence[str], threads: int):
    """Print the ranks' cores and the number of computing ``threads`` per rank on stderr. Print nothing if the job is
    outside of an allocation of Slurm and no rank is bound."""
    if all(NO_ALLOCATION in text for text in bindings):
        return
    reasons = {text.partition(", ")[2] for text in bindings}
    alike = len(reasons) == 1
    named = [f"rank {rank}: {text.partition(', ')[0] if alike else text}" for rank, text in enumerate(bindings)]
    more = f"; and {len(named) - MAX_NAMED} more ranks" if len(named) > MAX_NAMED else ""
    how = f"{reasons.pop()}; " if alike else ""
    print(
        f"cores: {'; '.join(named[:MAX_NAMED])}{more}; {how}computing threads per rank: {threads}",
        file=sys.stderr,
        flush=True,
    )
