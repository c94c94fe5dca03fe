"""Weighted sums of models, computed in place and so that each vector is read from memory only once."""

from __future__ import annotations

from functools import cache

from grsgd.lazy import LazyModule

torch = LazyModule("torch")


BLOCK = 1 << 16
"""Number of elements that are mixed at a time on the CPU; blocks of this length of three models fit into the cache."""


def mix(x: torch.Tensor, weight: float, others: list[tuple[float, torch.Tensor]]):
    """Set x = weight * x + sum of weight_j * x_j."""
    if not others and weight == 1:
        return
    weights, tensors = [other_weight for other_weight, _ in others], [other for _, other in others]
    if x.dtype is torch.bfloat16:
        _mix_rounded_once(x, weight, weights, tensors)
        return
    if x.is_cuda:
        _on_gpu(_weighted_sum(len(others)), x, weight, *weights, *tensors)
        return
    for block, *parts in _blocks(x, *tensors):
        _mix(block, weight, list(zip(weights, parts, strict=True)))


def add_difference(x: torch.Tensor, y: torch.Tensor, s: torch.Tensor, weight: float = 1.0):
    """Set x = x + weight * (y - s)."""
    if x.dtype is torch.bfloat16:
        _add_difference_rounded_once(x, y, s, weight)
        return
    if x.is_cuda:
        _on_gpu(_difference(), x, weight, y, s)
        return
    for block, newer, older in _blocks(x, y, s):
        block.add_(newer - older, alpha=weight)


def add_difference_of_buffers(x: torch.Tensor, y: torch.Tensor, s: torch.Tensor):
    """Set x = x + (y - s) at the places where y differs from s. Elsewhere x is not changed, because y - s would be NaN
    where y and s are the same infinity."""
    x.copy_(torch.where(y == s, x, x + (y - s)))


def _blocks(*tensors):
    if not tensors[0].is_cpu:  # in simulated time tensors have no content
        return [tensors]
    return zip(*(tensor.split(BLOCK) for tensor in tensors), strict=True)


def _mix_rounded_once(x, weight, weights, tensors):
    """Mix models of bfloat16 in float32, and round the result once."""
    if x.is_meta:
        return
    for block, *parts in _blocks(x, *tensors):
        mixed = block.float()
        _mix(mixed, weight, [(other, part.float()) for other, part in zip(weights, parts, strict=True)])
        block.copy_(mixed)


def _add_difference_rounded_once(x, y, s, weight):
    """Compute `add_difference` of models of bfloat16 in float32, and round the result once."""
    if x.is_meta:
        return
    for block, newer, older in _blocks(x, y, s):
        block.copy_(block.float().add_(newer.float() - older.float(), alpha=weight))


def _mix(x, weight, others):
    if len(others) == 1 and weight + others[0][0] == 1:
        x.lerp_(others[0][1], others[0][0])
        return
    if weight != 1:
        x.mul_(weight)
    for other_weight, other in others:
        x.add_(other, alpha=other_weight)


# ---- fused kernels for a GPU


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
    operation = f"x = (T)weight * x{terms}"
    return cupy.ElementwiseKernel(f"float64 weight{weights}{others}", "T x", operation, f"mix_{count}")


@cache
def _difference():
    import cupy

    return cupy.ElementwiseKernel("float64 weight, T y, T s", "T x", "x = x + (T)weight * (y - s)", "add_difference")
