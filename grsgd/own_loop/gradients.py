"""The gradients of a loop that grsgd did not write, for algorithms that send them."""

import torch

from grsgd.models.flat import Flat
from grsgd.models.replica import Replica, views

NOTICING_STEPS, NOTICING_EVERY = 20, 25
"""`Gradients.changed` looks at so many first steps, then at one in so many: who clips often does from the start."""


class Gradients:
    """Gradients stay where autograd and the user put them, None where there is none, until they are sent.

    ``flat``: what is sent: all gradients of ``replica`` one after the other, zeros where this rank has none, then one
    number a parameter, 1 where it has one. Reduced with them, these say the same on all ranks: a parameter that no
    rank has a gradient of is left without one, so that no optimizer moves it.
    """

    def __init__(self, replica: Replica):
        self.replica = replica
        size = replica.params.tensor.numel()
        self.flat = Flat.zeros(size + len(replica.trained), replica.dtype, replica.device)
        self._flags = self.flat.tensor[size:]
        # As data of their own for autograd, so that each counts its changes alone.
        self._views = [view.data for view in views(self.flat.tensor[:size], replica.trained)]
        self._addresses = [view.data_ptr() for view in self._views]
        self._left: list[torch.Tensor | None] = []
        self._versions: list[tuple[int, int] | None] = []
        self._steps = 0
        self._noticed = False
        self._noticing: list = []
        """Hooks that note the gradients' versions."""
        self._following: list = []
        """Hooks that notice another backward pass."""
        self.forget()
        self._notice()

    def collect(self):
        """Copy into ``flat`` what is not there yet.

        Raises RuntimeError for a sparse gradient, and where the memory of a gradient in ``flat`` was replaced.
        """
        places, found, flags = [], [], []
        self._check_memory()
        for p, view in zip(self.replica.trained, self._views, strict=True):
            gradient = p.grad
            flags.append(gradient is not None)
            if gradient is None:
                view.zero_()
            elif gradient is not view:
                if gradient.layout is not torch.strided:
                    name = self.replica.name_of(p)
                    raise RuntimeError(f"the gradient of {name!r} is sparse; only dense ones can be sent")
                places.append(view)
                found.append(gradient)
                p.grad = view
        with torch.no_grad():  # with create_graph gradients have a graph of their own
            if found:
                torch._foreach_copy_(places, found)
            self._flags.copy_(torch.tensor(flags))

    def take(self):
        """After ``flat`` was reduced: every parameter gets its gradient, or none if no rank had one."""
        for p, view, share in zip(self.replica.trained, self._views, self._flags.tolist(), strict=True):
            gradient = view if share else None
            if p.grad is not gradient:
                p.grad = gradient
        self._left[:] = [p.grad for p in self.replica.trained]

    @property
    def reduced(self) -> bool:
        """Whether the gradients come from `take`, and no backward pass has added to them since: where `follow` was
        called."""
        return bool(self._left)

    def taken(self) -> bool:
        """Whether they are even those that `take` has left, perhaps changed in place."""
        return self.reduced and all(p.grad is left for p, left in zip(self.replica.trained, self._left, strict=True))

    def follow(self):
        """From now on notice backward passes after `take`."""
        if not self._following:
            self._following = self.replica.on_each_gradient(self._left.clear)

    def forget(self):
        """Gradients were cleared or used: what was noted of them means nothing any more."""
        self._left.clear()
        self._versions = [None] * len(self.replica.trained)

    def changed(self) -> bool:
        """Return whether gradients were changed since backward, as clipping does. To be asked once a step.

        torch counts the changes of every tensor (``_version``), so this compares numbers.
        """
        self._steps += 1
        found = any(
            noted is not None and p.grad is not None and (id(p.grad), p.grad._version) != noted
            for p, noted in zip(self.replica.trained, self._versions, strict=True)
        )
        self._noticed |= found
        if self._noticed or self._steps >= NOTICING_STEPS:
            remove(self._noticing)
        if not self._noticed and self._steps > NOTICING_STEPS and self._steps % NOTICING_EVERY == 0:
            self._notice()  # in the next step
        return found

    def close(self):
        remove(self._noticing)
        remove(self._following)

    def _notice(self):
        trained = enumerate(self.replica.trained)
        self._noticing = [p.register_post_accumulate_grad_hook(self._noting(i)) for i, p in trained]

    def _check_memory(self):
        found = [view.data_ptr() for view in self._views]
        if found != self._addresses:
            moved = next(i for i, address in enumerate(self._addresses) if found[i] != address)
            name = self.replica.name_of(self.replica.trained[moved])
            raise RuntimeError(f"the gradient of {name!r} was given new memory (p.grad.data = ...): write into the old")

    def _noting(self, i: int):
        def note(p):
            self._versions[i] = id(p.grad), p.grad._version

        return note


def remove(hooks: list):
    while hooks:
        hooks.pop().remove()
