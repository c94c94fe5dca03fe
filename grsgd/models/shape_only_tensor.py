"""Tensors without content, for runs in which only time matters, whose arithmetic in place takes no time at all."""

import torch

IN_PLACE = (
    *("add_", "sub_", "mul_", "div_", "neg_", "abs_", "sign_", "sqrt_", "rsqrt_", "square_", "lerp_", "addcmul_"),
    *("addcdiv_", "clamp_", "copy_", "zero_", "fill_"),
)
"""Methods that change nothing but content. Torch's own, on its device ``meta``, take a millisecond each, for they are
written in Python and check shapes; the first of them imports torch's compiler, which takes seconds."""


class ShapeOnlyTensor(torch.Tensor):
    """A tensor on torch's device ``meta``; so are its slices and views."""

    @classmethod
    def __torch_function__(cls, function, types, arguments=(), named=None):
        """Call a function of torch, unless all that it does is to write into ``out``."""
        if named and named.get("out") is not None:
            return named["out"]
        with torch._C.DisableTorchFunctionSubclass():
            return function(*arguments, **named or {})

    def __getitem__(self, key):
        return super().__getitem__(key).as_subclass(ShapeOnlyTensor)

    def split(self, *arguments, **named):
        return [part.as_subclass(ShapeOnlyTensor) for part in super().split(*arguments, **named)]

    def view(self, *arguments):
        return super().view(*arguments).as_subclass(ShapeOnlyTensor)

    def unchanged(self, *_, **__):
        return self


for name in IN_PLACE:
    setattr(ShapeOnlyTensor, name, ShapeOnlyTensor.unchanged)


def shape_only_tensor(size: int, dtype: torch.dtype) -> ShapeOnlyTensor:
    """Return one of ``size`` elements."""
    return torch.empty(size, dtype=dtype, device="meta").as_subclass(ShapeOnlyTensor)
