"""Gradients of a user's own loop, for algorithms that send gradients in ``step()``."""

from collections.abc import Callable
from contextlib import contextmanager
from typing import NamedTuple

import torch

from grsgd.models.flat import Flat
from grsgd.models.replica import Replica, views

NOTICING_STEPS, NOTICING_EVERY = 20, 25
"""Numbers of steps for `Gradients.changed`, which looks for changed gradients in each of the first ``NOTICING_STEPS``
steps, and later once per ``NOTICING_EVERY`` steps. Scripts that clip gradients clip them from the first step on."""
CHANGED = (
    "the gradient was changed between backward() and step() (clipping, GradScaler.unscale_): it is this rank's own "
    "until step(); call optimizer.synchronize() before the change, to change the mean of all ranks"
)


class GradientPlace(NamedTuple):
    """Buffer ``flat`` from which gradients are sent. ``flags`` are the numbers after the gradients in ``flat``.
    ``views`` are tensors in ``flat``, one for the gradient of each parameter. Torch counts the changes of each view
    separately. ``addresses`` are the memory addresses of the views at the creation of the buffer."""

    flat: Flat
    flags: torch.Tensor
    views: list[torch.Tensor]
    addresses: list[int]

    @classmethod
    def of(cls, flat: Flat, replica: Replica) -> "GradientPlace":
        size = replica.params.tensor.numel()
        parts = [view.data for view in views(flat.tensor[:size], replica.trained)]
        return cls(flat, flat.tensor[size:], parts, [view.data_ptr() for view in parts])

    def check(self, replica: Replica):
        """Raise RuntimeError if a script has given other memory to one of the gradients in ``views``."""
        found = [view.data_ptr() for view in self.views]
        if found != self.addresses:
            moved = next(i for i, address in enumerate(self.addresses) if found[i] != address)
            name = replica.name_of(replica.trained[moved])
            raise RuntimeError(
                f"the gradient of {name!r} was given new memory (p.grad.data = ...): write into the old memory"
            )


