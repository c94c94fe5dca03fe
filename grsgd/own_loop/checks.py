"""Checks of the arguments that a user's script gives to `distribute`, and checks of its model in every step."""

import inspect
import warnings
from collections.abc import Iterable

import torch

from grsgd.algorithms.base import Algorithm
from grsgd.data.digest import digest_of
from grsgd.job.alike import check_alike, facts_of_model
from grsgd.models.replica import Replica
from grsgd.outside import attributes_of

WRAPPED_ALREADY = ("DistributedDataParallel", "FullyShardedDataParallel")
"""Names of torch's classes that train a module on several processes, so that `distribute` cannot train their
objects."""


def check_arguments(model, optimizer, algorithm):
    """Raise ValueError if the arguments of `distribute` are not a model, an optimizer and the name of an algorithm."""
    if isinstance(optimizer, torch.nn.Module) and hasattr(model, "param_groups"):
        raise ValueError("the optimizer comes after the model: distribute(model, optimizer, algorithm)")
    if not isinstance(model, torch.nn.Module):
        several = isinstance(model, Iterable) and not isinstance(model, str)
        hint = "; join several modules in one, by torch.nn.ModuleList" if several else ""
        raise ValueError(f"the model is {kind_of(model)}: must be a torch.nn.Module{hint}")
    if isinstance(optimizer, type):
        raise ValueError(f"the optimizer is a class: give an object, {optimizer.__name__}(model.parameters(), ...)")
    if not hasattr(optimizer, "param_groups") or not callable(getattr(optimizer, "step", None)):
        several = isinstance(optimizer, tuple | list | dict)
        hint = "; of several optimizers give one, and step the others after it" if several else ""
        raise ValueError(f"the optimizer is {kind_of(optimizer)}: must be a torch.optim.Optimizer{hint}")
    if not isinstance(algorithm, str):
        raise ValueError(f"the algorithm is {kind_of(algorithm)}: must be a name that `grsgd algorithms` lists")
    names = {cls.__name__ for cls in type(model).__mro__}
    for name in names.intersection(WRAPPED_ALREADY):
        raise ValueError(
            f"the model is a {name}, which trains it with other processes itself: give distribute() its module"
        )


def kind_of(thing) -> str:
    """Return words for an error message that say of which type ``thing`` is, such as "of type int"."""
    if thing is None:
        return "None"
    return f"the class {thing.__name__}" if isinstance(thing, type) else f"of type {type(thing).__name__}"


def check_same_arguments(mpi, replica: Replica, algorithm: type[Algorithm], options, seed: int, seconds: float):
    """Raise SetupError on all ranks if the ranks gave different models, options or seeds to `distribute`. All ranks
    must call this function."""
    outside = [tensor.nbytes for tensor in replica.outside()]
    sizes = {
        "the number of values in buffers": replica.buffers.array.size,
        "the bytes of frozen parameters and other buffers": sum(outside),
        "the digest of the sizes of frozen parameters and other buffers": digest_of(outside),
    }
    arguments = {
        **{f"the option {name} of {algorithm.name}": f"{value}" for name, value in options.model_dump().items()},
        "the sha256 of the algorithm's file": attributes_of("algorithm", algorithm)["algorithm_sha256"],
        "the seed given to distribute()": seed,
    }
    cure = "all ranks must call distribute() with the same model, algorithm, options and seed"
    check_alike(mpi, lambda: facts_of_model(replica.model) | sizes | arguments, cure, seconds)


def check_optimizer(model: torch.nn.Module, optimizer: torch.optim.Optimizer, sends_gradients: bool):
    """Raise ValueError if ``optimizer`` cannot train ``model`` together with other ranks."""
    name = type(optimizer).__name__
    if isinstance(optimizer, torch.optim.LBFGS):
        raise ValueError("LBFGS calls its closure several times per step; distribute() takes optimizers that need none")
    if isinstance(optimizer, torch.optim.SparseAdam) and sends_gradients:
        raise ValueError("SparseAdam needs sparse gradients; this algorithm sends gradients, and only dense gradients")
    if hasattr(optimizer, "first_step") and hasattr(optimizer, "second_step"):
        inside = next(
            (key for key, value in vars(optimizer).items() if hasattr(value, "param_groups")), "base_optimizer"
        )
        raise ValueError(
            f"{name} takes two gradients per step, and other ranks get only the second: distribute its inner "
            f"optimizer, optimizer.{inside} = grsgd.distribute(model, optimizer.{inside}, ...), and step {name}"
        )
    if needs_closure(optimizer):
        raise ValueError(f"step() of {name} needs a closure; distribute() takes optimizers that need none")
    check_groups(model, optimizer.param_groups, name)


def needs_closure(optimizer) -> bool:
    """Return whether ``step()`` of the optimizer cannot be called without its argument, the closure."""
    try:
        inspect.signature(type(optimizer).step).bind(optimizer)  # a scheduler replaces step() of objects
    except TypeError:
        return True
    except ValueError:  # the method has no signature
        return False
    return False


