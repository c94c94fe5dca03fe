"""Gradients of a user's own loop, for algorithms that send parts of them before ``step()``."""

import warnings
from collections.abc import Callable
from contextlib import contextmanager
from functools import partial
from typing import NamedTuple

import numpy as np
import torch

from grsgd.algorithms.hooks import schedule_of
from grsgd.comm.allreduce import halving_doubling_allreduce
from grsgd.models.replica import Replica
from grsgd.own_loop.gradients import NOTICING_STEPS, GradientPlace, Gradients, remove

MAX_IN_VAIN = 3
"""Number of consecutive steps with gradients that were sent too early. After this number a rank sends no more gradients
early."""
TOO_EARLY = (
    "gradients were changed after buckets of them had been sent, so all are sent again in step(): put all but the last "
    "backward pass of a step into `with optimizer.no_sync():`, and call optimizer.synchronize() before clipping"
)


class Sent(NamedTuple):
    """Gradient that was sent, and torch's count of the gradient's changes at the time of sending. ``norm`` is the
    gradient's norm at this time, or None if norms are not compared."""

    gradient: torch.Tensor
    version: int
    norm: float | None

    def was_replaced_or_changed(self, found: torch.Tensor | None) -> bool:
        """Return whether ``found`` is another tensor than the gradient that was sent, or torch has counted a change of
        the gradient since it was sent."""
        return found is not self.gradient or found._version != self.version

    def has_other_norm(self) -> bool:
        """Return whether the gradient's norm has changed: torch does not count changes through ``p.grad.data``, NumPy
        and GradScaler."""
        return self.norm is not None and norm_of(self.gradient) != self.norm


def norm_of(gradient: torch.Tensor) -> float:
    """Return the gradient's norm, or -1 in place of NaN, because two NaN do not compare as equal."""
    wide = torch.float32 if gradient.dtype.itemsize == 2 else None
    norm = torch.linalg.vector_norm(gradient.detach(), dtype=wide).item()
    return norm if norm == norm else -1.0


class EarlyGradients(Gradients):
    """Gradients that the backward pass copies to ``flat`` one by one. After the gradient of parameter number i is
    copied, ``ready(i)`` is called. `collect` copies the gradients that are still missing.

    A later change by the script (another backward pass, clipping, ``zero_grad``) does not reach a gradient that was
    sent. So ``flat`` ends with one more number, which is 1 if this rank has changed a gradient after sending it. Each
    rank gets the sum of this number over all ranks; unless the sum is 0, all ranks send all gradients again. So `step`
    applies the same gradients with and without buckets, whatever a script does. Changes that torch does not count are
    looked for only in the first steps; a rank that finds such a change sends nothing early any more.

    While gradients of the next step are sent, the model possibly still uses the gradients of the last step. So
    gradients are sent from two buffers in turn, ``place`` and ``_other``.
    """

    more = 1

    def __init__(self, replica: Replica):
        super().__init__(replica)
        self.ready: Callable[[int], None] = lambda i: None
        self._other = GradientPlace.of(self.flat.like(), replica)
        self._is_given = False
        """Whether the model's present gradients (``p.grad``) are possibly views of ``place``."""
        self._is_open = self._is_held_back = False
        """Whether gradients are sent before `collect` in this step, and whether the present backward pass holds them
        back."""
        self._sent: list[Sent | None] = [None] * len(replica.trained)
        """The gradient of each parameter that was sent in this step, or None."""
        self._early_steps = 0
        """Number of steps in which gradients were sent early."""
        self._changes_unseen = False
        """Whether the script was found to change gradients in a way that torch does not count."""
        self._is_in_vain = False
        self._in_vain = 0
        """Number of the latest consecutive steps with gradients that were sent too early."""
        self._has_warned = False
        self._finishing = [
            p.register_post_accumulate_grad_hook(torch.compiler.disable(partial(self._finished, i)))
            for i, p in enumerate(replica.trained)
        ]

    def begin(self):
        self._leave()
        self._is_open = self._in_vain < MAX_IN_VAIN and not self._changes_unseen

    @contextmanager
    def held_back(self):
        self._is_held_back = True
        try:
            yield
        finally:
            self._is_held_back = False

    def _leave(self):
        """Send gradients from the other buffer from now on, if the model possibly still uses the gradients in
        ``place``."""
        if self._is_given:
            self.place, self._other = self._other, self.place
            self.replica.grads = self.flat
            self._is_given = False

    def _finished(self, i: int, p: torch.nn.Parameter):
        """Copy the gradient of parameter ``p``, number ``i``, into ``place`` and report it as ready, after the backward
        pass has finished it."""
        is_wanted = self._is_open and not self._is_held_back and self._sent[i] is None
        if not is_wanted or p.grad.layout is not torch.strided:  # `collect` checks sparse gradients
            return
        with torch.no_grad():  # gradients made with create_graph=True have an autograd graph
            self.place.views[i].copy_(p.grad)
        self._sent[i] = Sent(
            p.grad, p.grad._version, norm_of(p.grad) if self._early_steps < NOTICING_STEPS else None
        )
        self.ready(i)

    def collect(self):
        """Copy the remaining gradients into ``flat``, and note whether gradients that were sent have changed.

        Raises RuntimeError for a sparse gradient, and if the memory of a gradient in ``flat`` was replaced.
        """
        self._leave()
        for place in (self.place, self._other):
            place.check(self.replica)
        places, found, flags, self._is_in_vain = [], [], [], False
        for p, view, sent in zip(self.replica.trained, self.place.views, self._sent, strict=True):
            gradient = p.grad
            flags.append(gradient is not None)
            if sent is not None:
                is_changed = sent.was_replaced_or_changed(gradient)
                if not is_changed and sent.has_other_norm():
                    is_changed = self._changes_unseen = True
                self._is_in_vain |= is_changed
            elif gradient is None:
                view.zero_()
            else:
                self._check_dense(p)
                places.append(view)
                found.append(gradient)
        with torch.no_grad():
            if found:
                torch._foreach_copy_(places, found)
            self.place.flags.copy_(torch.tensor([*flags, self._is_in_vain], device="cpu"))

    @property
    def has_sent(self) -> bool:
        """Whether gradients of this step were sent, or are about to be sent, before `collect`."""
        return any(sent is not None for sent in self._sent)

    def end_sums(self, comm, algorithm):
        """Schedule, called on all ranks, that ends the sums which a backward pass on any rank has begun, if no step
        followed."""
        begun = np.array([float(self.has_sent)])
        yield from halving_doubling_allreduce(comm, begun)
        if begun[0]:
            self.begin()  # use the buffer that does not have the last step's gradients
            yield from schedule_of(algorithm.reduce)

    def sent_in_vain(self) -> bool:
        if self.has_sent:
            self._early_steps += 1
            self._in_vain = self._in_vain + 1 if self._is_in_vain else 0
        if self._is_in_vain and not self._has_warned:
            self._has_warned = True
            warnings.warn(TOO_EARLY, RuntimeWarning, stacklevel=8)
        self._sent[:] = [None] * len(self._sent)
        self._is_open = False
        return self.place.flags[-1].item() != 0

    def take(self):
        super().take()
        self._is_given = True

    def close(self):
        super().close()
        remove(self._finishing)
