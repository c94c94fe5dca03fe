"""State of an outer step in the memory of the model's device, or in host memory, with copies to and from the model.

A schedule is a generator that yields each object it waits for.
"""

from __future__ import annotations

import time
from functools import cache
from typing import Literal

import numpy as np

from grsgd.comm.pollables import Until
from grsgd.lazy import LazyModule
from grsgd.models.flat import Flat

torch = LazyModule("torch")

OuterState = Literal["device", "host"]
OUTER_STATE_MEANING = (
    "memory of the state of the outer step; host: in host memory, so that a model on a GPU leaves room for larger "
    "models or batches; by default the memory of the model's device"
)


def outer_memory(x: Flat, place: OuterState | None) -> OuterMemory:
    """Return the memory ``place`` for the outer state of the model ``x``; a model in host memory has no other place."""
    if place == "host" and x.tensor.is_cuda:
        return HostMemory(copier())
    return OuterMemory()


@cache
def copier():
    """Return the copies between GPU memory and pinned host memory of this process."""
    from grsgd.comm.gpu.memory import Memory

    return Memory()


class OuterMemory:
    """Memory of the model's own device, from which copies need no waiting."""

    def like(self, x: Flat) -> Flat:
        """Return zeros of the length and dtype of ``x``, in this memory."""
        return x.like()

    def wide(self, x: Flat) -> Flat:
        """Return zeros of the length of ``x`` in this memory, of float32 if ``x`` is of bfloat16 (`Flat.wide`)."""
        return x.wide()

    def begin_copy(self, x: Flat, into: Flat, part: slice):
        """Copy ``part`` of the model ``x`` into the same part of ``into``; return a pollable that is true at the end of
        the copy, or None. Until then the model must not change."""
        into.tensor[part].copy_(x.tensor[part])

    def copy(self, x: Flat, into: Flat, part: slice = slice(None)):
        """Schedule that copies ``part`` of the model ``x`` into the same part of ``into``."""
        copied = self.begin_copy(x, into, part)
        if copied is not None:
            yield copied

    def mix(self, x: Flat, share: float, y: torch.Tensor, scratch: Flat, part: slice):
        """Schedule that sets ``part`` of the model ``x`` to (1 - share) x + share y; it may overwrite the same part of
        ``scratch``."""
        yield from ()
        x.tensor[part].lerp_(y.to(x.tensor.dtype), share)

    def give(self, y: Flat, x: Flat):
        """Schedule that copies ``y`` of this memory into the model ``x``."""
        yield from ()
        x.tensor.copy_(y.tensor)


class HostMemory(OuterMemory):
    """Pinned host memory, for a model in GPU memory. Copies to the host run while the GPU computes a gradient.

    The arithmetic of the outer step runs on the host. The model's device holds no array for it, not even for a moment.

    ``memory`` copies arrays (`grsgd.comm.gpu.memory.Memory`).
    """

    def __init__(self, memory):
        self.memory = memory

    def like(self, x):
        if not x.array.nbytes:
            return Flat.zeros(0, x.tensor.dtype, torch.device("cpu"))
        host = self.memory.borrow(x.array.nbytes)
        host[:] = 0
        return Flat.of(host.view(str(x.array.dtype)))

    def wide(self, x):
        return self.like(x)  # models of bfloat16 train on a CPU only

    def begin_copy(self, x, into, part):
        event = self.memory.copy_out(x.array, *self._bytes(into, part), self.memory.record_event())
        return Until(lambda: event.done, "a copy of the model to host memory")

    def mix(self, x, share, y, scratch, part):
        yield from self.copy(x, scratch, part)
        scratch.tensor[part].lerp_(y, share)
        self._copy_back(scratch, x, part)

    def give(self, y, x):
        yield from ()
        self._copy_back(y, x, slice(None))

    def _copy_back(self, y: Flat, x: Flat, part: slice):
        """Copy ``part`` of ``y`` into the same part of the model ``x``; return at the end of the copy, because a
        schedule that is broken off at a wait must leave a whole model."""
        event = self.memory.copy_in(x.array, *self._bytes(y, part), self.memory.record_event())
        while not event.done:
            time.sleep(0)

    def _bytes(self, host: Flat, part: slice) -> tuple[int, np.ndarray]:
        """Return the first byte of ``part`` of an array in host memory, and the bytes of this part."""
        begin, _, _ = part.indices(host.array.size)
        return begin * host.array.itemsize, host.array[part].view(np.uint8)
