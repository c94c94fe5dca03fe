"""Checks of a script that grsgd did not write, before training and in every step."""

import warnings

import torch

from grsgd.models.replica import Replica


def check_optimizer(model: torch.nn.Module, optimizer: torch.optim.Optimizer, sends_gradients: bool):
    """Raise ValueError if ``optimizer`` cannot train ``model`` together with other ranks."""
    name = type(optimizer).__name__
    if isinstance(optimizer, torch.optim.LBFGS):
        raise ValueError("LBFGS calls its closure several times a step; distribute() takes optimizers that need none")
    if isinstance(optimizer, torch.optim.SparseAdam) and sends_gradients:
        raise ValueError("SparseAdam needs sparse gradients; this algorithm sends gradients, and dense ones only")
    models = {id(p) for p in model.parameters()}
    others = [tuple(p.shape) for group in optimizer.param_groups for p in group["params"] if id(p) not in models]
    if others:
        raise ValueError(
            f"{len(others)} of the parameters of {name} are not the model's (the first has shape {others[0]}): "
            "give distribute() one module that holds all that is trained"
        )


class InPlace:
    """Sees to it that ``replica``'s model stays what and where it was: ranks exchange the flat arrays, not the model.

    It looks at the modules' own tables, at 0.1 to 0.2 microseconds a parameter.
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
        """In the array that the ranks average."""
        self._buffer_addresses = [place.data_ptr() for place in self._places]
        self._reshaped: set[str] = set()

    def check(self):
        """Put back buffers that were replaced, as some modules do with their statistics.

        Raises RuntimeError if trained parameters have new memory, others require a gradient than before, or the model
        has other modules or more parameters.
        """
        try:
            moved = [table[key].data_ptr() for _, table, key in self._trained] != self._addresses
            others = [table[key].requires_grad for _, table, key in self._parameters] != self._requires
        except (KeyError, AttributeError):  # taken away, or None
            moved = others = True
        if moved or others:
            self._explain()
        for prefix, module, children, count in self._modules:
            if tuple(module._modules.values()) != children or len(module._parameters) != count:
                raise RuntimeError(
                    f"module {prefix or type(module).__name__!r} has got other modules or parameters: what is trained "
                    "must not change after distribute(); call finish(), then distribute() again"
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
                    f"buffer {name!r} has another shape than at distribute(): it is averaged no more", stacklevel=7
                )

    def buffers_in(self, flat: torch.Tensor) -> list[tuple[str, torch.Tensor]]:
        """Return name and view of all buffers that the ranks average, in an array like that in which they lie."""
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
                    "load_state_dict(assign=True), ...): do that before, or write into the old with p.data.copy_(); "
                    "in place of share_memory(), share a copy of the model"
                )
        for (name, table, key), required in zip(self._parameters, self._requires, strict=True):
            if table.get(key) is None or table[key].requires_grad != required:
                what = "taken away" if table.get(key) is None else "frozen" if required else "unfrozen"
                raise RuntimeError(
                    f"parameter {name!r} was {what}: what is trained must not change after distribute(); "
                    "call finish(), then distribute() again"
                )


def entries(tables) -> list[tuple[str, dict, str]]:
    """(full name, table, key) of everything in the tables of modules that is not None."""
    return [
        (f"{prefix}.{key}".lstrip("."), table, key)
        for prefix, table in tables
        for key, tensor in table.items()
        if tensor is not None
    ]
