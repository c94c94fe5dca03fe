"""Base class of distributed optimizers, which reads most attributes from the wrapped torch optimizer and refuses some
methods."""

import torch

from grsgd.own_loop.checks import check_groups


class WrappingOptimizer(torch.optim.Optimizer):
    """Optimizer that takes its parameter groups, state, hooks and further attributes from a wrapped optimizer,
    ``self.optimizer``.

    A public attribute that this class does not have is read and set in the wrapped optimizer, for example ``train()``
    of schedule-free optimizers. Methods other than ``step()`` that take a step raise AttributeError, because no other
    rank would learn of the step.
    """

    optimizer: torch.optim.Optimizer
    model: torch.nn.Module
    """Model that the wrapped optimizer trains."""
    is_made = False
    """Whether the distributed optimizer is complete. An assignment to an attribute that this class does not have then
    goes to the wrapped optimizer."""

    @property
    def param_groups(self) -> list[dict]:
        return self.optimizer.param_groups

    @param_groups.setter
    def param_groups(self, groups: list[dict]):
        check_groups(self.model, groups, type(self.optimizer).__name__)
        self.optimizer.param_groups = groups

    @property
    def state(self):
        return self.optimizer.state

    @state.setter
    def state(self, state):
        self.optimizer.state = state

    @property
    def defaults(self) -> dict:
        return self.optimizer.defaults

    @defaults.setter
    def defaults(self, defaults: dict):
        self.optimizer.defaults = defaults

    def __getattr__(self, name: str):  # called for attributes that this class does not have
        if name.startswith("_") or "optimizer" not in vars(self):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        found = getattr(self.optimizer, name)
        if "step" in name and callable(found):
            raise AttributeError(
                f"{type(self.optimizer).__name__}.{name}() would change the model without the other ranks: give "
                f"distribute() the inner optimizer, and call {name}() of the outer optimizer"
            )
        return found

    def __setattr__(self, name: str, value):
        is_here = name in vars(self) or name.startswith("_") or hasattr(type(self), name) or not self.is_made
        object.__setattr__(self if is_here or not hasattr(self.optimizer, name) else self.optimizer, name, value)

    def register_state_dict_pre_hook(self, hook, prepend=False):
        return self.optimizer.register_state_dict_pre_hook(self._given_this(hook), prepend)

    def register_state_dict_post_hook(self, hook, prepend=False):
        return self.optimizer.register_state_dict_post_hook(self._given_this(hook), prepend)

    def register_load_state_dict_pre_hook(self, hook, prepend=False):
        return self.optimizer.register_load_state_dict_pre_hook(self._given_this(hook), prepend)

    def register_load_state_dict_post_hook(self, hook, prepend=False):
        return self.optimizer.register_load_state_dict_post_hook(self._given_this(hook), prepend)

    def _given_this(self, hook):
        """Return a hook for the wrapped optimizer which calls ``hook`` with this optimizer as the first argument."""
        return lambda _, *arguments: hook(self, *arguments)

    def add_param_group(self, param_group):
        raise ValueError("add all parameters to the optimizer before distribute()")

    def __reduce_ex__(self, protocol):
        raise TypeError("a distributed optimizer cannot be copied or saved: save its state_dict()")
