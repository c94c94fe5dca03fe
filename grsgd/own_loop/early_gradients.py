"""Gradients of a user's own loop, for algorithms that send some gradients during the backward pass, before
``step()``."""

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
"""Number of consecutive steps with gradients that were sent too early, after which a rank sends no gradients early any
more."""
TOO_EARLY = (
    "gradients were changed after buckets of them had been sent, so step() sends all gradients again: put all but the "
    "last "
    "backward pass of a step into `with optimizer.no_sync():`, and call optimizer.synchronize() before clipping"
)


class Sent(NamedTuple):
    """A gradient that was sent, and torch's count of the gradient's changes at the time of sending. ``norm`` is the
    gradient's norm at the time of sending, or None if norms are not compared."""

    gradient: torch.Tensor
    version: int
    norm: float | None

    def was_replaced_or_changed(self, found: torch.Tensor | None) -> bool:
        """Return whether ``found`` is another tensor than the gradient that was sent, or torch has counted a change of
        the gradient since it was sent."""
        return found is not self.gradient or found._version != self.version

    def has_other_norm(self) -> bool:
        """Return whether the gradient's norm has changed since it was sent. Torch counts no change made through
        ``p.grad.data``, NumPy or GradScaler, but the norm shows such a change."""
        return self.norm is not None and norm_of(self.gradient) != self.norm


def norm_of(gradient: torch.Tensor) -> float:
    """Return the norm of ``gradient``, or -1 in place of NaN, because two NaN do not compare as equal."""
    wide = torch.float32 if gradient.dtype.itemsize == 2 else None
    norm = torch.linalg.vector_norm(gradient.detach(), dtype=wide).item()
    return norm if norm == norm else -1.0


class EarlyGradients(Gradients):
    """Gradients that the backward pass copies to ``flat`` one by one. After copying the gradient of parameter number i,
    the backward pass calls ``ready(i)``. `collect` copies the gradients that are still missing.

    A change that the script makes after a gradient was sent, such as clipping or another backward pass, does not reach
    the other ranks. So the last number in ``flat`` is 1 if this rank has changed a gradient after sending it. Each rank
    gets the sum of these last numbers over all ranks. If this sum is not 0, all ranks send all gradients again. So
    `step` applies the same gradients with and without buckets.

    Changes that torch does not count are looked for only in the first steps. A rank that finds a change which torch
    does not count sends no gradients early any more.

    The model may still use the last step's gradients while gradients of the next step are sent. So gradients are sent
    from two buffers in alternation, ``place`` and ``_other``.
    """

    more = 1

    def __init__(self, replica: Replica):
        super().__init__(replica)
        self.ready: Callable[[int], None] = lambda i: None
        self._other = GradientPlace.of(self.flat.like(), replica)
        self._is_given = False
        """Whether the model's present gradients (``p.grad``) are possibly views of ``place``."""
        self._is_open = self._is_held_back = False
        """Whether gradients are sent before `collect` in this step, and whether the present backward pass is within
        ``no_sync``."""
        self._sent: list[Sent | None] = [None] * len(replica.trained)
        """The gradient of each parameter that was sent early in the present step, or None."""
        self._early_steps = 0
        """Number of steps in which this rank sent gradients early."""
        self._changes_unseen = False
        """Whether the script was found to change gradients in a way that torch's count of changes does not show."""
        self._is_in_vain = False
        self._in_vain = 0
        """Number of consecutive steps, up to the last step, with gradients that were sent too early."""
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
        """Send gradients from the other of the two buffers from now on, if the model possibly still uses the gradients
        in ``place``."""
        if self._is_given:
            self.place, self._other = self._other, self.place
            self.replica.grads = self.flat
            self._is_given = False

    def _finished(self, i: int, p: torch.nn.Parameter):
        """Copy the gradient of parameter ``p``, which has number ``i``, into ``place`` and report it as ready. Torch
        calls this hook when the backward pass has finished the gradient."""
        is_wanted = self._is_open and not self._is_held_back and self._sent[i] is None
        if not is_wanted or p.grad.layout is not torch.strided:  # `collect` raises an error for sparse gradients
            return
        with torch.no_grad():  # a gradient made with create_graph=True has an autograd graph
            self.place.views[i].copy_(p.grad)
        self._sent[i] = Sent(
            p.grad, p.grad._version, norm_of(p.grad) if self._early_steps < NOTICING_STEPS else None
        )
        self.ready(i)

    def collect(self):
        """Copy the remaining gradients into ``flat``, and note whether gradients that were sent early have changed
        since.

        Raises RuntimeError for a sparse gradient. Raises RuntimeError if the memory of a gradient in ``flat`` was
        replaced.
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
        """Finish the gradient sums that a backward pass on any rank has begun, if no step followed the backward pass.
        All ranks must run this schedule (a generator that a driver runs)."""
        begun = np.array([float(self.has_sent)])
        yield from halving_doubling_allreduce(comm, begun)
        if begun[0]:
            self.begin()  # use the buffer that does not hold the last step's gradients
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
