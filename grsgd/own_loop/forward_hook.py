"""How a forward pass in training is noticed, in a loop that grsgd did not write."""

from collections.abc import Callable, Mapping

import torch


class BeforeForward:
    """Calls ``call(samples)`` before every forward pass in training; to be registered with ``with_kwargs=True``.

    ``samples``: the length of the first tensor that the model is given, along its first dimension; None without one.
    A copy, as in a copied or saved model, calls nothing. In a compiled model ``call`` is left out of what is compiled.
    """

    def __init__(self, call: Callable[[int | None], None] | None = None):
        self.call = call
        self._not_compiled = None if call is None else torch.compiler.disable(call)  # a call of it takes microseconds

    def __call__(self, model, inputs, named_inputs):
        if self.call is not None and model.training and torch.is_grad_enabled():
            call = self._not_compiled if torch.compiler.is_compiling() else self.call
            if inputs and isinstance(inputs[0], torch.Tensor):  # nearly always
                call(length(inputs[0]))
            else:
                call(length((inputs, named_inputs)))

    def __reduce__(self):
        return BeforeForward, ()


def length(inputs) -> int | None:
    """Return the length of the first tensor in nested tuples, lists and mappings; None if there is none."""
    if isinstance(inputs, torch.Tensor):
        return inputs.shape[0] if inputs.ndim else None
    if isinstance(inputs, Mapping):
        inputs = inputs.values()
    elif not isinstance(inputs, tuple | list):
        return None
    return next((found for found in map(length, inputs) if found is not None), None)
