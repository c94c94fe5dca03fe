"""Choice of the transport of arrays in GPU memory: every transport is tried and timed at the start of a run.

``direct``: the MPI library reads and writes GPU memory itself (`direct`). ``staged``: chunks travel through pinned host
memory (`staged`). ``ipc``: ranks of one host copy from each other's memory, and messages to other ranks are staged
(`ipc`). ``nccl``: NCCL moves long messages, and sums arrays (`nccl`).

A schedule is a generator that yields each object it waits for.
"""

import importlib
import os
import re
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import NamedTuple

import torch

from grsgd.comm.backend import Backend, MpiBackend
from grsgd.comm.communicator import Communicator
from grsgd.comm.driver import MpiDriver
from grsgd.comm.gpu.backend import GpuBackend
from grsgd.comm.gpu.direct import Direct
from grsgd.comm.gpu.ipc import SHORT_BYTES, Ipc
from grsgd.comm.gpu.memory import Memory
from grsgd.comm.gpu.nccl import CupyNccl, Nccl
from grsgd.comm.gpu.staged import CHUNK_BYTES, Staged
from grsgd.errors import ConfigError
from grsgd.machine import cray
from grsgd.machine.cores import machine
from grsgd.models.flat import Flat
from grsgd.mpi_environment import DEFAULTS, find_mpiexec, module, without_launcher

