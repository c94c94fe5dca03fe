"""Conversion of a loop's state to bytes and back, to send the state to another rank or to write it to a file."""

import io

import numpy as np
import torch


def packed(state: dict) -> np.ndarray:
    """Return ``state``, a dictionary that torch can save, as an array of bytes (uint8)."""
    stream = io.BytesIO()
    torch.save(state, stream)
    return np.frombuffer(stream.getvalue(), np.uint8)


def unpacked(content: np.ndarray, is_safe: bool = True) -> dict:
    """Return the state from which `packed` has made ``content``. The state's tensors are in CPU memory.

    ``is_safe`` is False if the bytes may come from another user. Unsafe bytes with values other than numbers, text,
    lists, dictionaries and tensors raise an error.
    """
    return torch.load(io.BytesIO(content.tobytes()), weights_only=not is_safe, map_location="cpu")
