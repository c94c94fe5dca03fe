"""Trained parameters that are narrower than the flat array of all parameters, such as bfloat16 beside float32."""

from __future__ import annotations

from grsgd.lazy import LazyModule

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

    def __bool__(self):
        return bool(self._tensors)

    def settle(self):
        """Take over the changes of the parameters since the last call into the array, then set each parameter to its
        rounded part of the array."""
        for tensor, part, seen in zip(self._tensors, self._parts, self._seen, strict=True):
            if not torch.equal(tensor, seen):
                take_over(part, tensor, seen)
        if self._tensors:
            torch._foreach_copy_(self._tensors, self._parts)
            torch._foreach_copy_(self._seen, self._tensors)


def take_over(part: torch.Tensor, now: torch.Tensor, before: torch.Tensor):
    """Change ``part``, of a wide dtype, as a narrow parameter has changed from ``before`` to ``now``.

    An element of ``part`` that equals ``before`` becomes ``now``, without rounding. Any other element keeps the bits
    that the narrow dtype lacks. An element that rounds to ``now`` stays unchanged.
    """
    old, new = before.to(part.dtype), now.to(part.dtype)
    changed = torch.where(part == old, new, part + (new - old))
    unchanged = (now == before) | (part.to(now.dtype) == now)
    part.copy_(torch.where(unchanged, part, changed))
