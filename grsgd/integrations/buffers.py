"""Conversion of objects with tensors for sending: the tensors are sent in pieces, because a pickled model is slow and
large."""

import io
import pickle
from collections.abc import Iterator

import torch

PIECE_BYTES = 2**26
"""Largest size of a message with a part of a tensor, in bytes."""


class Outline(pickle.Pickler):
    """Pickler that leaves out the contents of an object's tensors, and collects the tensors in ``tensors``."""

    def __init__(self, file):
        super().__init__(file)
        self.tensors: list[torch.Tensor] = []

    def persistent_id(self, thing):
        """Return the number, shape and dtype of a tensor. Return None for all other objects, which are then pickled."""
        if type(thing) is not torch.Tensor or thing.layout != torch.strided or thing.is_quantized:
            return None
        self.tensors.append(thing)
        return len(self.tensors) - 1, tuple(thing.shape), thing.dtype


class Filled(pickle.Unpickler):
    """Unpickler of the output of `Outline`. The unpickler makes empty CPU tensors and collects the tensors in
    ``tensors``."""

    def __init__(self, file):
        super().__init__(file)
        self.tensors: list[torch.Tensor] = []

    def persistent_load(self, found):
        _, shape, dtype = found
        self.tensors.append(torch.empty(shape, dtype=dtype))
        return self.tensors[-1]


def outline(thing) -> tuple[bytes, list[torch.Tensor]]:
    """Return an outline (a pickle without the tensors' contents) of the object ``thing``, and the tensors in
    ``thing``."""
    file = io.BytesIO()
    pickler = Outline(file)
    pickler.dump(thing)
    return file.getvalue(), pickler.tensors


def empty(sent: bytes) -> tuple[object, list[torch.Tensor]]:
    """Return the object of the outline ``sent``, and the object's tensors, whose contents must still be received."""
    unpickler = Filled(io.BytesIO(sent))
    thing = unpickler.load()
    return thing, unpickler.tensors


def pieces(tensor: torch.Tensor) -> Iterator:
    """Yield the memory of a contiguous CPU tensor, in arrays of at most `PIECE_BYTES` bytes."""
    memory = tensor.flatten().view(torch.uint8).numpy() if tensor.numel() else ()
    for first in range(0, len(memory), PIECE_BYTES):
        yield memory[first : first + PIECE_BYTES]


def on_host(tensor: torch.Tensor) -> torch.Tensor:
    """Return a contiguous CPU tensor with the values of ``tensor``."""
    return tensor.detach().resolve_conj().resolve_neg().cpu().contiguous()
