"""Choice of the device (CPU or GPU) on which a rank trains, and set-up of a memory pool that torch and CuPy share."""

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
    """Return the device that a rank uses if the configuration has ``device = name``. ``local_rank`` is the number of
    the rank among the ranks on its host.

    The name "auto" means a GPU if torch finds a GPU and CuPy is installed, else the CPU. The GPU that the rank uses has
    the number ``local_rank`` modulo the host's number of GPUs. If there are more ranks than GPUs, several ranks share a
    GPU. Raises ConfigError if ``name`` is "cuda" and no GPU can be used.
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
    """Set torch's number of threads to 1, because the ranks of a host share the host's cores. If the environment
    variable OMP_NUM_THREADS is set, keep the number of threads that torch has read from it."""
    torch.set_num_threads(torch.get_num_threads() if os.environ.get("OMP_NUM_THREADS") else 1)


def use(device: torch.device):
    """Make torch and CuPy use ``device`` in this thread, and let CuPy allocate memory from torch's memory pool.

    With two memory pools, memory that torch has freed could not be used by CuPy, and vice versa.
    """
    if device.type == "cuda":
        import cupy

        torch.cuda.set_device(device)
        cupy.cuda.Device(device.index).use()
        cupy.cuda.set_allocator(_pool_of_torch().malloc)


def allow_tf32(device: torch.device, wanted: bool):
    """If ``wanted``, let torch round the inputs of float32 matrix products on a GPU to TF32. On a CPU, this function
    does nothing."""
    if wanted and device.type == "cuda":
        torch.backends.cuda.matmul.allow_tf32 = True


def name(device: torch.device) -> str:
    """Return the name of a GPU with its number on this host, such as "NVIDIA H200 0". Return "none" for a CPU."""
    return f"{torch.cuda.get_device_name(device)} {device.index}" if device.type == "cuda" else "none"


def processor() -> str:
    """Return a text with this host's processor, the number of cores on which this process may run, and torch's number
    of threads.

    An example of the text is "AMD EPYC 9654, 4 of 96 cores, 1 thread".
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
