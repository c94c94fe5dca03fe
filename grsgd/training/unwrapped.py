"""Calls of torch without what it wraps around them for profilers and compilers, where that does nothing.

A ``record_function`` takes 20 us in the middle of a training, and a small model's step a millisecond. Loading torch's
compiler takes 1.7 s.
"""

import torch
from torch.autograd import profiler
from torch.optim import optimizer as module


def step(optimizer: torch.optim.Optimizer):
    """Do what ``optimizer.step()`` does."""
    wrapped = type(optimizer).step
    if not getattr(wrapped, "hooked", False) or "step" in vars(optimizer) or is_watched(optimizer):
        optimizer.step()
    else:
        wrapped.__wrapped__(optimizer)


def is_watched(optimizer: torch.optim.Optimizer) -> bool:
    """Return whether a profiler, or a hook, is to see the step."""
    return bool(
        profiler._is_profiler_enabled
        or optimizer._optimizer_step_pre_hooks
        or optimizer._optimizer_step_post_hooks
        or module._global_optimizer_pre_hooks
        or module._global_optimizer_post_hooks
    )


def zero_grad(optimizer: torch.optim.Optimizer, set_to_none: bool):
    """Do what ``optimizer.zero_grad(set_to_none)`` does."""
    is_torchs = type(optimizer).zero_grad is torch.optim.Optimizer.zero_grad and "zero_grad" not in vars(optimizer)
    if not (set_to_none and is_torchs) or profiler._is_profiler_enabled:
        optimizer.zero_grad(set_to_none)
        return
    for group in optimizer.param_groups:
        for p in group["params"]:
            p.grad = None


def flop_counter():
    """Return torch's counter of operations, which does not load the compiler only to tell it to leave the counter
    alone."""
    from torch.utils import flop_counter as counters

    dispatch = getattr(counters._FlopCounterMode.__torch_dispatch__, "__wrapped__", None)
    if dispatch is not None and not hasattr(dispatch, "__dynamo_disable"):
        dispatch.__dynamo_disable = dispatch
    return counters.FlopCounterMode(display=False)
