"""State of a loop as bytes."""

import io

import numpy as np
import torch


def packed(state: dict) -> np.ndarray:
    """Return a state as bytes."""
    stream = io.BytesIO()
    torch.save(state, stream)
    return np.frombuffer(stream.getvalue(), np.uint8)


def unpacked(content: np.ndarray, is_safe: bool = True) -> dict:
    """Return the state that `packed` has made bytes of; its tensors lie in the memory of the CPU.

    Unless ``is_safe``, the bytes may come from another user: then values other than numbers, text, lists, dictionaries
    and tensors raise an error.
    """
    return torch.load(io.BytesIO(content.tobytes()), weights_only=not is_safe, map_location="cpu")