class Gradients:
    """Gradients of the trained parameters. Until they are sent, the gradients stay in the memory that autograd or the
    user chose. A gradient may be None.

    ``flat`` is the buffer that is sent. ``flat`` begins with all gradients of ``replica``, with zeros for missing
    gradients. After the gradients, ``flat`` has one flag per parameter, which is 1 if this rank has a gradient of the
    parameter, else 0. After the sum over all ranks, the flags are the same on all ranks. If no rank has a gradient of a
    parameter, the parameter gets no gradient, and no optimizer changes the parameter.
    """

    more = 0
    """Number of values in the buffer ``flat`` after the parameters' flags."""

    def __init__(self, replica: Replica):
        self.replica = replica
        size = replica.params.tensor.numel() + len(replica.trained) + self.more
        self.place = GradientPlace.of(Flat.zeros(size, replica.dtype, replica.device), replica)
        self._left: list[torch.Tensor | None] = []
        self._versions: list[tuple[int, int] | None] = []
        self._steps = 0
        self._noticed = False
        self._notes = [torch.compiler.disable(self._noting(i)) for i in range(len(replica.trained))]
        """Functions, one per parameter, that store torch's count of the changes of the parameter's gradient."""
        self._noticing: list = []
        """Hooks that call the functions in `_notes`."""
        self._following: list = []
        """Hooks that notice a further backward pass after `take` in the same step."""
        self.forget()
        self._notice()

    @property
    def flat(self) -> Flat:
        return self.place.flat

    def move(self, flat: Flat):
        """Send gradients from ``flat`` from now on. This method replaces `Replica.move_gradients`. Gradients that exist
        already are copied to ``flat`` when they are sent."""
        self.place = GradientPlace.of(flat, self.replica)
        self.replica.grads = flat

    def begin(self):
        """Prepare for the gradients of a new step; called before the step's first backward pass."""

    @contextmanager
    def held_back(self):
        """Hold back the gradients of the backward passes in the block, because more backward passes of the same step
        follow."""
        yield

    def collect(self):
        """Copy into ``flat`` the gradients that are elsewhere in memory.

        Raises RuntimeError for a sparse gradient. Raises RuntimeError if the memory of a gradient in ``flat`` was
        replaced.
        """
        places, found, flags = [], [], []
        self.place.check(self.replica)
        for p, view in zip(self.replica.trained, self.place.views, strict=True):
            gradient = p.grad
            flags.append(gradient is not None)
            if gradient is None:
                view.zero_()
            elif gradient is not view:
                self._check_dense(p)
                places.append(view)
                found.append(gradient)
                if p.dtype == view.dtype:
                    p.grad = view
        with torch.no_grad():  # backward(create_graph=True) makes gradients that have an autograd graph
            if found:
                torch._foreach_copy_(places, found)
            if all(flags):
                self.place.flags.fill_(1.0)
            else:
                self.place.flags.copy_(torch.tensor(flags, device="cpu"))

    def sent_in_vain(self) -> bool:
        """Return whether all ranks have to call `collect` and send the gradients again. Called after the gradients in
        ``flat`` were reduced."""
        return False

    def take(self):
        """Give every parameter its reduced gradient, or None if no rank had a gradient of the parameter."""
        flags = self.place.flags[: len(self.replica.trained)].tolist()
        for p, view, share in zip(self.replica.trained, self.place.views, flags, strict=True):
            gradient = view.to(p.dtype) if share else None  # the view itself, unless the parameter has a narrower dtype
            if p.grad is not gradient:
                p.grad = gradient
        self._left[:] = [p.grad for p in self.replica.trained]

    @property
    def reduced(self) -> bool:
        """Whether the present gradients are the reduced gradients from `take`. After `follow`, a backward pass that
        adds to the gradients makes this property False."""
        return bool(self._left)

    def taken(self) -> bool:
        """Return whether the parameters still have the gradient tensors from `take`, even if their values have
        changed."""
        return self.reduced and all(p.grad is left for p, left in zip(self.replica.trained, self._left, strict=True))

    def follow(self):
        """Notice backward passes from now on, after `take`."""
        if not self._following:
            self._following = on_gradients(self.replica, self._left.clear)

    def forget(self):
        """Forget all notes about the gradients. Called after the gradients were cleared, or after the model was updated
        with the gradients."""
        self._left.clear()
        self._versions = [None] * len(self.replica.trained)

    def changed(self) -> bool:
        """Return whether gradients were changed after the backward pass, for example by clipping. Called once per step.

        Torch counts the changes of every tensor (``_version``), so this method only compares numbers.
        """
        self._steps += 1
        if not self._noticing:  # no hooks have stored counts of changes in this step
            self._notice_again()
            return False
        found = any(
            noted is not None and p.grad is not None and (id(p.grad), p.grad._version) != noted
            for p, noted in zip(self.replica.trained, self._versions, strict=True)
        )
        self._noticed |= found
        if self._noticed or self._steps >= NOTICING_STEPS:
            remove(self._noticing)
        self._notice_again()
        return found

    def close(self):
        remove(self._noticing)
        remove(self._following)

    def _notice(self):
        pairs = zip(self.replica.trained, self._notes, strict=True)
        self._noticing = [p.register_post_accumulate_grad_hook(note) for p, note in pairs]

    def _notice_again(self):
        if not self._noticed and self._steps > NOTICING_STEPS and self._steps % NOTICING_EVERY == 0:
            self._notice()  # the hooks store the gradients' counts of changes in the next step

    def _check_dense(self, p: torch.nn.Parameter):
        if p.grad.layout is not torch.strided:
            name = self.replica.name_of(p)
            raise RuntimeError(f"the gradient of {name!r} is sparse; only dense gradients can be sent")

    def _noting(self, i: int):
        def note(p):
            self._versions[i] = id(p.grad), p.grad._version

        return note


def on_gradients(replica: Replica, call: Callable[[], None]) -> list:
    """Call ``call()`` each time a backward pass has finished the gradient of any parameter. `torch.compile` does not
    trace the call.

    Return the hooks' handles, which have a method ``remove()``.
    """
    hook = torch.compiler.disable(lambda _: call())
    return [p.register_post_accumulate_grad_hook(hook) for p in replica.trained]


def remove(hooks: list):
    while hooks:
        hooks.pop().remove()
