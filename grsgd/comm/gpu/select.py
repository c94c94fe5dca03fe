"""Choice of the transport by which ranks send arrays in GPU memory. At the start of a run, the usable transports are
tested, and their speeds are measured.

With the transport ``direct``, the MPI library itself reads and writes GPU memory (module `direct`). With the transport
``staged``, messages are sent in chunks through pinned host memory (module `staged`). With the transport ``ipc``, ranks
of one host copy from each other's GPU memory, and messages between hosts are sent as by ``staged`` (module `ipc`). With
the transport ``nccl``, the library NCCL carries long messages and sums arrays (module `nccl`).

A schedule is a generator that yields each object (such as a request of a message) for which the schedule waits.
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
"""Numbers of float32 elements of the three messages by which a transport is tested. The first test message has one
element, the second has more than `SHORT_BYTES` bytes, and the third has several chunks."""
AUTOMATIC = ("direct", "ipc", "staged")
"""The transports among which the value ``auto`` of the option ``comm.transfer`` chooses. The transport ``nccl`` is not
among them, because it has never run on a GPU."""
MAX_TIMED_BYTES = 64 * 2**20
REPEATS = 20
TRIAL_SECONDS = 60.0
"""Time limit in seconds for the test that shows whether the MPI library can send GPU memory."""
ERROR = re.compile(r"\w*(Error|Exception|not found|Abort)\b")
"""Regular expression for the beginning of a line of a program's output that names an error. Such a line need not be the
last line of the output, because launchers of MPI programs print further lines."""
REMEDIES = {"MVAPICH": "try MV2_USE_CUDA=1", "Intel": "try I_MPI_OFFLOAD=1"}
"""Advice for the user, by a part of the MPI library's name: the environment variable that, according to the library's
documentation, lets it read GPU memory."""


class Choice(NamedTuple):
    """The transport that was chosen for a run, with the results of the tests.

    ``name``: name of the transport. ``backend``: a backend of the run's ranks that uses this transport. ``results``:
    for each tested transport, the seconds that a message took, or the reason why the transport cannot be used.
    ``nbytes``: number of bytes of the message whose time was measured.
    """

    name: str
    backend: Backend
    results: dict[str, float | str]
    nbytes: int = 0

    def __str__(self):
        """Return one line of text for the run file: for each transport, the measured time or the reason why it cannot
        be used."""
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
    """Choose the transport by which ranks send arrays that are on ``device``. All ranks must call `select_transport` at
    once.

    Parameters
    ----------
    backend
        Backend of all ranks for arrays in host memory.
    wanted
        Name of a transport, or ``auto`` for the transport that is fastest for a message of ``nbytes`` bytes. A
        transport is chosen only if test messages between all neighbours arrive correctly.
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
    """Return the functions that make a transport from a backend, by the name of the transport. All ranks must call
    `transports` at once."""
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
    """Return the reason why the ranks cannot use the transport ``name``, or None if they can use it. All ranks must
    call `transport_error` at once, and all get the same result."""
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
        except Exception as raised:  # the transport is not used if the library raises any error
            error = f"{type(raised).__name__}: {raised}"
        error = first_error(mpi, error)
        if error is not None:
            backend.transport.abort()
    return error


def nccl_error(backend: GpuBackend) -> str | None:
    """Return the reason why NCCL cannot connect the ranks, or None if NCCL can connect them. All ranks must call
    `nccl_error` at once, and all get the same result."""
    gpu = error = None
    try:
        gpu = machine(), backend.transport.library.gpu()
    except Exception as raised:  # CuPy without NCCL may raise an error of any type
        error = f"CuPy finds no NCCL ({raised}): `pip install nvidia-nccl-cu12` or `nvidia-nccl-cu13`"
    if error is None and backend.fault_tolerant:
        error = "with --with-ft ulfm, NCCL would go on waiting for a rank that has died"
    error = first_error(backend.mpi, error)
    gpus = backend.mpi.allgather(gpu)
    for rank, gpu in enumerate(gpus):
        if error is None and gpus.index(gpu) < rank:
            error = f"ranks {gpus.index(gpu)} and {rank} share a GPU: NCCL needs a GPU per rank"
    return error


def is_first_of_host(mpi) -> bool:
    """Return True if this rank is the lowest rank on its host. All ranks must call `is_first_of_host` at once."""
    from mpi4py import MPI

    host = mpi.Split_type(MPI.COMM_TYPE_SHARED)
    first = host.rank == 0
    host.Free()
    return first


