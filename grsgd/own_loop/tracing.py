"""Decorator for methods that exchange messages. Torch executes a decorated method at once, and does not trace,
transform or replay the method."""

from collections.abc import Callable
from functools import wraps

import torch
from torch._C import _functorch as functorch

MODES = [getattr(torch._C._TorchDispatchModeKey, name) for name in ("FAKE", "PROXY", "FUNCTIONAL")]
"""Torch's dispatch modes that only record operations, such as FakeTensorMode and make_fx. In these modes, tensors may
be without content."""


def traced_by() -> str | None:
    """Return the name of the tracer, transform or CUDA graph that records this thread's torch operations. Return None
    if torch executes the operations.

    `torch.compile` is not looked for, because it never traces code within `untraced` methods. A call of this function
    takes half a microsecond.
    """
    if is_transformed():
        return "a transform of torch.func"
    if torch._C._get_tracing_state() is not None:
        return "torch.jit.trace"
    if torch._C._len_torch_dispatch_stack() and any(map(torch._C._get_dispatch_mode, MODES)):
        return "make_fx, torch.export or FakeTensorMode"
    return "a CUDA graph" if captured() else None


def is_transformed() -> bool:
    """Return whether this thread is within a transform of `torch.func`. `torch.compile` can trace this function."""
    return functorch.peek_interpreter_stack() is not None


def captured() -> bool:
    """Return whether a CUDA graph captures the GPU work of this thread."""
    return torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()


def untraced(method: Callable) -> Callable:
    """Return ``method`` in a form that `torch.compile` calls without compiling, and that leaves torch's inference mode.

    The returned method raises RuntimeError if another tracer, transform or capture of torch is active (`traced_by`).
    """

    @wraps(method)
    def executed(self, *arguments, **named):
        by = traced_by()
        if by is not None:
            raise RuntimeError(
                f"optimizer.{method.__name__}() in {by}: this call exchanges messages with other ranks, which cannot "
                "be traced, transformed or replayed; make the call outside"
            )
        if torch.is_inference_mode_enabled():  # a tensor made in inference mode cannot be changed outside of this mode
            with torch.inference_mode(False):
                return method(self, *arguments, **named)
        return method(self, *arguments, **named)

    hidden = torch.compiler.disable(executed)

    @wraps(method)
    def way_in(self, *arguments, **named):
        if torch.compiler.is_dynamo_compiling():  # true while torch.compile traces this call
            return hidden(self, *arguments, **named)
        return executed(self, *arguments, **named)

    return way_in
