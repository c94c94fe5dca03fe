"""Calls of torch functions without torch's wrappers for profilers and compilers, if the wrappers have no effect.

Calls without the wrappers save time. torch's wrapper for profilers (``record_function``) takes 20 microseconds per
step. A whole step of a small model takes a millisecond. Some of torch's wrappers load torch's compiler, which takes 1.7
s.
"""

import threading
from collections.abc import Callable

import torch
from torch.autograd import profiler
from torch.optim import optimizer as module

_stepping: set[int] = set()
"""Identifiers of the threads that are now in a call of `step`."""


def step(optimizer: torch.optim.Optimizer):
    """Take a step of ``optimizer``, with the effect of ``optimizer.step()``."""
    wrapped = type(optimizer).step
    thread = threading.get_ident()
    _stepping.add(thread)
    try:
        if not getattr(wrapped, "hooked", False) or "step" in vars(optimizer) or is_watched(optimizer):
            optimizer.step()
        else:
            wrapped.__wrapped__(optimizer)
    finally:
        _stepping.discard(thread)


def is_under_way() -> bool:
    """Return whether this thread is within a call of `step`, directly or in the step of an inner optimizer."""
    return threading.get_ident() in _stepping


def unseen(hook: Callable) -> Callable:
    """Return ``hook``, a hook on optimizer steps, with a mark by which `step` knows that it need not call the hook.
    `torch.compile` does not trace the returned function."""
    hook = torch.compiler.disable(hook)
    hook.may_miss_steps = True
    return hook


def is_watched(optimizer: torch.optim.Optimizer) -> bool:
    """Return whether a profiler or a hook on ``optimizer`` is active, so that ``optimizer.step()`` must be called."""
    # copied to a list, because other threads may register hooks during the loop below
    everywhere = [*module._global_optimizer_pre_hooks.values(), *module._global_optimizer_post_hooks.values()]
    return bool(
        profiler._is_profiler_enabled
        or optimizer._optimizer_step_pre_hooks
        or optimizer._optimizer_step_post_hooks
        or not all(hasattr(hook, "may_miss_steps") for hook in everywhere)
    )


def zero_grad(optimizer: torch.optim.Optimizer, set_to_none: bool):
    """Clear the gradients of all parameters, with the effect of ``optimizer.zero_grad(set_to_none)``."""
    is_torchs = type(optimizer).zero_grad is torch.optim.Optimizer.zero_grad and "zero_grad" not in vars(optimizer)
    if not (set_to_none and is_torchs) or profiler._is_profiler_enabled:
        optimizer.zero_grad(set_to_none)
        return
    for group in optimizer.param_groups:
        for p in group["params"]:
            p.grad = None


def flop_counter():
    """Return torch's counter of floating-point operations. This function does not load torch's compiler, which torch
    uses only to exclude the counter from compilation."""
    from torch.utils import flop_counter as counters

    dispatch = getattr(counters._FlopCounterMode.__torch_dispatch__, "__wrapped__", None)
    if dispatch is not None and not hasattr(dispatch, "__dynamo_disable"):
        dispatch.__dynamo_disable = dispatch
    return counters.FlopCounterMode(display=False)
