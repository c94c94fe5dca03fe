"""Facts and findings about the GPUs of the ranks: devices, libraries, and the way in which messages in GPU memory would
be sent."""

import os
from collections.abc import Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from grsgd.doctor.findings import MAX_NAMED, Finding, by_ranks
from grsgd.doctor.places import PlaceFacts
from grsgd.machine import cray
from grsgd.machine.gpus import address, numa_node
from grsgd.text import ranks_in_words

GROUP = "GPUs"
TIMED_BYTES = 4 * 2**20
"""Size in bytes of the message in GPU memory with which the ways of sending are compared."""
TRIAL_SECONDS = 4.0
"""Seconds that each test message in GPU memory may take."""


class GpuFacts(NamedTuple):
    """Facts about the GPUs of one rank."""

    on_host: int
    """Number of GPUs of the rank's host."""
    visible: tuple[str, ...] = ()
    """Addresses on the PCI bus (or numbers) of the GPUs that torch finds."""
    names: tuple[str, ...] = ()
    numa: tuple[int, ...] = ()
    """NUMA node of each visible GPU; -1 if unknown."""
    torch_cuda: str = ""
    """Version of CUDA with which torch was built; "" without CUDA."""
    has_cupy: bool = True
    hidden: str | None = None
    """Value of the environment variable CUDA_VISIBLE_DEVICES; None if it is not set."""


def facts(proc: Path = Path("/proc"), sys: Path = Path("/sys")) -> GpuFacts:
    """Return the facts about the GPUs of this process. torch is imported only on a host with a GPU."""
    with suppress(OSError):
        count = len(os.listdir(proc / "driver/nvidia/gpus"))
        return of_torch(GpuFacts(count), sys) if count else GpuFacts(0)
    return GpuFacts(0)


def of_torch(found: GpuFacts, sys: Path) -> GpuFacts:
    """Return ``found`` with the facts about the GPUs that torch finds filled in."""
    import torch

    devices = range(torch.cuda.device_count() if torch.cuda.is_available() else 0)
    properties = [torch.cuda.get_device_properties(device) for device in devices]
    addresses = tuple(address(one, number) for number, one in enumerate(properties))
    return found._replace(
        visible=addresses,
        names=tuple(one.name for one in properties),
        numa=tuple(numa_node(one, sys) for one in addresses),
        torch_cuda=torch.version.cuda or "",
        has_cupy=find_spec("cupy") is not None,
        hidden=os.environ.get("CUDA_VISIBLE_DEVICES"),
    )


def gtl(library: str) -> Finding | None:
    """If the MPI library ``library`` would abort the job because its GPU library (GTL) is missing, return a finding
    that says so. Return None if the library would not abort the job."""
    return Finding(GROUP, "GTL", cray.FAULT, cray.REMEDY) if cray.abort_reason(library) else None


def chosen(ranks: Sequence[GpuFacts], places: Sequence[PlaceFacts]) -> list[int | None]:
    """Return the index of each rank's GPU among the rank's visible GPUs; None without a GPU. The ranks of a host are
    assigned to the GPUs of this host in turn."""
    taken: dict[str, int] = {}
    found: list[int | None] = []
    for gpu, place in zip(ranks, places, strict=True):
        local = taken.setdefault(place.machine, 0)
        taken[place.machine] += 1
        found.append(local % len(gpu.visible) if gpu.visible else None)
    return found


def can_try(ranks: Sequence[GpuFacts]) -> bool:
    """Return whether all ranks, of at least two, have a GPU and the libraries (CuPy) to send GPU memory."""
    return len(ranks) > 1 and all(gpu.visible and gpu.has_cupy for gpu in ranks)


