"""Copies between the memory of a GPU and the memory of its host, which run while the GPU computes."""

import ctypes
import mmap
import weakref
from collections import defaultdict
from contextlib import suppress
from functools import cache

import numpy as np
import torch

NOT_READY = 600
"""Value of the CUDA error code cudaErrorNotReady, which says that an event has not been reached yet."""


class Memory:
    """Object by which transports copy between GPU memory and pinned host memory, on CUDA streams that are used only for
    copies.

    Arrays in GPU memory must be contiguous CuPy arrays on the current device. Arrays in host memory must be NumPy
    arrays of uint8. Methods of `Memory` that copy return a `GpuEvent` without waiting for the end of the copy. The GPU
    runs computations in torch's current stream, which CuPy also uses unless torch or CuPy is given another stream.
    """

    def __init__(self):
        import cupy

        self.runtime = cupy.cuda.runtime
        self.outward, self.inward = (cupy.cuda.Stream(non_blocking=True) for _ in range(2))
        self._pinned: dict[int, list[np.ndarray]] = defaultdict(list)
        self._opened: dict[bytes, int] = {}

    def borrow(self, nbytes: int) -> np.ndarray:
        """Return pinned (page-locked) host memory of ``nbytes`` bytes. After the call of `give_back`, the memory is
        kept for the next call of `borrow`, because pinning memory takes many times as long as a copy."""
        try:
            return self._pinned[nbytes].pop()
        except IndexError:
            return self._pin(nbytes)

    def _pin(self, nbytes: int) -> np.ndarray:
        """Return new pinned host memory of ``nbytes`` bytes, which is allocated by the operating system and registered
        with CUDA.

        The memory has huge pages if the operating system offers huge pages. MPI libraries copy from such memory to
        another process of the host a tenth faster than from memory that CUDA allocates.
        """
        pages = mmap.mmap(-1, max(nbytes, 1), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        if hasattr(mmap, "MADV_HUGEPAGE"):
            with suppress(OSError):  # ignore the error of a kernel without huge pages
                pages.madvise(mmap.MADV_HUGEPAGE)
        host = np.frombuffer(pages, np.uint8)
        self.runtime.hostRegister(host.ctypes.data, host.nbytes, 0)
        weakref.finalize(host, self.runtime.hostUnregister, host.ctypes.data).atexit = False
        return host[:nbytes]

    def give_back(self, host: np.ndarray):
        """Return ``host``, memory that `borrow` has lent, to the pool of pinned host memory."""
        self._pinned[host.nbytes].append(host)

    def record_event(self) -> "GpuEvent":
        """Return an event that is reached when the GPU has finished all work that torch's current stream contains at
        the time of this call."""
        return GpuEvent(torch.cuda.current_stream().cuda_stream)

    def copy_out(self, array, begin: int, host: np.ndarray, after):
        """Start to copy the bytes of ``array``, from byte ``begin`` on, into ``host``, as soon as the event ``after``
        is reached. Return an event that is reached at the end of the copy."""
        return self._copy(host.ctypes.data, array.data.ptr + begin, host.nbytes, self.outward, after)

    def copy_in(self, array, begin: int, host: np.ndarray, after):
        """Start to copy ``host`` into ``array``, from byte ``begin`` of ``array`` on, as soon as the event ``after`` is
        reached. Return an event that is reached at the end of the copy."""
        return self._copy(array.data.ptr + begin, host.ctypes.data, host.nbytes, self.inward, after)

    def handle(self, array) -> tuple[bytes, int]:
        """Return the CUDA IPC handle by which another process can open the GPU memory that contains ``array``, and the
        offset in bytes of ``array`` in this memory."""
        base, size = ctypes.c_uint64(), ctypes.c_size_t()
        error = _driver().cuMemGetAddressRange_v2(
            ctypes.byref(base), ctypes.byref(size), ctypes.c_uint64(array.data.ptr)
        )
        if error:
            raise RuntimeError(f"the GPU's driver does not know the memory of an array (CUDA error {error})")
        handle = self.runtime.ipcGetMemHandle(base.value)
        # needed if a rank sends to itself, because CUDA lets no process open its own memory
        self._opened[handle] = base.value
        return handle, array.data.ptr - base.value

    def copy_from_process(self, array, nbytes: int, handle: bytes, offset: int, after):
        """Start to copy ``nbytes`` bytes of the GPU memory of another process on this host into ``array``, as soon as
        the event ``after`` is reached. Return an event that is reached at the end of the copy."""
        return self._copy(array.data.ptr, self.open(handle) + offset, nbytes, self.inward, after)

    def open(self, handle: bytes) -> int:
        """Open the GPU memory of another process on this host by its IPC handle, and return the memory's address in
        this process. The opened memory is not closed again."""
        if handle not in self._opened:
            self._opened[handle] = self.runtime.ipcOpenMemHandle(handle, self.runtime.cudaIpcMemLazyEnablePeerAccess)
        return self._opened[handle]

    def _copy(self, target: int, source: int, nbytes: int, stream, after):
        self.runtime.streamWaitEvent(stream.ptr, after.event.ptr)
        if nbytes:
            self.runtime.memcpyAsync(target, source, nbytes, self.runtime.memcpyDefault, stream.ptr)
        return GpuEvent(stream.ptr)


class GpuEvent:
    """An event that is reached when a CUDA stream has finished all work that the stream contained when the event was
    made.
    ``stream``: address of the CUDA stream whose work the event marks."""

    def __init__(self, stream: int):
        import cupy

        self.runtime = cupy.cuda.runtime
        self.event = cupy.cuda.Event(disable_timing=True)
        self.runtime.eventRecord(self.event.ptr, stream)

    @property
    def done(self) -> bool:
        """Return True if the event is reached. Raises CuPy's CUDARuntimeError if the GPU has failed.

        The property ``done`` of CuPy's own events is not used, because it stays False after a failure of the GPU and
        raises no error.
        """
        status = self.runtime.eventQuery(self.event.ptr)
        if status not in (0, NOT_READY):
            raise self.runtime.CUDARuntimeError(status)
        return status == 0


@cache
def _driver():
    return ctypes.CDLL("libcuda.so.1")
