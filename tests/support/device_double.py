"""A double of a GPU. All messages are sent like messages of arrays in GPU memory, through copies that happen late.

A copy happens only when the copy is due. So a test detects code that writes to an array too early, or reads an array
too early. Host memory that was returned to the double is overwritten.
"""

import os
import sys
from collections import deque
from functools import partial
from types import SimpleNamespace

import numpy as np

from grsgd.algorithms import ALGORITHMS
from grsgd.comm.backend import MpiBackend
from grsgd.comm.gpu.backend import GpuBackend
from grsgd.comm.gpu.direct import Direct
from grsgd.comm.gpu.ipc import Ipc
from grsgd.comm.gpu.staged import Staged

SENDING = ("Isend", "Issend", "Irecv", "Ibcast", "Iallreduce")
"""Names of the methods of a backend that take an array."""
DELAY = 3
"""Number of times that an event is tested before the event is done."""


class Event:
    """An event that is done at its fourth test, after all earlier events of its queue. When the event is done, the
    event calls ``act``."""

    def __init__(self, queue: deque, act=lambda: None, after: "Event | None" = None):
        self.queue, self.act, self.after = queue, act, after
        self.asked, self.over = 0, False
        queue.append(self)

    @property
    def done(self) -> bool:
        self.asked += 1
        if self.asked > DELAY:
            while self.queue and not self.over and (self.queue[0].after is None or self.queue[0].after.done):
                first = self.queue.popleft()
                first.act()
                first.over = True
        return self.over


class PromptMemory:
    """Copies of a `HostMemory` that end at once, for simulated time. ``pinned`` counts the bytes that were borrowed."""

    def __init__(self):
        self.pinned = 0
        self.done = SimpleNamespace(done=True)

    def borrow(self, nbytes):
        self.pinned += nbytes
        return np.empty(nbytes, np.uint8)

    def record_event(self):
        return self.done

    def copy_out(self, array, begin, host, after):
        np.copyto(host, octets(array)[begin : begin + host.nbytes])
        return self.done

    def copy_in(self, array, begin, host, after):
        np.copyto(octets(array)[begin : begin + host.nbytes], host)
        return self.done


class Memory:
    """A double of `grsgd.comm.gpu.memory.Memory` which uses NumPy arrays."""

    def __init__(self):
        self.computing, self.outward, self.inward = deque(), deque(), deque()

    def borrow(self, nbytes):
        return np.empty(nbytes, np.uint8)

    def give_back(self, host):
        host[:] = 0xEE

    def record_event(self):
        return Event(self.computing)

    def copy_out(self, array, begin, host, after):
        return Event(self.outward, lambda: np.copyto(host, octets(array)[begin : begin + host.nbytes]), after)

    def copy_in(self, array, begin, host, after):
        return Event(self.inward, lambda: np.copyto(octets(array)[begin : begin + host.nbytes], host), after)

    def handle(self, array):
        return np.array([os.getpid(), 0, 0, 0, 0, 0, 0, 0]).tobytes(), array.ctypes.data

    def open(self, handle):
        """Do nothing, because `copy_from_process` needs no opened handle."""

    def copy_from_process(self, array, nbytes, handle, offset, after):
        process = int(np.frombuffer(handle, np.int64)[0])

        def copy():
            with open(f"/proc/{process}/mem", "rb") as memory:
                memory.seek(offset)
                octets(array)[:nbytes] = np.frombuffer(memory.read(nbytes), np.uint8)

        return Event(self.inward, copy, after)


def octets(array) -> np.ndarray:
    return array.reshape(-1).view(np.uint8)


def place_outer_state(monkeypatch, outer_memory):
    """Replace `grsgd.algorithms.outer_state.outer_memory` in the module of every algorithm that calls it."""
    for module in {sys.modules[cls.__module__] for cls in ALGORITHMS.values()}:
        if hasattr(module, "outer_memory"):
            monkeypatch.setattr(module, "outer_memory", outer_memory)


class DeviceDouble(GpuBackend):
    """A `GpuBackend` that treats all arrays like arrays in GPU memory."""

    def carrier(self, array):
        return self.transport

    def of(self, mpi):
        return DeviceDouble(mpi, self.make_transport, self.timeout)


def install(transport: str, world):
    """Make every `MpiBackend` in this process treat all arrays like arrays in GPU memory. ``transport`` names the way
    to send arrays."""
    from mpi4py import MPI

    host = world.Split_type(MPI.COMM_TYPE_SHARED).Get_group()
    memory = Memory()
    make = {
        "direct": partial(Direct, memory=memory),
        "staged": partial(Staged, memory=memory),
        "ipc": partial(Ipc, memory=memory, host=host),
    }[transport]
    plain = type("PlainMpiBackend", (MpiBackend,), {name: getattr(MpiBackend, name) for name in ("__init__", *SENDING)})

    def init(self, mpi, timeout=600.0):
        plain.__init__(self, mpi, timeout)
        self.transport = make(plain(mpi, timeout))

    MpiBackend.__init__ = init
    for verb in SENDING:
        setattr(MpiBackend, verb, lambda self, *args, verb=verb: getattr(self.transport, verb)(*args))
