"""Errors for optimizer steps with which a script would change a distributed model on one rank alone."""

from collections.abc import Callable
from functools import wraps

import torch
from torch.optim import optimizer as torchs

from grsgd.training import unwrapped

_watching: list["OtherSteps"] = []


class OtherSteps:
    """Check of every step of a torch optimizer in this process, until ``remove()`` is called.

    ``optimizer`` was given to `distribute`. If the script itself calls ``step()`` of ``optimizer``, RuntimeError is
    raised before the step.

    Another optimizer may have parameters of the model that ``optimizer`` lacks. Another optimizer may also wrap the
    distributed optimizer and have all parameters. RuntimeError is raised after a step of another optimizer if the step
    contained no distributed step, and if one of two conditions holds. Either the step changed parameters of
    ``optimizer``, or the step applied gradients of this rank alone in place of the mean gradient.

    Parameters
    ----------
    trained
        Trained parameters of the model.
    steps
        Function that returns the number of distributed steps.
    is_own
        Function that returns whether the gradients are this rank's own, before they are averaged.
    """

    def __init__(self, optimizer, trained: list[torch.nn.Parameter], steps: Callable, is_own: Callable):
        self.optimizer, self.steps, self.is_own = optimizer, steps, is_own
        self._trained = {id(p) for p in trained}
        self._begun: dict[int, tuple] = {}
        """Results of `_state` at the beginning of other optimizers' steps, for the steps that are under way, by the
        optimizer's ``id``."""
        self._hooks = [
            torchs.register_optimizer_step_pre_hook(unwrapped.unseen(self._before)),
            torchs.register_optimizer_step_post_hook(unwrapped.unseen(self._after)),
        ]
        if not getattr(type(optimizer).step, "hooked", False):
            notice_steps_of(type(optimizer))
        _watching.append(self)

    def remove(self):
        """Allow all optimizers to step from now on."""
        for hook in self._hooks:
            hook.remove()
        _watching[:] = [other for other in _watching if other is not self]

    def refuse(self, optimizer):
        """Raise RuntimeError if ``optimizer`` was given to `distribute` and the script itself calls its ``step()``."""
        if optimizer is self.optimizer and not unwrapped.is_under_way():
            raise RuntimeError(
                f"step() of the {type(optimizer).__name__} that was given to distribute(): no other rank learns of "
                f"this step; "
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
                "of this step; call step() of the optimizer that distribute() returned, or train a copy of the model"
            )
        if is_own:
            raise RuntimeError(
                f"step() of another optimizer, {name}, with gradients of this rank alone: call it after step() or "
                "synchronize() of the optimizer that distribute() returned"
            )

    def _state(self, optimizer) -> tuple[int, dict[int, int], bool]:
        """Return the number of distributed steps, the result of `versions_of`, and whether the gradients are not
        averaged yet."""
        return self.steps(), versions_of(optimizer), self.is_own()


def versions_of(optimizer) -> dict[int, int]:
    """Return torch's count of the changes of each of the optimizer's parameters, by the parameter's ``id``."""
    return {id(p): p._version for group in optimizer.param_groups for p in group["params"]}


def has_changed(optimizer, versions: dict[int, int]) -> bool:
    """Return whether parameters have changed since ``versions`` were counted. Return True for fused optimizers, because
    torch does not count their changes."""
    return any(group.get("fused") for group in optimizer.param_groups) or versions_of(optimizer) != versions


def notice_steps_of(cls: type):
    """Wrap ``step`` of an optimizer class that does not call torch's step hooks. The wrapper lets `OtherSteps` see each
    step."""
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