SIZES = (1, SHORT_BYTES // 4 + 1, 2 * CHUNK_BYTES // 4 + 3)
"""Numbers of float32 elements of the three test messages: one element, more than `SHORT_BYTES` bytes, and several
chunks."""
AUTOMATIC = ("direct", "ipc", "staged")
"""The transports among which ``auto`` chooses. ``nccl`` is left out because it has never run on a GPU."""
MAX_TIMED_BYTES = 64 * 2**20
REPEATS = 20
TRIAL_SECONDS = 60.0
"""Seconds that a trial of the MPI library with GPU memory may take."""
ERROR = re.compile(r"\w*(Error|Exception|not found|Abort)\b")
"""Beginning of a line that names an error; launchers print further lines after it."""
REMEDIES = {"MVAPICH": "try MV2_USE_CUDA=1", "Intel": "try I_MPI_OFFLOAD=1"}
"""Part of the name of an MPI library, and the variable that lets the library read GPU memory, by its documentation."""


class Choice(NamedTuple):
    """The transport of a run.

    ``backend``: the backend of the ranks, which is copied by ``dup``. ``results``: per transport, seconds of a message
    or the reason why it cannot be used. ``nbytes``: bytes of the timed message.
    """

    name: str
    backend: Backend
    results: dict[str, float | str]
    nbytes: int = 0

    def __str__(self):
        """Return, in one line for the run file, the measured time of each transport, or why it cannot be used."""
        times = (f"{name} {x if isinstance(x, str) else f'{1e3 * x:.3g} ms'}" for name, x in self.results.items())
        return "; ".join(times) + (f" ({self.nbytes} bytes)" if self.nbytes else "")


def select_transport(
    backend: MpiBackend,
    device: torch.device,
    wanted: str,
    nbytes: int,
    timeout: float = 10.0,
    library_seconds: float = TRIAL_SECONDS,
) -> Choice:
    """Choose the transport by which ranks send arrays on ``device``. Collective.

    Parameters
    ----------
    backend
        Backend of these ranks for arrays in host memory.
    wanted
        A name of `transports`, or ``auto`` for the transport that is fastest for a message of ``nbytes`` bytes. A
        transport can only be chosen if it delivers test messages between all neighbours.
    timeout
        Seconds that each test message may take.
    library_seconds
        Seconds that `cuda_aware_mpi_error` may take.

    Raises
    ------
    ConfigError
        On all ranks, if the wanted transport cannot be used, if only some ranks have a GPU, or if ``nccl`` is wanted
        without a GPU.
    """
    mpi = backend.mpi
    kinds = mpi.allgather(device.type)
    if len(set(kinds)) > 1:
        without = [rank for rank, kind in enumerate(kinds) if kind != "cuda"]
        raise ConfigError(f"device: ranks {without} have no GPU, unlike others; allowed: cpu, or a GPU for all ranks")
    if device.type != "cuda":
        if wanted == "nccl":
            raise ConfigError("comm.transfer = 'nccl': NCCL needs GPUs, and arrays lie in host memory; allowed: auto")
        return Choice("host", backend, {})
    backends = {name: GpuBackend(mpi, make, backend.timeout) for name, make in transports(mpi, Memory()).items()}
    if mpi.size == 1:
        return Choice("none", backends["staged"], {})
    nbytes = min(nbytes, MAX_TIMED_BYTES)
    results: dict[str, float | str] = {}
    for name in AUTOMATIC if wanted == "auto" else [wanted]:
        error = transport_error(name, backends[name], device, timeout, library_seconds)
        results[name] = error or max(mpi.allgather(message_seconds(backends[name], device, nbytes, timeout)))
    usable = [name for name in results if isinstance(results[name], float)]
    if not usable:
        reasons = "; ".join(f"{name}: {error}" for name, error in results.items())
        raise ConfigError(f"comm.transfer = {wanted!r} cannot be used here: {reasons}")
    fastest = min(usable, key=results.get)
    return Choice(fastest, backends[fastest], results, nbytes)


def transports(mpi, memory) -> dict[str, Callable]:
    """Return, by name, functions that make a transport from a backend. Collective."""
    from mpi4py import MPI

    host = mpi.Split_type(MPI.COMM_TYPE_SHARED)
    found = {
        "direct": partial(Direct, memory=memory),
        "ipc": partial(Ipc, memory=memory, host=host.Get_group()),
        "staged": partial(Staged, memory=memory),
        "nccl": partial(Nccl, memory=memory, library=CupyNccl()),
    }
    host.Free()
    return found


def transport_error(
    name: str, backend: GpuBackend, device: torch.device, timeout: float, library_seconds: float = TRIAL_SECONDS
) -> str | None:
    """Return the reason why the ranks cannot use a transport, the same on all ranks; None if they can. Collective."""
    mpi, error = backend.mpi, None
    if name == "direct":
        error = first_error(mpi, cuda_aware_mpi_error("cupy", library_seconds) if is_first_of_host(mpi) else None)
    elif name == "ipc":
        error = None if any(mpi.allgather(len(backend.transport.same_host_ranks) > 1)) else "no two ranks share a host"
        error = error or first_error(mpi, ipc_error(backend, device))
    elif name == "nccl":
        error = nccl_error(backend)
    if error is None:
        try:
            MpiDriver(mpi.rank, timeout, "inline").run(self_test(Communicator(backend.dup()), device))
        except Exception as raised:  # any error of a library means that this transport is not used
            error = f"{type(raised).__name__}: {raised}"
        error = first_error(mpi, error)
        if error is not None:
            backend.transport.abort()
    return error


def nccl_error(backend: GpuBackend) -> str | None:
    """Return the reason why NCCL cannot connect the ranks, the same on all ranks; None if it can. Collective."""
    gpu = error = None
    try:
        gpu = machine(), backend.transport.library.gpu()
    except Exception as raised:  # CuPy may lack NCCL in several ways
        error = f"CuPy finds no NCCL ({raised}): `pip install nvidia-nccl-cu12`, or -cu13"
    if error is None and backend.fault_tolerant:
        error = "with --with-ft ulfm, NCCL would go on waiting for a rank that has died"
    error = first_error(backend.mpi, error)
    gpus = backend.mpi.allgather(gpu)
    for rank, gpu in enumerate(gpus):
        if error is None and gpus.index(gpu) < rank:
            error = f"ranks {gpus.index(gpu)} and {rank} share a GPU: NCCL needs a GPU per rank"
    return error


def is_first_of_host(mpi) -> bool:
    """Return whether this rank is the lowest of its host. Collective."""
    from mpi4py import MPI

    host = mpi.Split_type(MPI.COMM_TYPE_SHARED)
    first = host.rank == 0
    host.Free()
    return first


def ipc_error(backend: GpuBackend, device: torch.device) -> str | None:
    """Return the reason why this rank cannot open the memory of another rank of its host; None if it can.
    Collective."""
    memory = backend.transport.memory
    try:
        handle, _ = memory.handle(Flat.zeros(1, torch.float32, device).array)
    except Exception as error:  # the driver may raise any error
        handle = str(error)
    handles = backend.mpi.allgather(handle)
    for rank in backend.transport.same_host_ranks:
        if isinstance(handles[rank], str):
            return f"rank {rank} cannot share its memory: {handles[rank]}"
        try:
            memory.open(handles[rank])
        except Exception as error:
            return f"the memory of rank {rank} cannot be opened: {error}"
    return None


def first_error(mpi, error: str | None) -> str | None:
    """Return the error of the lowest rank that has one; None if no rank has an error. Collective."""
    errors = [f"rank {rank}: {text}" for rank, text in enumerate(mpi.allgather(error)) if text is not None]
    return errors[0] if errors else None


def self_test(comm: Communicator, device: torch.device):
    """Schedule that sends messages of several sizes in every way, and raises RuntimeError if one does not arrive as it
    was sent.

    The messages are sent while the GPU still computes them.
    """
    rank, n = comm.rank, comm.size
    for size in SIZES:
        positions = torch.arange(size, dtype=torch.float32, device=device) % 1024
        mine, got = (Flat.zeros(size, torch.float32, device) for _ in range(2))
        for sender, receiver in (((rank - 1) % n, (rank + 1) % n), ((rank + 1) % n, (rank - 1) % n)):
            mine.tensor.copy_(positions + rank)
            got.tensor.zero_()
            yield comm.Irecv(got.array, sender), comm.Issend(mine.array, receiver)
            check(got, positions + sender, f"{4 * size} bytes from rank {sender}")
        got.tensor.copy_(mine.tensor)
        yield comm.Ibcast(got.array, 0)
        check(got, positions, f"a broadcast of {4 * size} bytes")
        yield comm.Iallreduce(mine.array)
        check(mine, n * positions + n * (n - 1) / 2, f"a sum of {4 * size} bytes")


def check(got: Flat, expected: torch.Tensor, what: str):
    """Raise RuntimeError if a message has not arrived as it was sent."""
    if not torch.equal(got.tensor, expected):
        raise RuntimeError(f"{what} did not arrive as it was sent")


def message_seconds(backend: GpuBackend, device: torch.device, nbytes: int, timeout: float) -> float:
    """Return the median of the seconds that a message of ``nbytes`` bytes to the next rank takes while every rank sends
    such a message. Collective."""
    comm, driver = Communicator(backend.dup()), MpiDriver(backend.rank, timeout, "inline")
    rank, n = comm.rank, comm.size
    mine, got = (Flat.zeros(max(nbytes // 4, 1), torch.float32, device) for _ in range(2))

    def exchange():
        yield comm.Irecv(got.array, (rank - 1) % n), comm.Isend(mine.array, (rank + 1) % n)

    times = []
    for _ in range(REPEATS + 1):  # the first exchange makes buffers and connections
        backend.mpi.Barrier()
        begin = time.perf_counter()
        driver.run(exchange())
        times.append(time.perf_counter() - begin)
    return statistics.median(times[1:])


# ---- test of the MPI library with GPU memory: a library that cannot read GPU memory ends the job


def cuda_aware_mpi_error(kind: str, timeout: float = TRIAL_SECONDS) -> str | None:
    """Return the reason why the MPI library cannot send arrays of the module ``kind``; None if it can.

    A job of two ranks on this host tries to send such arrays, because a library without this ability may end the job.
    Without an ``mpiexec``, one process sends to itself. Cray MPICH is not tried: its environment variable tells.
    """
    from mpi4py import MPI

    library = MPI.Get_library_version().split("\n")[0].strip(" \0")
    if cray.is_cray(library):
        return cray.without_gpu_memory(library)
    command, environment = [*module("grsgd.comm.gpu.select"), kind], DEFAULTS | without_launcher(os.environ)
    with suppress(ConfigError):
        command = [find_mpiexec(), "-n", "2", *command]
    try:
        ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=timeout)
    except subprocess.TimeoutExpired:
        return f"the MPI library has not sent GPU memory within {timeout:.3g} s, in which {kind} was imported"
    if ended.returncode:
        return f"the MPI library cannot send GPU memory ({cause(ended)}){remedy(library)}"
    return None


def cause(ended: subprocess.CompletedProcess) -> str:
    """Return the last line of a trial that names an error of Python, or else its last line, or its exit code."""
    lines = [line.strip() for line in ended.stderr.splitlines() if line.strip()]
    errors = [line for line in lines if ERROR.match(line)]
    return (errors or lines or [f"exit code {ended.returncode}"])[-1]


def remedy(library: str) -> str:
    """Return the advice for an MPI library that sends GPU memory only if a variable asks for it."""
    return next((f"; {advice}" for name, advice in REMEDIES.items() if name in library), "")


def send_in_a_ring(kind: str):
    """Raise RuntimeError, or end this process at once, if arrays of the module ``kind`` do not arrive from the previous
    rank. The only rank of a job sends to itself."""
    from mpi4py import MPI

    signal.alarm(int(TRIAL_SECONDS))  # a rank must end, even if its launcher was killed
    xp, world = importlib.import_module(kind), MPI.COMM_WORLD
    source, dest = (world.rank - 1) % world.size, (world.rank + 1) % world.size
    for size in (100, 2**21):
        mine, got = xp.arange(size, dtype="float32"), xp.zeros(size, "float32")
        float(mine[-1])  # float() waits until the array has been computed
        requests = [world.Irecv(got, source), world.Isend(mine, dest)]
        MPI.Request.Waitall(requests)
        if not bool((mine == got).all()):
            raise RuntimeError(f"{mine.nbytes} bytes did not arrive as they were sent")


if __name__ == "__main__":
    send_in_a_ring(sys.argv[1])
