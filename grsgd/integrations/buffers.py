"""Tensors inside objects, sent between ranks as buffers in pieces: a pickled copy of a model is slow and large."""

import io
import pickle
from collections.abc import Iterator

import torch

PIECE_BYTES = 2**26
"""Largest message, in bytes."""


class Outline(pickle.Pickler):
    """Pickler of an object without the contents of its tensors, which it collects in ``tensors``."""

    def __init__(self, file):
        super().__init__(file)
        self.tensors: list[torch.Tensor] = []

    def persistent_id(self, thing):
        """Return the number of a tensor with its shape and dtype; None for all other objects, which are pickled."""
        if type(thing) is not torch.Tensor or thing.layout != torch.strided or thing.is_quantized:
            return None
        self.tensors.append(thing)
        return len(self.tensors) - 1, tuple(thing.shape), thing.dtype


class Filled(pickle.Unpickler):
    """Unpickler of an `Outline`, with empty tensors on the CPU, which it collects in ``tensors``."""

    def __init__(self, file):
        super().__init__(file)
        self.tensors: list[torch.Tensor] = []

    def persistent_load(self, found):
        _, shape, dtype = found
        self.tensors.append(torch.empty(shape, dtype=dtype))
        return self.tensors[-1]


def outline(thing) -> tuple[bytes, list[torch.Tensor]]:
    """Return an outline of the object, and the tensors that the outline lacks."""
    file = io.BytesIO()
    pickler = Outline(file)
    pickler.dump(thing)
    return file.getvalue(), pickler.tensors


def empty(sent: bytes) -> tuple[object, list[torch.Tensor]]:
    """Return the object of an outline, and its tensors, whose contents are yet to be received."""
    unpickler = Filled(io.BytesIO(sent))
    thing = unpickler.load()
    return thing, unpickler.tensors


def pieces(tensor: torch.Tensor) -> Iterator:
    """Yield the memory of a contiguous tensor on the CPU, in arrays of at most `PIECE_BYTES` bytes."""
    memory = tensor.flatten().view(torch.uint8).numpy() if tensor.numel() else ()
    for first in range(0, len(memory), PIECE_BYTES):
        yield memory[first : first + PIECE_BYTES]


def on_host(tensor: torch.Tensor) -> torch.Tensor:
    """Return a contiguous tensor on the CPU with the same values."""
    return tensor.detach().resolve_conj().resolve_neg().cpu().contiguous()
