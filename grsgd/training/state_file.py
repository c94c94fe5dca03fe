"""Conversion of a model's state dict to the bytes of a file, and back. The format is safetensors if the file's name
ends in .safetensors, else the format of ``torch.save``."""

import io
import pickle
import warnings
import zipfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import torch

from grsgd.errors import ConfigError, ModelError
from grsgd.text import printable

SUFFIX = ".safetensors"


def is_safetensors(path: Path) -> bool:
    """Return whether the name of a file ends in .safetensors."""
    return path.suffix == SUFFIX


def check_format(path: Path):
    """Raise ConfigError if ``path`` ends in .safetensors and the package safetensors is not installed."""
    if is_safetensors(path):
        try:
            import safetensors.torch  # noqa: F401
        except ImportError:
            raise ConfigError(f"{path}: needs the package safetensors: pip install safetensors") from None


def bytes_of(path: Path, state: dict[str, torch.Tensor]) -> io.BytesIO:
    """Return the state dict ``state`` as the content of the file ``path``, whose name determines the format. No two
    tensors of ``state`` may share memory, and all tensors must be on the CPU.

    Raises TypeError if the format is safetensors and ``state`` holds objects that are not tensors.
    """
    content = io.BytesIO()
    if is_safetensors(path):
        from safetensors.torch import save

        content.write(save({name: value.contiguous() for name, value in state.items()}))
    else:
        torch.save(state, content)  # writes to memory, because torch reports a full disk in many lines
    return content


def state_in(path: Path, content: bytes) -> dict[str, torch.Tensor]:
    """Return the state dict in ``content``, the bytes of the file ``path``, with its tensors on the CPU. No code in the
    file is run. Raises ModelError if ``content`` is no state dict."""
    if is_safetensors(path):
        return in_safetensors(path, content)
    check_plain(path, content)
    try:
        with warnings.catch_warnings(action="ignore"):
            state = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    except pickle.UnpicklingError:
        raise ModelError(
            f"{path}: is not a state dict: it holds other objects than tensors, which could run code and are not loaded"
        ) from None
    except Exception:  # torch raises many kinds of errors for a file that torch.save has not written
        raise ModelError(f"{path}: is not a state dict: not a file of torch.save, or a damaged one") from None
    if not isinstance(state, Mapping):
        raise ModelError(f"{path}: is not a state dict, but of type {type(state).__name__}")
    if odd := [name for name, value in state.items() if not isinstance(value, torch.Tensor)]:
        kind = type(state[odd[0]]).__name__
        raise ModelError(f"{path}: is not a state dict: {printable(repr(odd[0]), 100)} is of type {kind}, not a tensor")
    return state


def check_plain(path: Path, content: bytes):
    """Raise ModelError if ``content`` is a zip file that is compressed, or that claims to hold more bytes than it has.
    `torch.save` never writes a compressed zip file or a wrong number of bytes."""
    with suppress(zipfile.BadZipFile, NotImplementedError), zipfile.ZipFile(io.BytesIO(content)) as archive:
        entries = archive.infolist()
        if any(entry.compress_type != zipfile.ZIP_STORED for entry in entries):
            raise ModelError(f"{path}: is not a file of torch.save: its content is compressed")
        if sum(entry.file_size for entry in entries) > len(content):
            raise ModelError(f"{path}: is not a file of torch.save: it claims to hold more bytes than the file has")


def in_safetensors(path: Path, content: bytes) -> dict[str, torch.Tensor]:
    """Return the state dict in ``content``, the bytes of a file of safetensors. Raises ModelError if the file is
    damaged."""
    try:
        check_format(path)
    except ConfigError as error:
        raise ModelError(str(error)) from None
    from safetensors import SafetensorError
    from safetensors.torch import load

    try:
        return load(content)
    except SafetensorError as error:
        raise ModelError(f"{path}: is not a file of safetensors: {printable(str(error), 200)}") from None
