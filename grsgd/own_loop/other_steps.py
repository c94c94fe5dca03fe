"""Errors for optimizer steps by which a script would train a distributed model on one rank alone."""

from collections.abc import Callable
from functools import wraps

import torch
from torch.optim import optimizer as torchs

from grsgd.training import unwrapped

_watching: list["OtherSteps"] = []


class OtherSteps:
    """Watch over every step of a torch optimizer in this process, until ``remove()``.

    ``optimizer`` was given to `distribute`; if the script itself steps it, RuntimeError is raised before the step.
    Another optimizer may have parameters of the model that ``optimizer`` lacks, or may wrap the distributed optimizer
    and have all parameters. RuntimeError is raised after a step of another optimizer under two conditions. The step
    contained no distributed step, and it changed parameters of ``optimizer`` or applied gradients of this rank alone,
    which are not the mean gradient.

    Parameters
    ----------
    trained
        The parameters of the model that are trained.
    steps
        Function that returns the number of distributed steps taken.
    is_own
        Function that returns whether the present gradients belong to this rank alone, and will be averaged.
    """

    def __init__(self, optimizer, trained: list[torch.nn.Parameter], steps: Callable, is_own: Callable):
        self.optimizer, self.steps, self.is_own = optimizer, steps, is_own
        self._trained = {id(p) for p in trained}
        self._begun: dict[int, tuple] = {}
        """Results of `_state` at the beginning of the steps of other optimizers that are under way, by the optimizer's
        ``id``."""
        self._hooks = [
            torchs.register_optimizer_step_pre_hook(unwrapped.unseen(self._before)),
            torchs.register_optimizer_step_post_hook(unwrapped.unseen(self._after)),
        ]
        if not getattr(type(optimizer).step, "hooked", False):
            notice_steps_of(type(optimizer))
        _watching.append(self)

    def remove(self):
        """Allow any optimizer to step from now on."""
        for hook in self._hooks:
            hook.remove()
        _watching[:] = [other for other in _watching if other is not self]

    def refuse(self, optimizer):
        """Raise RuntimeError if ``optimizer`` was given to `distribute`, and the script steps it."""
        if optimizer is self.optimizer and not unwrapped.is_under_way():
            raise RuntimeError(
                f"step() of the {type(optimizer).__name__} that was given to distribute(): no other rank learns of it; "
                "call step() of the optimizer that distribute() returned"
            )

    def _before(self, optimizer, arguments, named):
        self.refuse(optimizer)
        if not unwrapped.is_under_way():
            self._begun[id(optimizer)] = self._state(optimizer)

    def _after(self, optimizer, arguments, named):
        steps, versions, is_own = self._begun.pop(id(optimizer), (0, {}, False))
        if self._trained.isdisjoint(versions) or self.steps() > steps or not has_changed(optimizer, versions):
            return
        name = type(optimizer).__name__
        if any(id(p) in versions for group in self.optimizer.param_groups for p in group["params"]):
            raise RuntimeError(
                f"step() of another optimizer, {name}, with parameters that distribute() trains: no other rank learns "
                "of it; call step() of the optimizer that distribute() returned, or train a copy of the model"
            )
        if is_own:
            raise RuntimeError(
                f"step() of another optimizer, {name}, with gradients of this rank alone: call it after step() or "
                "synchronize() of the optimizer that distribute() returned"
            )

    def _state(self, optimizer) -> tuple[int, dict[int, int], bool]:
        """Return the number of steps, `versions_of` an optimizer, and whether the gradients are this rank's own."""
        return self.steps(), versions_of(optimizer), self.is_own()


def versions_of(optimizer) -> dict[int, int]:
    """Return torch's count of the changes of each parameter, by the parameter's ``id``."""
    return {id(p): p._version for group in optimizer.param_groups for p in group["params"]}


def has_changed(optimizer, versions: dict[int, int]) -> bool:
    """Return whether parameters have changed since ``versions`` were counted; True for fused optimizers, whose changes
    torch does not count."""
    return any(group.get("fused") for group in optimizer.param_groups) or versions_of(optimizer) != versions


def notice_steps_of(cls: type):
    """Wrap ``step`` of an optimizer class that does not call torch's step hooks, so that `OtherSteps` sees its
    steps."""
    step = cls.step
    if hasattr(step, "is_noticed"):
        return

    @torch.compiler.disable
    def look(optimizer):
        for other in list(_watching):
            other.refuse(optimizer)

    @wraps(step)
    def noticed(self, *arguments, **named):
        look(self)
        return step(self, *arguments, **named)

    noticed.is_noticed = True
    cls.step = noticed
