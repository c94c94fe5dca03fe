"""Copies between the memory of a GPU and the memory of its host, made while the GPU computes."""

import ctypes
import mmap
import weakref
from collections import defaultdict
from contextlib import suppress
from functools import cache

import numpy as np
import torch

NOT_READY = 600
"""The value of CUDA's cudaErrorNotReady."""


class Memory:
    """Copies between GPU memory and pinned host memory, on their own CUDA streams, for the transports of this package.

    Arrays are CuPy, contiguous, of the current device; host memory is NumPy, uint8. Copies return a `GpuEvent`.
    Computations run on torch's current stream, which CuPy shares unless torch or CuPy is given another stream.
    """

    def __init__(self):
        import cupy

        self.runtime = cupy.cuda.runtime
        self.outward, self.inward = (cupy.cuda.Stream(non_blocking=True) for _ in range(2))
        self._pinned: dict[int, list[np.ndarray]] = defaultdict(list)
        self._opened: dict[bytes, int] = {}

    def borrow(self, nbytes: int) -> np.ndarray:
        """Return pinned memory of ``nbytes`` bytes. After `give_back` the memory is kept for the next borrower, because
        pinning takes many times as long as a copy."""
        try:
            return self._pinned[nbytes].pop()
        except IndexError:
            return self._pin(nbytes)

    def _pin(self, nbytes: int) -> np.ndarray:
        """Return new pinned memory of ``nbytes`` bytes, allocated by the system and then registered with CUDA.

        The memory has huge pages if the system offers them. MPI libraries copy from this memory to another process of
        the host a tenth faster than from memory that CUDA allocates.
        """
        pages = mmap.mmap(-1, max(nbytes, 1), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        if hasattr(mmap, "MADV_HUGEPAGE"):
            with suppress(OSError):  # the kernel may have no huge pages
                pages.madvise(mmap.MADV_HUGEPAGE)
        host = np.frombuffer(pages, np.uint8)
        self.runtime.hostRegister(host.ctypes.data, host.nbytes, 0)
        weakref.finalize(host, self.runtime.hostUnregister, host.ctypes.data).atexit = False
        return host[:nbytes]

    def give_back(self, host: np.ndarray):
        """Return the borrowed memory ``host`` to the pool of pinned memory."""
        self._pinned[host.nbytes].append(host)

    def record_event(self) -> "GpuEvent":
        """Return an event that is done when the GPU has finished all work that is in its queue at the time of this
        call."""
        return GpuEvent(torch.cuda.current_stream().cuda_stream)

    def copy_out(self, array, begin: int, host: np.ndarray, after):
        """Copy the bytes of ``array`` from byte ``begin`` on into ``host``, after the event ``after``."""
        return self._copy(host.ctypes.data, array.data.ptr + begin, host.nbytes, self.outward, after)

    def copy_in(self, array, begin: int, host: np.ndarray, after):
        """Copy ``host`` into ``array`` from byte ``begin`` on, after the event ``after``."""
        return self._copy(array.data.ptr + begin, host.ctypes.data, host.nbytes, self.inward, after)

    def handle(self, array) -> tuple[bytes, int]:
        """Return the handle by which another process opens the memory of ``array``, and the offset of ``array``
        in it."""
        base, size = ctypes.c_uint64(), ctypes.c_size_t()
        error = _driver().cuMemGetAddressRange_v2(
            ctypes.byref(base), ctypes.byref(size), ctypes.c_uint64(array.data.ptr)
        )
        if error:
            raise RuntimeError(f"the GPU's driver does not know the memory of an array (CUDA error {error})")
        handle = self.runtime.ipcGetMemHandle(base.value)
        self._opened[handle] = base.value  # for a rank that sends to itself: CUDA lets no process open its own memory
        return handle, array.data.ptr - base.value

    def copy_from_process(self, array, nbytes: int, handle: bytes, offset: int, after):
        """Copy from the memory of another process of this host into ``array``, after the event ``after``."""
        return self._copy(array.data.ptr, self.open(handle) + offset, nbytes, self.inward, after)

    def open(self, handle: bytes) -> int:
        """Return the address of the memory of another process of this host in this process; the memory stays open."""
        if handle not in self._opened:
            self._opened[handle] = self.runtime.ipcOpenMemHandle(handle, self.runtime.cudaIpcMemLazyEnablePeerAccess)
        return self._opened[handle]

    def _copy(self, target: int, source: int, nbytes: int, stream, after):
        self.runtime.streamWaitEvent(stream.ptr, after.event.ptr)
        if nbytes:
            self.runtime.memcpyAsync(target, source, nbytes, self.runtime.memcpyDefault, stream.ptr)
        return GpuEvent(stream.ptr)


class GpuEvent:
    """An event that is reached when a CUDA stream has finished all work that is in its queue when the event is made.
    ``stream``: address of the stream."""

    def __init__(self, stream: int):
        import cupy

        self.runtime = cupy.cuda.runtime
        self.event = cupy.cuda.Event(disable_timing=True)
        self.runtime.eventRecord(self.event.ptr, stream)

    @property
    def done(self) -> bool:
        """Return whether the event is reached. Raises CuPy's CUDARuntimeError if the GPU has failed meanwhile.

        After such a failure, CuPy's own events would never be done, and would raise no error.
        """
        status = self.runtime.eventQuery(self.event.ptr)
        if status not in (0, NOT_READY):
            raise self.runtime.CUDARuntimeError(status)
        return status == 0


@cache
def _driver():
    return ctypes.CDLL("libcuda.so.1")
