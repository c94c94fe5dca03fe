"""Functions that find the memory of a model's tensors, and move the tensors to other memory. Tensors that share memory
are moved together."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np

from grsgd.errors import ConfigError
from grsgd.lazy import LazyModule

torch = LazyModule("torch")

SPARSE = {
    "torch.sparse_coo": ("_indices", "_values"),
    "torch.sparse_csr": ("crow_indices", "col_indices", "values"),
    "torch.sparse_csc": ("ccol_indices", "row_indices", "values"),
    "torch.sparse_bsr": ("crow_indices", "col_indices", "values"),
    "torch.sparse_bsc": ("ccol_indices", "row_indices", "values"),
    "torch.jagged": ("offsets", "values"),
}
"""Names of the methods that return the indices (or offsets) and the values of a sparse or jagged tensor as dense
tensors, by the tensor's layout."""


class MemoryPlace(NamedTuple):
    """Addresses in memory of ``found``, a tensor or NumPy array that belongs to a model.

    ``name`` is the name of ``found`` in the model. ``begin`` is the address of the first byte of ``found``, and ``end``
    is the address after the last byte.
    """

    name: str
    found: object
    begin: int
    end: int


class Follower(NamedTuple):
    """Tensor that shares the memory of another tensor, and is moved together with it. The memory of the follower begins
    at element number ``offset`` of the tensor that it follows."""

    tensor: torch.Tensor
    offset: int


def is_dense(tensor: torch.Tensor) -> bool:
    """Return whether a tensor stores each of its elements separately, unlike sparse, quantised and expanded tensors."""
    repeats = any(size > 1 and stride == 0 for size, stride in zip(tensor.shape, strides(tensor), strict=False))
    return tensor.layout is torch.strided and not tensor.is_quantized and not repeats


def strides(tensor: torch.Tensor) -> tuple[int, ...]:
    return tensor.stride() if tensor.layout is torch.strided else ()


def content(tensor: torch.Tensor) -> list[torch.Tensor]:
    """Return dense tensors that contain all numbers of ``tensor``, and share its memory.

    A sparse tensor is returned as its indices and values. If a dimension of ``tensor`` is expanded, the result has only
    one element in this dimension.
    """
    tensor = tensor.detach()
    if str(tensor.layout) in SPARSE:
        return [getattr(tensor, part)() for part in SPARSE[str(tensor.layout)]]
    if tensor.is_quantized:
        begin, size = tensor.storage_offset() * tensor.element_size(), tensor.numel() * tensor.element_size()
        return [torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(tensor.untyped_storage(), begin, (size,))]
    for dimension, (size, stride) in enumerate(zip(tensor.shape, tensor.stride(), strict=True)):
        if size > 1 and stride == 0:
            tensor = tensor.narrow(dimension, 0, 1)
    return [tensor]


def extent(tensor: torch.Tensor) -> int:
    """Return the number of bytes from the beginning of a tensor's first element to the end of its last element."""
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return (last + 1) * tensor.element_size()


def places_of(model: torch.nn.Module) -> list[MemoryPlace]:
    """Return the addresses of all tensors and NumPy arrays of a model, each object once. The tensors and arrays are
    parameters, buffers and other attributes of the model's modules, including items of lists and dicts."""
    found: dict[int, MemoryPlace] = {}
    for name, value in everything(model):
        if id(value) in found:
            continue
        if isinstance(value, np.ndarray):
            begin, end = np.lib.array_utils.byte_bounds(value)
        elif value.layout is torch.strided and not value.is_meta and value.numel():
            begin = value.data_ptr()
            end = begin + extent(value)
        else:
            continue
        found[id(value)] = MemoryPlace(name, value, begin, end)
    return list(found.values())


def everything(model: torch.nn.Module) -> Iterator[tuple[str, object]]:
    """Yield the name and the value of each tensor and NumPy array in the modules of a model. Several values may have
    the same name, for example all tensors in one list."""
    for prefix, module in model.named_modules():
        others = {
            key: value for key, value in vars(module).items() if key not in ("_parameters", "_buffers", "_modules")
        }
        for table in (module._parameters, module._buffers, others):
            for key, value in table.items():
                for each in within(value):
                    yield f"{prefix}.{key}".lstrip("."), each


def within(value, depth: int = 3) -> Iterator[object]:
    """Yield all tensors and NumPy arrays in ``value``, which is a tensor, an array, or a list, tuple or dict. If
    ``value`` has any other type, nothing is yielded."""
    if isinstance(value, torch.Tensor | np.ndarray):
        yield value
    elif isinstance(value, list | tuple | dict) and depth:
        for each in value.values() if isinstance(value, dict) else value:
            yield from within(each, depth - 1)