def ipc_error(backend: GpuBackend, device: torch.device) -> str | None:
    """Return the reason why this rank cannot open the GPU memory of some rank on its host, or None if it can open the
    memory of each of them. All ranks must call `ipc_error` at once."""
    memory = backend.transport.memory
    try:
        handle, _ = memory.handle(Flat.zeros(1, torch.float32, device).array)
    except Exception as error:  # the CUDA driver may raise an error of any type
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
    """Return the error text of the lowest rank that passes one in ``error``, or None if all ranks pass None. All ranks
    must call `first_error` at once."""
    errors = [f"rank {rank}: {text}" for rank, text in enumerate(mpi.allgather(error)) if text is not None]
    return errors[0] if errors else None


def self_test(comm: Communicator, device: torch.device):
    """Generator (schedule) that tests a transport: it sends messages of several sizes, broadcasts and all-reduces, and
    raises RuntimeError if received content is wrong.

    The test messages are sent while the GPU still computes their content, because a transport must wait for the GPU.
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
    """Raise RuntimeError if ``got``, the received content, differs from ``expected``. ``what`` describes the
    message."""
    if not torch.equal(got.tensor, expected):
        raise RuntimeError(f"{what} did not arrive as it was sent")


def message_seconds(backend: GpuBackend, device: torch.device, nbytes: int, timeout: float) -> float:
    """Return the median time in seconds that a message of ``nbytes`` bytes to the next rank takes, while every rank
    sends such a message. All ranks must call `message_seconds` at once."""
    comm, driver = Communicator(backend.dup()), MpiDriver(backend.rank, timeout, "inline")
    rank, n = comm.rank, comm.size
    mine, got = (Flat.zeros(max(nbytes // 4, 1), torch.float32, device) for _ in range(2))

    def exchange():
        yield comm.Irecv(got.array, (rank - 1) % n), comm.Isend(mine.array, (rank + 1) % n)

    times = []
    # the first exchange is not timed, because the library makes its buffers and connections in it
    for _ in range(REPEATS + 1):
        backend.mpi.Barrier()
        begin = time.perf_counter()
        driver.run(exchange())
        times.append(time.perf_counter() - begin)
    return statistics.median(times[1:])


# ---- test whether the MPI library can send GPU memory, in a separate job, because a failing library may end its job


def cuda_aware_mpi_error(kind: str, timeout: float = TRIAL_SECONDS) -> str | None:
    """Return the reason why the MPI library cannot send arrays of the Python module ``kind`` ("cupy"), or None if the
    library can send them.

    A separate job of two ranks on this host sends arrays in GPU memory, because an MPI library that cannot send them
    may end its whole job. If the host has no ``mpiexec``, the test is one process that sends to itself. Cray MPICH is
    not tested, because an environment variable says whether Cray MPICH can send GPU memory.
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
        return f"the MPI library has not sent GPU memory within {timeout:.3g} s, including the import of {kind}"
    if ended.returncode:
        return f"the MPI library cannot send GPU memory ({cause(ended)}){remedy(library)}"
    return None


def cause(ended: subprocess.CompletedProcess) -> str:
    """Return the last line that names an error in the error output of ``ended``, a process that has failed. If no line
    names an error, return the last line, or the exit code if the error output is empty."""
    lines = [line.strip() for line in ended.stderr.splitlines() if line.strip()]
    errors = [line for line in lines if ERROR.match(line)]
    return (errors or lines or [f"exit code {ended.returncode}"])[-1]


def remedy(library: str) -> str:
    """Return the advice in `REMEDIES` for the MPI library ``library``, or an empty text if `REMEDIES` has no advice for
    it."""
    return next((f"; {advice}" for name, advice in REMEDIES.items() if name in library), "")


def send_in_a_ring(kind: str):
    """Send arrays of the Python module ``kind`` to the next rank, and raise RuntimeError if the array from the previous
    rank does not arrive correctly. If the MPI library cannot send such arrays, it may end this process. If the job has
    only one rank, this rank sends to itself."""
    from mpi4py import MPI

    signal.alarm(int(TRIAL_SECONDS))  # end this rank after a time limit, even if its launcher was killed
    xp, world = importlib.import_module(kind), MPI.COMM_WORLD
    source, dest = (world.rank - 1) % world.size, (world.rank + 1) % world.size
    for size in (100, 2**21):
        mine, got = xp.arange(size, dtype="float32"), xp.zeros(size, "float32")
        float(mine[-1])  # wait, by float(), until the GPU has computed the array
        requests = [world.Irecv(got, source), world.Isend(mine, dest)]
        MPI.Request.Waitall(requests)
        if not bool((mine == got).all()):
            raise RuntimeError(f"{mine.nbytes} bytes did not arrive as they were sent")


if __name__ == "__main__":
    send_in_a_ring(sys.argv[1])
