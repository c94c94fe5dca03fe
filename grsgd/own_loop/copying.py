"""Copy of a model that copy.deepcopy cannot copy, because of tensors with an autograd graph or objects such as
locks."""

import copy
import warnings

import torch
from torch.overrides import TorchFunctionMode

from grsgd.models.places import is_dense

OF_MODULES = {"_parameters", "_buffers", "_modules"}
"""Attributes of a module that `shared_in_copy` skips. Tensors can be copied, and `shared_in_copy` visits each submodule
by itself."""


class WithoutGraphs(TorchFunctionMode):
    """Mode in which copy.deepcopy copies a tensor without the tensor's autograd graph. Without this mode, copy.deepcopy
    fails for a module that keeps a tensor with a graph, such as the last loss."""

    def __torch_function__(self, function, types, arguments=(), named=None):
        if function is torch.Tensor.__deepcopy__ and not arguments[0].is_leaf:
            tensor, memo = arguments
            memo[id(tensor)] = copied = tensor.detach().clone()
            return copied
        return function(*arguments, **(named or {}))


def copy_of(model: torch.nn.Module, call: str) -> torch.nn.Module:
    """Return a copy of ``model`` that shares no trained parameter, buffer or autograd graph with ``model``.

    The copy's frozen parameters are objects of their own, in the memory of the model's frozen parameters. Objects that
    cannot be copied, such as a lock or an open file, belong to the model and to the copy. A warning names each of these
    objects. ``call`` is the name of the user's call, with which warnings and errors begin. Raises RuntimeError if the
    model cannot be copied, or if the copy shares trained parameters with the model.
    """
    with WithoutGraphs():
        try:
            copied = copy.deepcopy(model, frozen_in_copy(model))
        except Exception:  # objects of users may raise errors of any class
            try:
                copied = copy.deepcopy(model, shared_in_copy(model, call) | frozen_in_copy(model))
            except Exception as error:
                raise RuntimeError(f"{call}: copy.deepcopy of {type(model).__name__} fails: {error}") from error
    own = {id(p) for p in copied.parameters()}
    if copied is model or any(id(p) in own for p in model.parameters()):
        raise RuntimeError(
            f"{call}: copy.deepcopy of {type(model).__name__} shares parameters with the model: copy them, too"
        )
    return copied


def frozen_in_copy(model: torch.nn.Module) -> dict:
    """Return a memo for copy.deepcopy. With this memo, the copy's frozen parameters lie in the memory of the model's
    frozen parameters."""
    frozen = (p for p in model.parameters() if not p.requires_grad and type(p) is torch.nn.Parameter and is_dense(p))
    return {id(p): torch.nn.Parameter(p.data, requires_grad=False) for p in frozen}


def own_memory(model: torch.nn.Module, tensor: torch.Tensor) -> torch.Tensor:
    """Return ``tensor``. If a frozen parameter of ``model`` lies in the memory of ``tensor``, return a copy of
    ``tensor``. The copy becomes the parameter's memory."""
    for p in model.parameters():
        if not p.requires_grad and p.data_ptr() == tensor.data_ptr() and p.shape == tensor.shape:
            p.data = p.data.clone()
            return p.data
    return tensor


def shared_in_copy(model: torch.nn.Module, call: str) -> dict:
    """Return a memo for copy.deepcopy, with which the copy shares the attributes of ``model`` that cannot be copied."""
    shared: dict = {}
    modules = {id(module): module for module in model.modules()}  # copy.deepcopy does not copy objects in its memo
    for name, module in model.named_modules():
        for key, value in vars(module).items():
            if key in OF_MODULES:
                continue
            for place, part in parts_of(key, value):
                try:
                    copy.deepcopy(part, modules | shared)
                except Exception as error:
                    shared[id(part)] = part
                    where = f"{name}.{place}".lstrip(".")
                    said = f"{call}: the copy shares {where!r} with the model: {error}"
                    warnings.warn(said, RuntimeWarning, stacklevel=8)
    return shared


def parts_of(key: str, value) -> list[tuple[str, object]]:
    """Return the parts of a module's attribute that are copied one by one, each with its name. The parts of a
    dictionary or list are its entries. An attribute of another type is one part."""
    if type(value) is dict:
        return [(f"{key}[{each!r}]", part) for each, part in value.items()]
    if type(value) is list:
        return [(f"{key}[{index}]", part) for index, part in enumerate(value)]
    return [(key, value)]