def transfer(mpi, local_rank: int, library_seconds: float) -> str:
    """Measure each way of sending messages in GPU memory. Return a text with the chosen way, and with the time of each
    way or the reason against this way.

    The test of the MPI library's own way of sending runs in separate processes. The test may take ``library_seconds``,
    including imports in these processes. All ranks must call this function. Raises ConfigError if arrays in GPU memory
    cannot be sent.
    """
    from grsgd.comm.backend import MpiBackend
    from grsgd.comm.gpu.select import select_transport
    from grsgd.training import device

    gpu = device.pick_device("auto", local_rank)
    device.use(gpu)
    choice = select_transport(MpiBackend(mpi), gpu, "auto", TIMED_BYTES, TRIAL_SECONDS, library_seconds)
    return f"{choice.name}, found out by a trial of each way: {choice}"


def findings(ranks: Sequence[GpuFacts], places: Sequence[PlaceFacts], transfer: str | None) -> list[Finding]:
    """Return the findings about the GPUs of all ranks. ``transfer`` is the text that the function `transfer` returns,
    or None if sending was not tested."""
    if not any(gpu.on_host for gpu in ranks):
        return [Finding(GROUP, "devices", "none")]
    mine = chosen(ranks, places)
    named = [
        f"{gpu.names[index]} {gpu.visible[index]}" if index is not None else f"none of {gpu.on_host} on the host"
        for gpu, index in zip(ranks, mine, strict=True)
    ]
    found = [Finding(GROUP, "devices", by_ranks(named), unseen(ranks) or shared(ranks, places, mine))]
    found.append(near(ranks, places, mine))
    cuda = [f"torch for CUDA {gpu.torch_cuda}" if gpu.torch_cuda else "torch without CUDA" for gpu in ranks]
    cupy = "" if all(gpu.has_cupy for gpu in ranks) else "`pip install grsgd[cuda12]`, or [cuda13]: CuPy is missing"
    found.append(Finding(GROUP, "libraries", by_ranks(cuda) + ("; CuPy is missing" if cupy else ""), cupy))
    if transfer is not None:
        found.append(Finding(GROUP, "transfer", transfer))
    return found


def unseen(ranks: Sequence[GpuFacts]) -> str:
    """Return the remedy if a rank finds no GPU; "" if all ranks find a GPU."""
    for gpu in ranks:
        if gpu.visible:
            continue
        if not gpu.on_host:
            return "start all ranks on hosts with GPUs, or set device = 'cpu'"
        if not gpu.torch_cuda:
            return "install torch with CUDA: this torch was built without"
        if gpu.hidden is not None and not gpu.hidden.strip():
            return "ask the batch system for GPUs: CUDA_VISIBLE_DEVICES is empty"
        return "update the driver, or install torch for the driver's version of CUDA (`nvidia-smi` shows it)"
    return ""


def shared(ranks: Sequence[GpuFacts], places: Sequence[PlaceFacts], mine: Sequence[int | None]) -> str:
    """Return the remedy if two ranks share a GPU; "" if no GPU is shared."""
    users: dict[tuple[str, str], list[int]] = {}
    for rank, (gpu, place, index) in enumerate(zip(ranks, places, mine, strict=True)):
        if index is not None:
            users.setdefault((place.machine, gpu.visible[index]), []).append(rank)
    for of_gpu in users.values():
        if len(of_gpu) > 1:
            return f"start one rank per GPU: {ranks_in_words(of_gpu, MAX_NAMED)} share a GPU"
    return ""


def near(ranks: Sequence[GpuFacts], places: Sequence[PlaceFacts], mine: Sequence[int | None]) -> Finding:
    """Return the finding about the NUMA nodes of the ranks' GPUs. The finding reports a fault if no core of a rank is
    on the NUMA node of the rank's GPU."""
    values, remedy = [], ""
    for gpu, place, index in zip(ranks, places, mine, strict=True):
        node = -1 if index is None else gpu.numa[index]
        values.append("unknown" if node < 0 else str(node))
        if node >= 0 and place.numa and node not in place.numa:
            remedy = f"bind the rank to the cores of NUMA node {node}, which is its GPU's: `srun --gpu-bind=closest`"
    return Finding(GROUP, "NUMA node of the GPU", by_ranks(values), remedy)
