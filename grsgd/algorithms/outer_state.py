"""Memory for arrays that an algorithm keeps from step to step: the memory of the model's device, or host memory.

A schedule is a generator that yields each object it waits for.
"""

from __future__ import annotations

import time
from collections.abc import Generator
from functools import cache
from typing import Literal

import numpy as np
from pydantic import Field, model_validator

from grsgd.comm.compression.compressors import CompressionOptions
from grsgd.comm.pollables import Until
from grsgd.lazy import LazyModule
from grsgd.models.flat import Flat, octets_of

torch = LazyModule("torch")

OuterState = Literal["device", "host"]
OUTER_STATE_MEANING = (
    "memory of the arrays that the algorithm keeps from step to step; host: host memory, so that GPU memory is left "
    "for larger models or batches; by default the memory of the model's device"
)
ALL = slice(None)


class FeedbackOptions(CompressionOptions):
    """Options of algorithms that keep no arrays of the model's size except the errors of compression."""

    outer_state: OuterState | None = Field(None, description=OUTER_STATE_MEANING)

    @model_validator(mode="after")
    def state_of_compression(self):
        if self.outer_state == "host" and not self.compresses:
            raise ValueError('outer_state = "host": needs a compression, whose errors are then kept in host memory')
        return self


def outer_memory(x: Flat, place: OuterState | None) -> OuterMemory:
    """Return the memory in which the algorithm keeps its arrays: host memory if ``place`` is ``"host"`` and ``x`` lies
    in GPU memory, else the memory of the model's device."""
    if place == "host" and x.tensor.is_cuda:
        return HostMemory(copier())
    return OuterMemory()


@cache
def copier():
    """Return the object that copies arrays between GPU memory and pinned host memory; each process has one such
    object."""
    from grsgd.comm.gpu.memory import Memory

    return Memory()


class OuterMemory:
    """Memory of the model's own device, for arrays that an algorithm keeps from step to step. Copies within the memory
    of the model's device need no waiting.

    An algorithm changes its model or its gradient in three steps: `take` returns the array in this memory, the
    algorithm computes with the array, and `put` copies the result back.
    """

    def like(self, x: Flat) -> Flat:
        """Return a new array of zeros in this memory, with the length and dtype of ``x``."""
        return x.like()

    def wide(self, x: Flat) -> Flat:
        """Return a new array of zeros in this memory, with the length of ``x``. The new array is of float32 if ``x`` is
        of bfloat16, else of the dtype of ``x`` (`Flat.wide`)."""
        return x.wide()

    def room(self, x: Flat) -> Flat:
        """Return an array that can be given to `take` as ``room`` for ``x``. `OuterMemory` returns ``x`` itself,
        because `take` copies nothing, and `HostMemory` returns a new array in host memory."""
        return x

    def result(self, x: Flat, room: Flat) -> Flat:
        """Return the array in which the algorithm computes the new content of ``x`` before `put`: ``x``, or ``room`` if
        ``x`` does not lie in this memory."""
        return x

    def begin_copy(self, x: Flat, into: Flat, part: slice):
        """Begin to copy the slice ``part`` of the model ``x`` into the same slice of ``into``. Return a pollable that
        is true when the copy has ended, or None if the copy has already ended. The model must not change before the end
        of the copy."""
        into.tensor[part].copy_(x.tensor[part])

    def copy(self, x: Flat, into: Flat, part: slice = ALL):
        """Generator that copies the slice ``part`` of the model ``x`` into the same slice of ``into``."""
        copied = self.begin_copy(x, into, part)
        if copied is not None:
            yield copied

    def take(self, x: Flat, room: Flat, part: slice = ALL) -> Generator:
        """Begin to copy the slice ``part`` of ``x`` into the same slice of ``room``, unless ``x`` lies in this memory.
        Return a generator. The generator returns the array that holds the content of ``x`` in this memory: ``x`` or
        ``room``.

        ``x`` must not change before the generator that `take` returns has ended.
        """
        yield from ()
        return x

    def put(self, held: Flat, x: Flat, part: slice = ALL):
        """Copy the slice ``part`` of ``held``, an array in this memory, into the same slice of ``x``, unless ``held``
        and ``x`` are the same array."""
        if held is not x:
            x.tensor[part].copy_(held.tensor[part])

    def take_all(self, tensors: list[torch.Tensor], room: Flat):
        """Generator that returns tensors in this memory with the content of ``tensors``, which may have any dtype and
        shape. All ``tensors`` together must have at most as many elements as ``room``."""
        yield from ()
        return tensors

    def put_all(self, held: list[torch.Tensor], tensors: list[torch.Tensor]):
        """Copy the tensors ``held``, which `take_all` has returned for ``tensors``, into ``tensors``."""


class HostMemory(OuterMemory):
    """Pinned host memory, for the arrays of an algorithm whose model lies in GPU memory. Arrays are copied to the host
    while the GPU computes a gradient.

    The arithmetic with arrays of `HostMemory` runs on the host, and needs no array in GPU memory.

    ``memory`` is the object that copies arrays between GPU memory and host memory (`grsgd.comm.gpu.memory.Memory`).
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
        return self.like(x)  # models of bfloat16 are trained on CPUs only, so no array needs a wider dtype

    def room(self, x):
        return self.like(x)

    def result(self, x, room):
        return room

    def begin_copy(self, x, into, part):
        event = self.memory.copy_out(x.array, *self._bytes(into, part), self.memory.record_event())
        return Until(lambda: event.done, "a copy of the model to host memory")

    def take(self, x, room, part=ALL):
        return self._taken(self.begin_copy(x, room, part), room)

    def _taken(self, copied: Until, room: Flat):
        yield copied
        return room

    def put(self, held, x, part=ALL):
        self._wait(self.memory.copy_in(x.array, *self._bytes(held, part), self.memory.record_event()))

    def take_all(self, tensors, room):
        whole = [tensor.contiguous() for tensor in tensors]  # `whole` must exist until the GPU has read it
        octets, begin, after, event = room.array.view(np.uint8), 0, self.memory.record_event(), None
        held = []
        for tensor in whole:
            host = octets[begin : begin + tensor.nbytes]
            held.append(torch.from_numpy(host).view(tensor.dtype).view(tensor.shape))
            begin += tensor.numel() * room.array.itemsize
            if tensor.numel():
                event = self.memory.copy_out(octets_of(tensor), 0, host, after)
        if event is not None:  # copies to the host run in order, so the last copy ends last
            yield Until(lambda: event.done, "a copy of gradients to host memory")
        return held

    def put_all(self, held, tensors):
        for y, tensor in zip(held, tensors, strict=True):
            if tensor.numel():
                whole = tensor.contiguous()
                self._wait(self.memory.copy_in(octets_of(whole), 0, octets_of(y), self.memory.record_event()))
                if whole is not tensor:
                    tensor.copy_(whole)

    @staticmethod
    def _wait(event):
        """Wait until a copy to the GPU has ended. During the wait `put` does not yield, because a run may be stopped at
        a yield, and the model would be only partly overwritten."""
        while not event.done:
            time.sleep(0)

    def _bytes(self, host: Flat, part: slice) -> tuple[int, np.ndarray]:
        """Return the index of the first byte of the slice ``part`` of the array ``host``, and the bytes of the
        slice."""
        begin, _, _ = part.indices(host.array.size)
        return begin * host.array.itemsize, host.array[part].view(np.uint8)
