"""Detection of forward passes in a loop that trains a model without calling the model, such as by ``model.loss(x)``."""

from collections.abc import Callable

import torch

from grsgd.own_loop.forward_hook import BeforeForward
from grsgd.own_loop.times import LoopTimes

MAX_LOOKS = 5
"""Largest number of steps in which all submodules get hooks, to find the submodule that the loop calls."""
ADVICE = "if that is not right, give recording() the batch_size"


class Entrances:
    """Submodules that a user's loop calls in place of the model. `Entrances` looks for such submodules after a step
    without a forward pass of the model.

    After a step without a forward pass of the model, all submodules get a hook. The submodule that is called first in
    the next step then represents the model. The forward passes of this submodule give the number of samples and the
    computing time. If the loop calls the model itself, no submodule gets a hook.

    Parameters
    ----------
    times
        Times of the loop. Each forward pass of the submodule calls `LoopTimes.forward`.
    warn
        Function that is called with a sentence for the user if samples are counted at a submodule, or are not counted.
    """

    def __init__(self, model: torch.nn.Module, times: LoopTimes, warn: Callable[[str], None]):
        self._model, self._times, self._warn = model, times, warn
        self._entrances: dict[str, torch.utils.hooks.RemovableHandle] = {}
        self._looking: list[torch.utils.hooks.RemovableHandle] = []
        self._looks = 0
        self._first: str | None = None
        """Name of the submodule that was called first in the present step; None if none was called."""
        self.uncounted = 0
        """Number of steps whose samples are not counted."""
        self._unseen, self._samples = times.unseen_steps, times.totals.samples

    def step_ended(self):
        """Look for the submodule that the loop calls, if the last step had no forward pass of the model."""
        times, samples = self._times, self._times.totals.samples
        if times.unseen_steps > self._unseen:
            self._unseen = times.unseen_steps
            self.uncounted += 1
            self._look()
        else:
            self._end_looking()
            if self._first is not None:
                times.totals.samples = samples = samples + self.uncounted * (samples - self._samples)
                self.uncounted = 0
        self._samples, self._first = samples, None

    def warnings(self) -> list[str]:
        """Return warnings for the run file which name the submodules whose samples were counted in place of the
        model's."""
        return [self._said()] if self._entrances else []

    def close(self):
        """Remove all hooks."""
        self._end_looking()
        for handle in self._entrances.values():
            handle.remove()

    def _look(self):
        self._end_looking()
        if self._looks == MAX_LOOKS:
            return
        self._looks += 1
        if self._looks == MAX_LOOKS:
            self._warn(
                f"{self.uncounted} steps had no forward pass of the model in training mode: neither samples nor "
                "computing time are counted: call model.train(), and the model; give recording() the batch_size"
            )
            return
        for name, part in self._model.named_modules():
            if name and name not in self._entrances:
                self._looking.append(self._hooked(name, part))

    def _hooked(self, name: str, part: torch.nn.Module) -> torch.utils.hooks.RemovableHandle:
        hook = BeforeForward(lambda samples: self._called(name, part, samples))
        return part.register_forward_pre_hook(hook, with_kwargs=True)

    def _called(self, name: str, part: torch.nn.Module, samples: int | None):
        if self._first is None and not self._times.has_forward:
            self._first = name
            if name not in self._entrances:
                self._end_looking()
                self._entrances[name] = self._hooked(name, part)
                self._warn(self._said())
        if name == self._first:
            self._times.forward(samples)

    def _end_looking(self):
        while self._looking:
            self._looking.pop().remove()

    def _said(self) -> str:
        parts = ", ".join(map(repr, self._entrances))
        return (
            f"the model itself was not called: samples and computing time are counted at calls of its part {parts}; "
            f"the first steps are counted with as many samples as the next step; {ADVICE}"
        )
