"""Trained parameters whose dtype is narrower than the dtype of the replica's flat array, such as bfloat16 if the array
is float32."""

from __future__ import annotations

from grsgd.lazy import LazyModule
from grsgd.models.mixing import BLOCK

torch = LazyModule("torch")


class NarrowParameters:
    """Trained parameters that cannot be views of the replica's flat array, because their dtype is narrower than the
    array's dtype.

    Each narrow parameter is a rounded copy of some elements of the flat array. Algorithms change the flat array, so
    that they compute means and differences in the wide dtype. The optimizer and the user's script change the narrow
    parameters.

    ``parts[i]`` has the elements of the flat array for ``parameters[i]``, as a tensor of the wide dtype with the
    parameter's shape. Parameters of the wide dtype are views of the flat array, and this object ignores them.
    """

    def __init__(self, parameters: list[torch.nn.Parameter], parts: list[torch.Tensor]):
        pairs = [(p.data, part) for p, part in zip(parameters, parts, strict=True) if p.dtype != part.dtype]
        self._tensors, self._parts = [tensor for tensor, _ in pairs], [part for _, part in pairs]
        for tensor, part in pairs:
            part.copy_(tensor)
        self._seen = [tensor.clone() for tensor in self._tensors]
        """Values of the narrow parameters at the end of the last call of `settle`."""
        self._bits = [(bits(now), bits(seen)) for now, seen in zip(self._tensors, self._seen, strict=True)]

    def __bool__(self):
        return bool(self._tensors)

    def settle(self):
        """Apply the changes of the narrow parameters since the last call of `settle` to the flat array. Afterwards, set
        each narrow parameter to the rounded values of its elements in the flat array."""
        for number, (now, seen) in enumerate(self._bits):
            if not torch.equal(now, seen):
                take_over(self._parts[number], self._tensors[number], self._seen[number])
        if self._tensors:
            torch._foreach_copy_(self._tensors, self._parts)
            torch._foreach_copy_(self._seen, self._tensors)


def bits(tensor: torch.Tensor) -> torch.Tensor:
    """Return the memory of a tensor as integers, because integers are compared faster than floating-point numbers. The
    integers have 8 bytes, or the size of the tensor's numbers if the memory cannot be divided into 8-byte integers."""
    if tensor.is_contiguous() and tensor.nbytes % 8 == 0 and tensor.data_ptr() % 8 == 0:
        return tensor.view(-1).view(torch.int64)
    return tensor.view(getattr(torch, f"int{8 * tensor.element_size()}"))


def take_over(part: torch.Tensor, now: torch.Tensor, before: torch.Tensor):
    """Apply to ``part`` the change of a narrow parameter from ``before`` to ``now``. ``part`` has the parameter's
    elements in the wide dtype.

    If an element of ``part`` equals the element of ``before`` at the same index, it is set to the element of ``now`` at
    this index. If an element of ``part``, rounded to the narrow dtype, equals the element of ``now`` at the same index,
    it stays unchanged. Every other element of ``part`` is changed by the difference of ``now`` and ``before``, and
    keeps the bits that the narrow dtype lacks.
    """
    blocks = (tensor.reshape(-1).split(BLOCK) for tensor in (part, now, before))
    for wide, narrow, earlier in zip(*blocks, strict=True):
        old, new = earlier.to(wide.dtype), narrow.to(wide.dtype)
        changed = torch.where(wide == old, new, wide + (new - old))
        unchanged = (narrow == earlier) | (wide.to(narrow.dtype) == narrow)
        wide.copy_(torch.where(unchanged, wide, changed))
