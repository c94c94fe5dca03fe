"""Hook that notices the forward passes of training in a user's own loop, even if torch compiles the model."""

from collections.abc import Callable, Mapping

import torch
from torch.nn.utils.rnn import PackedSequence

from grsgd.own_loop.tracing import captured, is_transformed, traced_by


class BeforeForward:
    """Hook that calls ``call(samples)`` before every forward pass in training. Register the hook with
    ``with_kwargs=True``.

    ``samples`` is the length of the first dimension of the model's first tensor argument, or None without a tensor. A
    copy of the hook does nothing, so forward passes of a copied or saved model are not counted. In a compiled model,
    ``call`` runs outside of the compiled code.

    The hook does nothing while torch traces or transforms the forward pass, as `torch.func` does. During tracing,
    tensors may be without content, and the call would become part of the trace. Raises RuntimeError while a CUDA graph
    is captured.
    """

    def __init__(self, call: Callable[[int | None], None] | None = None):
        self.call = call
        self._not_compiled = None if call is None else torch.compiler.disable(self._call)  # costs 1 microsecond

    def __call__(self, model, inputs, named_inputs):
        if self.call is not None and model.training and torch.is_grad_enabled():
            if torch.compiler.is_dynamo_compiling():  # true while torch.compile traces this hook
                if not is_transformed():  # in a transform, torch can call no uncompiled function
                    self._not_compiled(inputs, named_inputs)
            else:
                self._call(inputs, named_inputs)

    def _call(self, inputs, named_inputs):
        if traced_by() is not None:
            if captured():
                raise RuntimeError(
                    "a CUDA graph of a distributed model: a replay of the graph would send no gradients to other "
                    "ranks; call the model and backward() outside of the graph"
                )
        elif inputs and isinstance(inputs[0], torch.Tensor):  # tested first, because most models get a tensor
            self.call(length(inputs[0]))
        else:
            self.call(length((inputs, named_inputs)))

    def __reduce__(self):
        return BeforeForward, ()


def length(inputs) -> int | None:
    """Return the length along dimension 0 of the first tensor in ``inputs``, which are nested tuples, lists and
    mappings. Return None if there is no tensor.

    The length of a packed sequence is the number of its sequences.
    """
    left, seen = [inputs], {}
    while left:
        value = left.pop()
        if isinstance(value, PackedSequence):
            return int(value.batch_sizes[0])
        if isinstance(value, torch.Tensor):
            if value.ndim:
                return value.size(0)
        elif isinstance(value, Mapping | tuple | list) and id(value) not in seen:  # a list may contain itself
            seen[id(value)] = value
            left += reversed(list(value.values() if isinstance(value, Mapping) else value))
    return None