def shared(places: Iterable[MemoryPlace]) -> Iterator[tuple[MemoryPlace, list[MemoryPlace]]]:
    """Yield each object of ``places`` whose memory overlaps with other objects, together with a list of these other
    objects."""
    group: list[MemoryPlace] = []
    end = 0
    for place in [*sorted(places, key=lambda place: place.begin), None]:
        if place is not None and group and place.begin < end:
            group.append(place)
            end = max(end, place.end)
            continue
        for one in group if len(group) > 1 else ():
            yield one, [other for other in group if other is not one and overlap(one, other)]
        if place is not None:
            group, end = [place], place.end


def overlap(one: MemoryPlace, other: MemoryPlace) -> bool:
    return one.begin < other.end and other.begin < one.end


def followers(place: MemoryPlace, others: Iterable[MemoryPlace]) -> list[Follower] | None:
    """Return a list with a `Follower` for each of ``others``, objects whose memory overlaps with the tensor of
    ``place``. Return None if any object of ``others`` cannot be moved together with the tensor of ``place``. An object
    cannot be moved with the tensor if its memory extends beyond the tensor, if its dtype differs, or if it is a NumPy
    array. No object can be moved together with a tensor that is not contiguous."""
    tensor, result = place.found, []
    for other in others:
        fits = (
            isinstance(other.found, torch.Tensor)
            and other.found.dtype == tensor.dtype
            and place.begin <= other.begin
            and other.end <= place.end
            and tensor.is_contiguous()
        )
        if not fits:
            return None
        result.append(Follower(other.found, (other.begin - place.begin) // tensor.element_size()))
    return result


def move(tensor: torch.Tensor, view: torch.Tensor, following: Iterable[Follower]):
    """Move ``tensor``, with its content, to the memory of ``view``, a tensor of the same shape. Move the tensors in
    ``following``, which share the memory of ``tensor``, to the new memory as well."""
    view.copy_(tensor.data)
    tensor.data = view
    for other, offset in following:
        other.data = view.as_strided(other.shape, other.stride(), view.storage_offset() + offset)


def following_trained(model: torch.nn.Module, places: Iterable[MemoryPlace]) -> dict[int, list[Follower]]:
    """Return a dict whose keys are the ids of the trained parameters that share memory with other tensors. The value of
    a key is a list with a `Follower` for each tensor that shares memory with the parameter.

    Raises ConfigError, which names the parameter, if a trained parameter cannot be moved. A parameter cannot be moved
    if it shares memory with another parameter, with a tensor that extends beyond the parameter, or with another
    process.
    """
    parameters = {id(p): name for name, p in model.named_parameters()}
    for name, p in model.named_parameters():
        if p.requires_grad and p.device.type == "cpu" and p.is_shared():
            raise ConfigError(
                f"parameter {name!r} lies in memory that processes share (share_memory()), and would be moved, so that "
                "other processes keep old weights: share a copy of the model, and update the copy from time to time"
            )
    result: dict[int, list[Follower]] = {}
    for place, others in shared(place for place in places if isinstance(place.found, torch.Tensor)):
        if id(place.found) not in parameters or not place.found.requires_grad:
            continue
        other = next((other for other in others if id(other.found) in parameters), None)
        if other is not None:
            first, second = sorted((place.name, other.name))
            raise ConfigError(
                f"parameters {first!r} and {second!r} lie in one memory: tie them by one Parameter (decoder.weight = "
                "encoder.weight)"
            )
        following = followers(place, others)
        if following is None:
            raise ConfigError(
                f"parameter {place.name!r} lies in the memory of {others[0].name!r}, and would be moved out of this "
                "memory: create the parameter from a copy (.clone())"
            )
        result[id(place.found)] = following
    return result


def following_buffers(
    buffers: dict[str, torch.Tensor], places: Iterable[MemoryPlace]
) -> tuple[dict[str, torch.Tensor], dict[int, list[Follower]]]:
    """Return two dicts. The first returned dict has the ``buffers`` that may be moved, by name. The second returned
    dict has, by the id of a buffer, the followers (tensors that are moved together with the buffer).

    The dict of buffers that may be moved omits a buffer that is moved together with another tensor. A buffer is also
    omitted if the model or another process would continue to use the buffer's old memory.
    """
    wanted = {id(buffer) for buffer in buffers.values()}
    followed: dict[int, list[Follower]] = {}
    left = {id(buffer) for buffer in buffers.values() if buffer.device.type == "cpu" and buffer.is_shared()}
    by_size = sorted(shared(places), key=lambda pair: pair[0].begin - pair[0].end)  # the largest tensor comes first
    for place, others in by_size:
        if id(place.found) not in wanted or id(place.found) in left:
            continue
        following = None if any(id(other.found) in left for other in others) else followers(place, others)
        if following is None or any(isinstance(other.found, torch.nn.Parameter) for other in others):
            left.add(id(place.found))
        else:
            followed[id(place.found)] = following
            left.update(id(other.found) for other in others)
    return {name: buffer for name, buffer in buffers.items() if id(buffer) not in left}, followed
