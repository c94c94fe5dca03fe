"""Weighted sums and differences of models, computed in place. Each model's parameter vector is read from main memory
only once per weighted sum or difference."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache

from grsgd.lazy import LazyModule

torch = LazyModule("torch")


BLOCK = 1 << 18
"""Number of elements of a model's vector that the CPU processes at a time. Blocks of this size of several models fit
into a processor's last-level cache. The arithmetic on a block takes ten times as long as the Python code that starts
the arithmetic."""


def mix(x: torch.Tensor, weight: float, others: list[tuple[float, torch.Tensor]], out: torch.Tensor | None = None):
    """Set ``out`` to ``weight * x`` plus the sum of ``weight_j * x_j`` over all pairs in ``others``. If ``out`` is
    None, the sum is stored in ``x``."""
    out = x if out is None else out
    if not x.numel() or (not others and weight == 1 and out is x):
        return
    weights, tensors = [other_weight for other_weight, _ in others], [other for _, other in others]
    if x.dtype is torch.bfloat16:
        _mix_rounded_once(x, weight, weights, tensors, out)
        return
    if x.is_cuda:
        _on_gpu(_weighted_sum(len(others)), out, weight, x, *weights, *tensors)
        return
    for result, block, *parts in blocks(out, x, *tensors):
        _mix(block, weight, list(zip(weights, parts, strict=True)), result)


def add_difference(x: torch.Tensor, y: torch.Tensor, s: torch.Tensor, weight: float = 1.0):
    """Add ``weight * (y - s)`` to the tensor ``x``, in place."""
    if x.dtype is torch.bfloat16:
        _add_difference_rounded_once(x, y, s, weight)
        return
    if x.is_cuda:
        _on_gpu(_difference(), x, weight, y, s)
        return
    difference = torch.empty_like(x[:BLOCK])
    for block, newer, older in blocks(x, y, s):
        block.add_(torch.sub(newer, older, out=difference[: block.numel()]), alpha=weight)


def add_difference_of_buffers(x: torch.Tensor, y: torch.Tensor, s: torch.Tensor):
    """Add ``y - s`` to the elements of ``x`` at which ``y`` and ``s`` differ.

    Elements of ``x`` at which ``y`` and ``s`` are equal stay unchanged, because ``y - s`` would be NaN for two equal
    infinities. Elements of ``x`` that equal ``s`` become exactly ``y``, because ``x + (y - s)`` may be rounded.
    """
    x.copy_(torch.where(y == s, x, torch.where(x == s, y, x + (y - s))))


def follow(y: torch.Tensor, g: torch.Tensor, grad: torch.Tensor):
    """Set ``y = y - g + grad``, then ``g = grad``, and at last ``grad = y``, in place. ``y``, ``g`` and ``grad`` have
    the same shape."""
    is_alike = y.dtype == grad.dtype and y.dtype in (torch.float32, torch.float64) and grad.is_contiguous()
    if y.is_cpu and is_alike:
        _following()(*(tensor.detach().view(-1).numpy() for tensor in (y, g, grad)))
        return
    y.sub_(g)
    g.copy_(grad)
    y.add_(g)
    grad.copy_(y)


def blocks(*tensors: torch.Tensor) -> Iterable[tuple[torch.Tensor, ...]]:
    """Return one tuple for each block of about `BLOCK` elements. The tuple has the block's elements of each of
    ``tensors``, which have the same shape. When several operations work on one block after another, the block stays in
    the processor's cache. If the tensors are not on the CPU, the whole tensors are one block."""
    first = tensors[0]
    if first.numel() <= BLOCK or not first.is_cpu:  # simulations have tensors without content
        return [tensors]
    rows = max(1, BLOCK * len(first) // first.numel())
    return zip(*(tensor.split(rows) for tensor in tensors), strict=True)


def _mix_rounded_once(x, weight, weights, tensors, out):
    """Compute `mix` for bfloat16 models in float32, and round the result to bfloat16 only once."""
    if x.is_meta:
        return
    for result, block, *parts in blocks(out, x, *tensors):
        mixed = block.float()
        _mix(mixed, weight, [(other, part.float()) for other, part in zip(weights, parts, strict=True)], mixed)
        result.copy_(mixed)


def _add_difference_rounded_once(x, y, s, weight):
    """Compute `add_difference` for bfloat16 models in float32, and round the result to bfloat16 only once."""
    if x.is_meta:
        return
    for block, newer, older in blocks(x, y, s):
        block.copy_(block.float().add_(newer.float() - older.float(), alpha=weight))


def _mix(x, weight, others, out):
    if len(others) == 1 and weight + others[0][0] == 1:
        torch.lerp(x, others[0][1], others[0][0], out=out)
        return
    if weight != 1:
        torch.mul(x, weight, out=out)
    elif out is not x:
        out.copy_(x)
    for other_weight, other in others:
        out.add_(other, alpha=other_weight)


# ---- fused kernels


@cache
def _following():
    """Return the loop of `follow` over NumPy arrays, compiled by numba."""
    from numba import njit

    @njit(nogil=True, cache=True)
    def following(y, g, grad):
        for i in range(y.size):
            y[i] = y[i] - g[i] + grad[i]
            g[i] = grad[i]
            grad[i] = y[i]

    return following


def _on_gpu(kernel, x, *arguments):
    import cupy

    arguments = [cupy.from_dlpack(y) if isinstance(y, torch.Tensor) else float(y) for y in arguments]
    x = cupy.from_dlpack(x)
    kernel(*arguments, x)


@cache
def _weighted_sum(count: int):
    import cupy

    weights = "".join(f", float64 weight{j}" for j in range(count))
    others = "".join(f", T y{j}" for j in range(count))
    terms = "".join(f" + (T)weight{j} * y{j}" for j in range(count))
    operation = f"out = (T)weight * x{terms}"
    return cupy.ElementwiseKernel(f"float64 weight, T x{weights}{others}", "T out", operation, f"mix_{count}")


@cache
def _difference():
    import cupy

    return cupy.ElementwiseKernel("float64 weight, T y, T s", "T x", "x = x + (T)weight * (y - s)", "add_difference")
