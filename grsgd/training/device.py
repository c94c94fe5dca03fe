"""Device on which a rank trains, and one pool of its memory for torch and CuPy."""

import os
import platform
import re
from contextlib import suppress
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import torch

from grsgd.comm.driver import available_cores
from grsgd.errors import ConfigError


def pick_device(name: str, local_rank: int = 0) -> torch.device:
    """Return the device that a rank uses with ``device = name``. ``local_rank`` is the number of the rank among the
    ranks on its host.

    ``auto`` means a GPU if torch and CuPy find a GPU, else the CPU. The ranks of a host get the host's GPUs in turn; if
    there are more ranks than GPUs, several ranks share a GPU. Raises ConfigError if ``name`` asks for a GPU and no GPU
    is found.
    """
    missing = None
    if not torch.cuda.is_available():
        missing = "torch finds no GPU here"
    elif find_spec("cupy") is None:
        missing = "CuPy is not installed (extras cuda12, cuda13)"
    if name == "cuda" and missing:
        raise ConfigError(f"device = 'cuda': {missing}; allowed: auto, cpu")
    if name == "cpu" or missing:
        return torch.device("cpu")
    return torch.device("cuda", local_rank % torch.cuda.device_count())


def use_threads():
    """Set torch's number of threads to OMP_NUM_THREADS. If this variable is not set, set the number to 1, because ranks
    share cores."""
    torch.set_num_threads(torch.get_num_threads() if os.environ.get("OMP_NUM_THREADS") else 1)


def use(device: torch.device):
    """Make torch and CuPy use ``device`` in this thread, with torch's pool of memory for both.

    With two pools, memory that one library has freed could not be used by the other library.
    """
    if device.type == "cuda":
        import cupy

        torch.cuda.set_device(device)
        cupy.cuda.Device(device.index).use()
        cupy.cuda.set_allocator(_pool_of_torch().malloc)


def allow_tf32(device: torch.device, wanted: bool):
    """Let ``device`` round the inputs of float32 matrix products to TF32 if ``wanted``; does nothing on a CPU."""
    if wanted and device.type == "cuda":
        torch.backends.cuda.matmul.allow_tf32 = True


def name(device: torch.device) -> str:
    """Return the name of the device, such as "NVIDIA H200 0", with its number on this host."""
    return f"{torch.cuda.get_device_name(device)} {device.index}" if device.type == "cuda" else "none"


def processor() -> str:
    """Return the processor of this host, the cores on which this process may run, and torch's threads.

    An example is "AMD EPYC 9654, 4 of 96 cores, 1 thread".
    """
    model = platform.processor() or platform.machine()
    with suppress(OSError):
        found = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
        model = found[1].strip() if found else model
    threads = torch.get_num_threads()
    return f"{model}, {available_cores()} of {os.cpu_count()} cores, {threads} thread{'s' * (threads > 1)}"


@cache
def _pool_of_torch():
    import cupy

    def allocate(nbytes: int, device: int) -> int:
        return torch.cuda.caching_allocator_alloc(nbytes, device, torch.cuda.current_stream(device))

    def free(address: int, device: int):
        torch.cuda.caching_allocator_delete(address)

    return cupy.cuda.PythonFunctionAllocator(allocate, free)
