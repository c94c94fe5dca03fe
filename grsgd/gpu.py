"""This rank's GPU: which one it is, one pool of memory for torch and CuPy, and copies beside the computation."""

import ctypes
from collections import defaultdict
from functools import cache
from importlib.util import find_spec

import numpy as np
import torch

from grsgd.config import ConfigError

NOT_READY = 600
"""CUDA's cudaErrorNotReady."""


def pick_device(name: str, local_rank: int = 0) -> torch.device:
    """The device of ``device = name`` for the rank with this number among those of its host.

    ``auto`` is a GPU where torch and CuPy find one. Ranks take a host's GPUs in turn; if there are more ranks, several
    share one. Raises ConfigError if a GPU is asked for and missing.
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


def use(device: torch.device):
    """Make ``device`` the one that torch and CuPy use in this thread, and torch's pool of memory that of CuPy too.

    With a pool each, what one library has freed would be lost for the other.
    """
    if device.type == "cuda":
        import cupy

        torch.cuda.set_device(device)
        cupy.cuda.Device(device.index).use()
        cupy.cuda.set_allocator(_pool_of_torch().malloc)


def name(device: torch.device) -> str:
    """What the device is, such as "NVIDIA H200 0", with its number on this host."""
    return f"{torch.cuda.get_device_name(device)} {device.index}" if device.type == "cuda" else "none"


@cache
def _pool_of_torch():
    import cupy

    def allocate(nbytes: int, device: int) -> int:
        return torch.cuda.caching_allocator_alloc(nbytes, device, torch.cuda.current_stream(device))

    def free(address: int, device: int):
        torch.cuda.caching_allocator_delete(address)

    return cupy.cuda.PythonFunctionAllocator(allocate, free)


class Memory:
    """Copies between GPU memory and pinned host memory, on streams of their own, for `grsgd.comm.staged` and its kin.

    Arrays are CuPy, contiguous, of the current device; host memory is NumPy, uint8. Copies return a `Mark`. The
    computation is that of torch's current stream, which CuPy shares as long as neither has been given another one.
    """

    def __init__(self):
        import cupy

        self.runtime = cupy.cuda.runtime
        self.outward, self.inward = (cupy.cuda.Stream(non_blocking=True) for _ in range(2))
        self._pinned: dict[int, list[np.ndarray]] = defaultdict(list)
        self._opened: dict[bytes, int] = {}

    def borrow(self, nbytes: int) -> np.ndarray:
        """Pinned memory of that size, kept for the next borrower: pinning costs many times a copy."""
        import cupyx

        try:
            return self._pinned[nbytes].pop()
        except IndexError:
            return cupyx.empty_pinned(max(nbytes, 1), np.uint8)[:nbytes]

    def give_back(self, host: np.ndarray):
        self._pinned[host.nbytes].append(host)

    def computed(self):
        """True when all that is in the GPU's queue by now has been computed."""
        return Mark(torch.cuda.current_stream().cuda_stream)

    def copy_out(self, array, begin: int, host: np.ndarray, after):
        """Copy the bytes of ``array`` from ``begin`` on into ``host``, after the event ``after``."""
        return self._copy(host.ctypes.data, array.data.ptr + begin, host.nbytes, self.outward, after)

    def copy_in(self, array, begin: int, host: np.ndarray, after):
        """Copy ``host`` into ``array`` from byte ``begin`` on, after the event ``after``."""
        return self._copy(array.data.ptr + begin, host.ctypes.data, host.nbytes, self.inward, after)

    def handle(self, array) -> tuple[bytes, int]:
        """What another process needs to open the memory in which ``array`` lies, and where in it."""
        base, size = ctypes.c_uint64(), ctypes.c_size_t()
        error = _driver().cuMemGetAddressRange_v2(
            ctypes.byref(base), ctypes.byref(size), ctypes.c_uint64(array.data.ptr)
        )
        if error:
            raise RuntimeError(f"the GPU's driver does not know the memory of an array (CUDA error {error})")
        handle = self.runtime.ipcGetMemHandle(base.value)
        self._opened[handle] = base.value  # CUDA does not let a process open its own memory: a rank may send to itself
        return handle, array.data.ptr - base.value

    def copy_near(self, array, nbytes: int, handle: bytes, offset: int, after):
        """Copy from the memory of a process of this host into ``array``, after the event ``after``."""
        return self._copy(array.data.ptr, self.open(handle) + offset, nbytes, self.inward, after)

    def open(self, handle: bytes) -> int:
        """The address here of the memory of a process of this host, which stays open."""
        if handle not in self._opened:
            self._opened[handle] = self.runtime.ipcOpenMemHandle(handle, self.runtime.cudaIpcMemLazyEnablePeerAccess)
        return self._opened[handle]

    def _copy(self, target: int, source: int, nbytes: int, stream, after):
        self.runtime.streamWaitEvent(stream.ptr, after.event.ptr)
        if nbytes:
            self.runtime.memcpyAsync(target, source, nbytes, self.runtime.memcpyDefault, stream.ptr)
        return Mark(stream.ptr)


class Mark:
    """The end of all that is in the queue of a stream, an address, by now."""

    def __init__(self, stream: int):
        import cupy

        self.runtime = cupy.cuda.runtime
        self.event = cupy.cuda.Event(disable_timing=True)
        self.runtime.eventRecord(self.event.ptr, stream)

    @property
    def done(self) -> bool:
        """Whether it has been reached. Raises CuPy's CUDARuntimeError if the GPU has failed meanwhile: CuPy's own
        events are not done then, for ever."""
        status = self.runtime.eventQuery(self.event.ptr)
        if status not in (0, NOT_READY):
            raise self.runtime.CUDARuntimeError(status)
        return status == 0


@cache
def _driver():
    return ctypes.CDLL("libcuda.so.1")
