"""Trained parameters of narrower dtypes than the flat array of all parameters: bfloat16, if the array is float32."""

from __future__ import annotations

from grsgd.lazy import LazyModule
from grsgd.models.mixing import BLOCK

torch = LazyModule("torch")


class NarrowParameters:
    """Parameters that cannot be views of the flat array, because their dtype is narrower than the array's dtype.

    Each parameter is the rounded copy of its part of the array. Algorithms change the array, so their means and
    differences are computed in the wide dtype. The optimizer and the script change the parameters.

    ``parts[i]`` is the part of the array, a tensor of the wide dtype with the shape of ``parameters[i]``. Parameters of
    the wide dtype are views of the array, and are left out.
    """

    def __init__(self, parameters: list[torch.nn.Parameter], parts: list[torch.Tensor]):
        pairs = [(p.data, part) for p, part in zip(parameters, parts, strict=True) if p.dtype != part.dtype]
        self._tensors, self._parts = [tensor for tensor, _ in pairs], [part for _, part in pairs]
        for tensor, part in pairs:
            part.copy_(tensor)
        self._seen = [tensor.clone() for tensor in self._tensors]
        """Values of the parameters at the end of the last `settle`."""
        self._bits = [(bits(now), bits(seen)) for now, seen in zip(self._tensors, self._seen, strict=True)]

    def __bool__(self):
        return bool(self._tensors)

    def settle(self):
        """Take over the changes of the parameters since the last call into the array, then set each parameter to its
        rounded part of the array."""
        for number, (now, seen) in enumerate(self._bits):
            if not torch.equal(now, seen):
                take_over(self._parts[number], self._tensors[number], self._seen[number])
        if self._tensors:
            torch._foreach_copy_(self._tensors, self._parts)
            torch._foreach_copy_(self._seen, self._tensors)


def bits(tensor: torch.Tensor) -> torch.Tensor:
    """Return the memory of a tensor as integers, in which differences are found faster: of 8 bytes if possible,
    otherwise of the size of the tensor's numbers."""
    if tensor.is_contiguous() and tensor.nbytes % 8 == 0 and tensor.data_ptr() % 8 == 0:
        return tensor.view(-1).view(torch.int64)
    return tensor.view(getattr(torch, f"int{8 * tensor.element_size()}"))


def take_over(part: torch.Tensor, now: torch.Tensor, before: torch.Tensor):
    """Change ``part``, of a wide dtype, as a narrow parameter has changed from ``before`` to ``now``.

    An element of ``part`` that equals ``before`` becomes ``now``, without rounding. Any other element keeps the bits
    that the narrow dtype lacks. An element that rounds to ``now`` stays unchanged.
    """
    blocks = (tensor.reshape(-1).split(BLOCK) for tensor in (part, now, before))
    for wide, narrow, earlier in zip(*blocks, strict=True):
        old, new = earlier.to(wide.dtype), narrow.to(wide.dtype)
        changed = torch.where(wide == old, new, wide + (new - old))
        unchanged = (narrow == earlier) | (wide.to(narrow.dtype) == narrow)
        wide.copy_(torch.where(unchanged, wide, changed))
