"""Creation of the torch optimizer that a configuration names."""

import inspect
from collections.abc import Mapping
from functools import cache

import torch

from grsgd import outside
from grsgd.config.complaints import unknown_key
from grsgd.config.sections import Optimizer
from grsgd.errors import ConfigError
from grsgd.options import check_kind

NOT_FOR_RUNS = {
    torch.optim.LBFGS: "the optimizer computes several gradients per step, but a run computes one",
    torch.optim.SparseAdam: "the optimizer needs sparse gradients, which no model of a run has",
}
"""Classes of torch's optimizers that a run cannot use, with the reason for each class."""


def build_optimizer(wanted: Optimizer, parameters) -> torch.optim.Optimizer:
    """Build the torch optimizer that ``wanted`` describes. Raises ConfigError for an unknown name or an argument that
    the optimizer does not take.

    With ``clip`` or ``clip_value``, the optimizer's ``step()`` clips the gradient before the update. In an algorithm
    that sends gradients, the mean gradient of all ranks is clipped. In an algorithm that sends no gradients, the rank's
    own gradient is clipped.
    """
    classes = optimizers_of_torch()
    if outside.is_outside(wanted.name):
        try:
            cls = outside.load(wanted.name, "optimizers")
        except ConfigError as error:
            raise ConfigError(f"optimizer.name = {error}") from None
    elif wanted.name.lower() in classes:
        cls = classes[wanted.name.lower()]
    else:
        allowed = sorted(name for name, cls in classes.items() if cls not in NOT_FOR_RUNS)
        raise ConfigError(f"optimizer.name = {wanted.name!r}: unknown; allowed: {', '.join(allowed)}, FILE.py:CLASS")
    if cls in NOT_FOR_RUNS:
        raise ConfigError(f"optimizer.name = {wanted.name!r}: {NOT_FOR_RUNS[cls]}")
    arguments = arguments_of(cls)
    allowed = [key for key in arguments if key != "params"]
    for key, value in wanted.options.items():
        if key not in allowed:
            raise ConfigError(unknown_key(f"optimizer.{key}", key, [*allowed, "decay_norms", "clip", "clip_value"]))
        check_kind(f"optimizer.{key}", value, arguments[key].default)
    parameters = list(parameters)
    if not wanted.decay_norms:
        vectors = [p for p in parameters if p.ndim <= 1]
        matrices = [p for p in parameters if p.ndim > 1]
        parameters = [{"params": matrices}, {"params": vectors, "weight_decay": 0.0}]
    try:
        optimizer = never_compiled(cls)(parameters, lr=wanted.lr, **wanted.options)
    except (TypeError, ValueError, RuntimeError) as error:
        given = ", ".join(f"{key} = {value!r}" for key, value in {"lr": wanted.lr, **wanted.options}.items())
        raise ConfigError(f"optimizer {wanted.name} with {given}: {error}") from None
    if wanted.clip is not None or wanted.clip_value is not None:
        optimizer.register_step_pre_hook(lambda *_: clip(optimizer, wanted))
    return optimizer


@cache
def optimizers_of_torch() -> dict[str, type[torch.optim.Optimizer]]:
    """Return a dict from the lower-case name of each optimizer of torch to the optimizer's class."""
    return {
        name.lower(): value
        for name, value in vars(torch.optim).items()
        if is_optimizer(value) and value is not torch.optim.Optimizer
    }


@cache
def arguments_of(cls: type[torch.optim.Optimizer]) -> Mapping[str, inspect.Parameter]:
    """Return the parameters of the constructor of an optimizer class, by name."""
    return inspect.signature(cls).parameters


def is_optimizer(value) -> bool:
    return isinstance(value, type) and issubclass(value, torch.optim.Optimizer)


@cache
def never_compiled(cls: type[torch.optim.Optimizer]) -> type[torch.optim.Optimizer]:
    """Return a subclass of ``cls`` whose methods lack torch's wrappers for `torch.compile`.

    torch's wrappers exclude the optimizer from compilation. The wrappers import torch's compiler, which takes as long
    as the import of torch.
    """
    own = {name: inspect.unwrap(getattr(cls, name)) for name in ("add_param_group", "state_dict", "load_state_dict")}
    own["step"] = torch.no_grad()(inspect.unwrap(cls.step))
    return type(cls.__name__, (cls,), own)


def clip(optimizer: torch.optim.Optimizer, wanted: Optimizer):
    """Clip the gradients of all parameters of ``optimizer``. The L2 norm of all gradients together becomes at most
    ``wanted.clip``. If ``wanted.clip`` is None, each element's magnitude becomes at most ``wanted.clip_value``."""
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    if wanted.clip is not None:
        torch.nn.utils.clip_grad_norm_(parameters, wanted.clip)
    else:
        torch.nn.utils.clip_grad_value_(parameters, wanted.clip_value)