def check_groups(model: torch.nn.Module, groups: list[dict], name: str):
    """Raise ValueError if the groups of the optimizer called ``name`` have parameters that do not belong to
    ``model``."""
    models = {id(p) for p in model.parameters()}
    others = [tuple(p.shape) for group in groups for p in group["params"] if id(p) not in models]
    if others:
        raise ValueError(
            f"{len(others)} of the parameters of {name} are not the model's (the first has shape {others[0]}): "
            "give distribute() one module that holds all parameters of the optimizer"
        )


class InPlace:
    """Check that no module, parameter or buffer of the replica's model was replaced since training began. Ranks
    exchange only the replica's flat arrays. A tensor that replaced a parameter is outside of the flat arrays.

    The check reads the modules' own tables of parameters and buffers, which takes 0.1 to 0.2 microseconds per
    parameter.
    """

    def __init__(self, replica: Replica):
        modules = list(replica.model.named_modules())
        self._modules = [
            (prefix, module, tuple(module._modules.values()), len(module._parameters)) for prefix, module in modules
        ]
        trained = {id(p) for p in replica.trained}
        self._parameters = entries((prefix, module._parameters) for prefix, module in modules)
        self._requires = [table[key].requires_grad for _, table, key in self._parameters]
        self._trained = [entry for entry in self._parameters if id(entry[1][entry[2]]) in trained]
        self._addresses = [table[key].data_ptr() for _, table, key in self._trained]
        self._begin = replica.buffers.tensor.data_ptr()
        buffers = entries((prefix, module._buffers) for prefix, module in modules)
        flat = {id(buffer) for buffer in replica.in_buffers()}
        self._buffers = [entry for entry in buffers if id(entry[1][entry[2]]) in flat]
        self._places = [table[key].data for _, table, key in self._buffers]
        """Views of the array of buffers that the ranks average, one view for each buffer."""
        self._buffer_addresses = [place.data_ptr() for place in self._places]
        self._reshaped: set[str] = set()

    def check(self):
        """Copy each buffer that a module has replaced into the memory of the old buffer. Some modules replace the
        buffers of their statistics.

        Raises RuntimeError if trained parameters have new memory, if other parameters than before require a gradient,
        or if modules or parameters were added, removed or replaced.
        """
        try:
            moved = [table[key].data_ptr() for _, table, key in self._trained] != self._addresses
            others = [table[key].requires_grad for _, table, key in self._parameters] != self._requires
        except (KeyError, AttributeError):  # a parameter was removed or is None
            moved = others = True
        if moved or others:
            self._explain()
        for prefix, module, children, count in self._modules:
            if tuple(module._modules.values()) != children or len(module._parameters) != count:
                raise RuntimeError(
                    f"module {prefix or type(module).__name__!r} has got other modules or parameters: the model "
                    "must keep its parts after distribute(); call finish(), then distribute() again"
                )
        for (name, table, key), place, address in zip(self._buffers, self._places, self._buffer_addresses, strict=True):
            found = table.get(key)
            if found is None or found.data_ptr() == address:
                continue
            if found.shape == place.shape:
                table[key] = place.copy_(found.detach())
            elif name not in self._reshaped:
                self._reshaped.add(name)
                warnings.warn(
                    f"buffer {name!r} has another shape than at distribute(): it is no longer averaged", stacklevel=7
                )

    def buffers_in(self, flat: torch.Tensor) -> list[tuple[str, torch.Tensor]]:
        """Return the name of each buffer that the ranks average, and a view of it in ``flat``, an array of all
        buffers."""
        begins = [(place.data_ptr() - self._begin) // place.element_size() for place in self._places]
        parts = [
            flat[begin : begin + place.numel()].view(place.shape)
            for begin, place in zip(begins, self._places, strict=True)
        ]
        return [(name, part) for (name, _, _), part in zip(self._buffers, parts, strict=True)]

    def _explain(self):
        for (name, table, key), address in zip(self._trained, self._addresses, strict=True):
            if table.get(key) is None:
                raise RuntimeError(f"parameter {name!r} was taken from the model after distribute()")
            if table[key].data_ptr() != address:
                raise RuntimeError(
                    f"parameter {name!r} was given new memory after distribute() (model.to(), p.data = ..., "
                    "load_state_dict(assign=True), ...): do this before distribute(), or write into the old memory "
                    "with "
                    "p.data.copy_(); in place of share_memory(), share a copy of the model"
                )
        for (name, table, key), required in zip(self._parameters, self._requires, strict=True):
            if table.get(key) is None or table[key].requires_grad != required:
                what = "taken away" if table.get(key) is None else "frozen" if required else "unfrozen"
                raise RuntimeError(
                    f"parameter {name!r} was {what}: the trained parameters must stay the same after distribute(); "
                    "call finish(), then distribute() again"
                )


def entries(tables) -> list[tuple[str, dict, str]]:
    """Return (full name, table, key) of every tensor in the modules' tables of parameters or buffers. Entries that are
    None are left out."""
    return [
        (f"{prefix}.{key}".lstrip("."), table, key)
        for prefix, table in tables
        for key, tensor in table.items()
        if tensor is not None
    ]
