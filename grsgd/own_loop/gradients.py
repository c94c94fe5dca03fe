"""Gradients of a user's own loop, for algorithms that send them."""

from collections.abc import Callable
from contextlib import contextmanager
from typing import NamedTuple

import torch

from grsgd.models.flat import Flat
from grsgd.models.replica import Replica, views

NOTICING_STEPS, NOTICING_EVERY = 20, 25
"""Number of first steps in which `Gradients.changed` looks, and later steps per look: scripts clip from the start."""
CHANGED = (
    "the gradient was changed between backward() and step() (clipping, GradScaler.unscale_): it is this rank's own "
    "until step(); call optimizer.synchronize() before, to change the mean of all ranks"
)


class GradientPlace(NamedTuple):
    """Buffer from which gradients are sent. ``flags`` are the numbers after the gradients. ``views`` are the gradients
    of all parameters; each is its own data for autograd, and counts its changes. ``addresses`` are their first
    addresses."""

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
        """Raise RuntimeError if the memory of a gradient was replaced."""
        found = [view.data_ptr() for view in self.views]
        if found != self.addresses:
            moved = next(i for i, address in enumerate(self.addresses) if found[i] != address)
            name = replica.name_of(replica.trained[moved])
            raise RuntimeError(
                f"the gradient of {name!r} was given new memory (p.grad.data = ...): write into the old memory"
            )


class Gradients:
    """Gradients that stay where autograd and the user put them, or None, until they are sent.

    ``flat`` is the buffer that is sent: all gradients of ``replica`` one after the other, zeros for missing gradients,
    then one number per parameter, which is 1 if this rank has its gradient. The reduced numbers are the same on all
    ranks. A parameter without a gradient on any rank keeps none, so that no optimizer moves it.
    """

    more = 0
    """Count of further numbers after the numbers of the parameters."""

    def __init__(self, replica: Replica):
        self.replica = replica
        size = replica.params.tensor.numel() + len(replica.trained) + self.more
        self.place = GradientPlace.of(Flat.zeros(size, replica.dtype, replica.device), replica)
        self._left: list[torch.Tensor | None] = []
        self._versions: list[tuple[int, int] | None] = []
        self._steps = 0
        self._noticed = False
        self._notes = [torch.compiler.disable(self._noting(i)) for i in range(len(replica.trained))]
        """Functions that note the gradients' versions."""
        self._noticing: list = []
        """Hooks that call the functions in `_notes`."""
        self._following: list = []
        """Hooks that notice another backward pass of the same step."""
        self.forget()
        self._notice()

    @property
    def flat(self) -> Flat:
        return self.place.flat

    def move(self, flat: Flat):
        """Let gradients be sent from ``flat``, in place of `Replica.move_gradients`; gradients that exist already are
        copied when they are sent."""
        self.place = GradientPlace.of(flat, self.replica)
        self.replica.grads = flat

    def begin(self):
        """Prepare for the gradients of a new step."""

    @contextmanager
    def held_back(self):
        """Mark the backward passes in the block: other passes of the same step follow them."""
        yield

    def collect(self):
        """Copy into ``flat`` the gradients that are still in another place in memory.

        Raises RuntimeError for a sparse gradient, and if the memory of a gradient in ``flat`` was replaced.
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
                p.grad = view
        with torch.no_grad():  # with create_graph gradients have a graph of their own
            if found:
                torch._foreach_copy_(places, found)
            if all(flags):
                self.place.flags.fill_(1.0)
            else:
                self.place.flags.copy_(torch.tensor(flags, device="cpu"))

    def sent_in_vain(self) -> bool:
        """Return, after the gradients in ``flat`` were reduced, whether all ranks have to call `collect` and send the
        gradients again."""
        return False

    def take(self):
        """Give every parameter its reduced gradient, or None if no rank had one."""
        flags = self.place.flags[: len(self.replica.trained)].tolist()
        for p, view, share in zip(self.replica.trained, self.place.views, flags, strict=True):
            gradient = view if share else None
            if p.grad is not gradient:
                p.grad = gradient
        self._left[:] = [p.grad for p in self.replica.trained]

    @property
    def reduced(self) -> bool:
        """Whether the gradients come from `take`, and no backward pass has added to them since; needs `follow` for the
        second part."""
        return bool(self._left)

    def taken(self) -> bool:
        """Return whether the gradients are still the tensors that `take` has left, perhaps changed in place."""
        return self.reduced and all(p.grad is left for p, left in zip(self.replica.trained, self._left, strict=True))

    def follow(self):
        """Begin to notice backward passes after `take`."""
        if not self._following:
            self._following = on_gradients(self.replica, self._left.clear)

    def forget(self):
        """Forget the notes about gradients, after the gradients were cleared or used."""
        self._left.clear()
        self._versions = [None] * len(self.replica.trained)

    def changed(self) -> bool:
        """Return whether gradients were changed since backward, as by clipping; to be called once per step.

        torch counts the changes of every tensor (``_version``), so this method only compares numbers.
        """
        self._steps += 1
        if not self._noticing:  # no hook has noted anything
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
            self._notice()  # the hooks note gradients in the next step

    def _check_dense(self, p: torch.nn.Parameter):
        if p.grad.layout is not torch.strided:
            name = self.replica.name_of(p)
            raise RuntimeError(f"the gradient of {name!r} is sparse; only dense gradients can be sent")

    def _noting(self, i: int):
        def note(p):
            self._versions[i] = id(p.grad), p.grad._version

        return note


def on_gradients(replica: Replica, call: Callable[[], None]) -> list:
    """Call ``call()`` after backward has finished the gradient of any parameter; `torch.compile` does not trace it.

    Returns handles with ``remove()``.
    """
    hook = torch.compiler.disable(lambda _: call())
    return [p.register_post_accumulate_grad_hook(hook) for p in replica.trained]


def remove(hooks: list):
    while hooks:
        hooks.pop().remove()
