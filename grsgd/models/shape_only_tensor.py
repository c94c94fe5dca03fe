"""Torch tensors without content, for runs that only simulate times. Arithmetic in place on a tensor without content
does nothing."""

from functools import lru_cache

import torch

IN_PLACE = (
    *("add_", "sub_", "mul_", "div_", "neg_", "abs_", "sign_", "sqrt_", "rsqrt_", "square_", "lerp_", "addcmul_"),
    *("addcdiv_", "clamp_", "copy_", "zero_", "fill_"),
)
"""Names of the methods of torch.Tensor that change only a tensor's content. `ShapeOnlyTensor` replaces each of the
methods in `IN_PLACE` by a method that does nothing. Torch's own methods on the device ``meta`` check shapes in Python,
which takes a millisecond for each call. The first call of a method of torch on the device ``meta`` imports torch's
compiler, which takes seconds."""


class ShapeOnlyTensor(torch.Tensor):
    """Tensor on torch's device ``meta``, which has no content. Slices and views of a `ShapeOnlyTensor` are
    `ShapeOnlyTensor` objects, too."""

    is_meta = True
    """Always True, because torch's own attribute ``is_meta`` takes a hundred times as long to read."""
    vector: tuple[int, torch.dtype] | None = None
    """Length and dtype of a tensor that `shape_only_tensor` has created; None for any other tensor."""

    @classmethod
    def __torch_function__(cls, function, types, arguments=(), named=None):
        """Call a function of torch, and return its result. If the argument ``out`` is given, return ``out`` without
        calling the function, because a tensor without content need not be written."""
        if named and named.get("out") is not None:
            return named["out"]
        with torch._C.DisableTorchFunctionSubclass():
            return function(*arguments, **named or {})

    def __getitem__(self, key):
        if self.vector is not None and isinstance(key, slice) and key.step is None:
            size, dtype = self.vector
            return shape_only_tensor(len(range(size)[key]), dtype)
        return super().__getitem__(key).as_subclass(ShapeOnlyTensor)

    def split(self, *arguments, **named):
        sizes = arguments[0]
        if self.vector is not None and isinstance(sizes, list) and sum(sizes) == self.vector[0]:
            return [shape_only_tensor(size, self.vector[1]) for size in sizes]
        return [part.as_subclass(ShapeOnlyTensor) for part in super().split(*arguments, **named)]

    def view(self, *arguments):
        if self.vector is not None and len(arguments) == 1:
            (size, dtype), (wanted,) = self.vector, arguments
            if wanted == (size,):
                return self
            if isinstance(wanted, torch.dtype) and size * dtype.itemsize % wanted.itemsize == 0:
                return shape_only_tensor(size * dtype.itemsize // wanted.itemsize, wanted)
        return super().view(*arguments).as_subclass(ShapeOnlyTensor)

    def unchanged(self, *_, **__):
        return self


for name in IN_PLACE:
    setattr(ShapeOnlyTensor, name, ShapeOnlyTensor.unchanged)


@lru_cache(maxsize=1024)
def shape_only_tensor(size: int, dtype: torch.dtype) -> ShapeOnlyTensor:
    """Return a tensor of ``size`` elements without content. Calls with equal arguments return the same tensor, because
    tensors without content need not be distinct, and the creation of a tensor takes time."""
    tensor = torch.empty(size, dtype=dtype, device="meta").as_subclass(ShapeOnlyTensor)
    tensor.vector = size, dtype
    return tensor
