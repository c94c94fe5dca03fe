"""Torch model with three flat arrays: one for its parameters, one for its gradients, and one for its float buffers.

With flat arrays, one message can send all parameters, arithmetic works on whole models, and any torch optimizer works
in place.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import partial, reduce

from grsgd.errors import ConfigError
from grsgd.lazy import LazyModule
from grsgd.models.flat import Flat
from grsgd.models.narrow import NarrowParameters
from grsgd.models.places import content, following_buffers, following_trained, is_dense, move, places_of

torch = LazyModule("torch")

DTYPES = ("torch.bfloat16", "torch.float16", "torch.float32", "torch.float64")
"""Dtypes that trained parameters may have. NumPy lacks bfloat16, so NumPy arrays have the bits of bfloat16 numbers as
uint16."""


class Replica:
    """Model of one rank, with its tensors in flat arrays.

    ``params`` has all trained parameters, in the order of ``model.parameters()``. ``grads`` has the gradients of the
    trained parameters. ``buffers`` has the model's buffers with the dtype of the flat arrays, such as the statistics of
    batch norm. The model keeps its own parameter objects, so an optimizer may be created before or after the replica.
    ``dtype`` is the dtype to which the model is converted; None keeps the model's dtype.

    If a buffer or an attribute of the model is a view of a parameter or of another buffer, it becomes a view of the
    flat array. A buffer that cannot become a view of a flat array, such as a row of a larger table, keeps its memory
    (`outside`).

    ``flat_gradients = False`` is for algorithms that send no gradients. With ``flat_gradients = False``, gradients stay
    in the memory in which autograd has computed them. Without flat gradients, autograd need not add each gradient to
    zeros in a flat array, which saves 10 to 20 % of a small model's step.

    Trained parameters may have several dtypes. The flat arrays have the dtype ``exchanged`` or, if it is None, the
    widest dtype of the trained parameters. Parameters with a narrower dtype than the flat arrays are rounded copies of
    their elements in ``params`` (`settle`), and have no flat gradients.

    Raises ConfigError if the dtype of a trained parameter is not in `DTYPES`, and if the trained parameters are on
    several devices. Raises ConfigError if the flat arrays would be of bfloat16 on a GPU, and if a trained parameter
    cannot be moved (`following_trained`).
    """

    def __init__(
        self,
        model: torch.nn.Module,
        dtype: torch.dtype | None = None,
        flat_gradients: bool = True,
        exchanged: torch.dtype | None = None,
    ):
        self.model = model.to(dtype) if dtype is not None else model
        self.trained = [p for p in model.parameters() if p.requires_grad]
        if not self.trained:
            raise ConfigError("the model has no parameter that requires a gradient")
        self.dtype, self.device = check_kinds(self.trained)
        self.dtype = exchanged or self.dtype
        if self.dtype is torch.bfloat16 and self.device.type == "cuda":
            raise ConfigError("the trained parameters are bfloat16 on a GPU; allowed: a CPU, or float32 with autocast")
        self._choose_places()
        self.params = self._flatten(self.trained)
        self.narrow = NarrowParameters(self.trained, views(self.params.tensor, self.trained))
        self.buffers = self._flatten(self.in_buffers())
        self.buffers_at_start = self.buffers.like().tensor
        """Values of the buffers at the start of training, from which `average_buffers` computes the buffers' changes.
        Values in ``buffers_at_start`` that are not finite, as in attention masks, are replaced by 0."""
        self.grads = self.params.like() if flat_gradients else None
        if flat_gradients:
            self._grad_views = views(self.grads.tensor, self.trained)
            self.collect_gradients()

    @property
    def nbytes(self) -> int:
        """Number of bytes of all trained parameters, which is also the size of one gradient."""
        return self.params.array.nbytes

    def settle(self):
        """Make narrow trained parameters and their elements in ``params`` equal (up to rounding), after one of them has
        changed."""
        self.narrow.settle()

    def note_buffers(self):
        """Store the present values of the buffers in ``buffers_at_start``, as the values at the start of training. Call
        this method while the buffers are the same on all ranks."""
        buffers = self.buffers.tensor
        if buffers.is_meta:  # buffers on the device meta have no content
            return
        self.buffers_at_start = torch.where(buffers.isfinite(), buffers, 0)

    def average_buffers(self, allreduce, buffers: Flat | None = None):
        """Replace the model's buffers by their mean over all ranks. If ``buffers``, a copy of the model's buffers, is
        given, replace this copy instead. This method is a generator (schedule) that the rank's driver (event loop)
        runs.

        The schedule (generator) ``allreduce(array)`` replaces an array by its mean over all ranks. The changes of the
        buffers since the start of training are averaged, not the buffers themselves. So buffers that never change
        (masks, position encodings) keep their bits, although a mean of the buffers themselves could be rounded.
        """
        buffers, start = buffers or self.buffers, self.buffers_at_start
        buffers.tensor.sub_(start)
        yield from allreduce(buffers.array)
        change = buffers.tensor
        if change.is_meta:
            return
        change.copy_(torch.where(change == 0, start, start + change))

    def zero_gradients(self):
        if self.grads is None:
            for p in self.trained:
                p.grad = None
            return
        self.grads.tensor.zero_()
        for p, view in zip(self.trained, self._grad_views, strict=True):
            if p.grad is not view:  # torch's `zero_grad` has replaced the view of `grads`
                p.grad = view

    def collect_gradients(self):
        """Copy every gradient that is outside ``grads`` into ``grads``, and let the gradient's parameter use ``grads``
        as its gradient.

        A parameter without a gradient gets a gradient of zeros, because other ranks may have a gradient for this
        parameter.
        """
        if self.grads is None:
            return
        for p, view in zip(self.trained, self._grad_views, strict=True):
            if p.grad is not view:
                if p.grad is None:
                    view.zero_()
                else:
                    view.copy_(p.grad)
                p.grad = view

    def move_gradients(self, flat: Flat):
        """Use ``flat`` as the replica's array ``grads`` from now on. ``flat`` must have the length and the content of
        ``grads``."""
        if flat is self.grads:
            return
        self.grads = flat
        self._grad_views = views(flat.tensor, self.trained)
        self.collect_gradients()

    def on_each_gradient(self, call) -> list:
        """Register hooks that call ``call()`` each time the backward pass has finished the gradient of a parameter.
        Each call of a hook takes a few microseconds.

        Return the handles of the hooks; the method ``remove()`` of a handle removes the hook.
        """
        return [p.register_post_accumulate_grad_hook(lambda _: call()) for p in self.trained]

    def on_gradient(self, call) -> list:
        """Register hooks that call ``call(i)`` each time the backward pass has finished the gradient of trained
        parameter number ``i``. When ``call(i)`` is called, the finished gradient is in ``grads``.

        Return the handles of the hooks; the method ``remove()`` of a handle removes the hook.
        """

        def finished(i, p):
            if p.grad is not self._grad_views[i]:
                self._grad_views[i].copy_(p.grad)
                p.grad = self._grad_views[i]
            call(i)

        return [p.register_post_accumulate_grad_hook(partial(finished, i)) for i, p in enumerate(self.trained)]

    def name_of(self, parameter: torch.nn.Parameter) -> str:
        """Return the name of ``parameter`` in the model, or "?" if the model has no such parameter."""
        return next((name for name, p in self.model.named_parameters() if p is parameter), "?")

    def tensors(self) -> dict[str, torch.Tensor]:
        """Return the trained parameters and buffers that are in the flat arrays, as a dict from name to tensor."""
        trained = {id(p) for p in self.trained}
        found = {name: p.data for name, p in self.model.named_parameters() if id(p) in trained}
        return found | dict(zip(self._buffer_names, self.in_buffers(), strict=False))

    def in_buffers(self) -> list[torch.Tensor]:
        """Return the model's buffers that are views of the flat array ``buffers``."""
        now = dict(self.model.named_buffers(remove_duplicate=False))
        return [now[name] for name in self._buffer_names if name in now]

    def outside(self, copy: torch.nn.Module | None = None, with_frozen: bool = True) -> list[torch.Tensor]:
        """Return the tensors that are not in the flat arrays. The tensors belong to the model or, if ``copy`` is given,
        to ``copy``, a copy of the model. The returned dense tensors share the memory of the model's tensors.

        The returned tensors are buffers of other dtypes than the flat arrays, sparse, quantised or expanded buffers,
        and buffers that could not be moved. If ``with_frozen`` is True, the result begins with the frozen parameters.
        """
        model = copy if copy is not None else self.model
        found = [p.data for p in model.parameters() if with_frozen and not p.requires_grad]
        buffers = dict(model.named_buffers(remove_duplicate=False))
        found += [b if (b := buffers.get(name)) is not None else torch.empty(0) for name in self._outside_names]
        return [part for tensor in found for part in content(tensor)]

    def follow(self, copy: torch.nn.Module):
        """Update some buffers of ``copy``, a copy of the model whose parameters have been changed. A buffer of ``copy``
        is updated if the same buffer of this replica's model shares memory with a trained parameter."""
        trained = [p.data for p in copy.parameters() if p.requires_grad]
        places = {
            id(other.tensor): (p, other.offset)
            for p, mine in zip(trained, self.trained, strict=True)
            for other in self._following.get(id(mine), ())
        }
        for name, buffer in self.model.named_buffers():
            if id(buffer) in places:
                p, offset = places[id(buffer)]
                copy.get_buffer(name).copy_(p.as_strided(buffer.shape, buffer.stride(), p.storage_offset() + offset))

    def leave(self):
        """Give each parameter and buffer memory of its own, outside the flat arrays. If a tensor stayed in a flat
        array, saving this tensor would save the whole array."""
        for tensor in [*self.trained, *self.in_buffers()]:
            own = torch.empty_like(tensor.data, memory_format=torch.contiguous_format)
            move(tensor, own, self._following.get(id(tensor), ()))

    def _choose_places(self):
        """Decide which buffers are moved to the flat array, and find the tensors (followers) that are moved together
        with a parameter or buffer. A follower is a tensor that shares the memory of another tensor, and is moved
        together with that tensor."""
        model, places = self.model, places_of(self.model)
        self._following = following_trained(model, places)
        """Followers of each tensor, by the tensor's id. Followers share the memory of a tensor, and are moved together
        with that tensor."""
        following = {id(other.tensor) for others in self._following.values() for other in others}
        buffers = {name: b for name, b in model.named_buffers() if id(b) not in following}
        dense = {name: b for name, b in buffers.items() if b.dtype == self.dtype and is_dense(b)}
        movable, followed = following_buffers({name: b for name, b in dense.items() if b.device == self.device}, places)
        self._following |= followed
        following |= {id(other.tensor) for others in followed.values() for other in others}
        self._buffer_names = list(movable)
        self._outside_names = [name for name, b in buffers.items() if name not in movable and id(b) not in following]
        self.left_in_place = [name for name in self._outside_names if name in dense]
        """Names of buffers that could not be moved to the flat array, because another object of the model also uses
        their memory."""

    def _flatten(self, tensors: list[torch.Tensor]) -> Flat:
        flat = Flat.zeros(sum(t.numel() for t in tensors), self.dtype, self.device)
        for tensor, view in zip(tensors, views(flat.tensor, tensors), strict=True):
            if tensor.dtype == self.dtype:
                move(tensor, view, self._following.get(id(tensor), ()))
        return flat


def check_kinds(trained: list[torch.nn.Parameter]) -> tuple[torch.dtype, torch.device]:
    """Return the narrowest dtype that can hold the numbers of all parameters, and the device of the parameters. Raises
    ConfigError for a dtype that is not in `DTYPES`, and for parameters on several devices."""
    kinds = {(p.dtype, p.device) for p in trained}
    dtypes, devices = {dtype for dtype, _ in kinds}, {device for _, device in kinds}
    if len(devices) > 1 or not all(dtype.is_floating_point for dtype in dtypes):
        found = ", ".join(sorted(f"{dtype} on {device}" for dtype, device in kinds))
        raise ConfigError(f"all trained parameters must be floating-point numbers on one device; found {found}")
    for dtype in dtypes:
        if str(dtype) not in DTYPES:
            allowed = ", ".join(DTYPES)
            raise ConfigError(f"the trained parameters are {dtype}, which NumPy does not have; allowed: {allowed}")
    return reduce(torch.promote_types, dtypes), devices.pop()


def views(flat: torch.Tensor, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """Return consecutive views of the vector ``flat`` with the shapes of ``tensors``."""
    return shaped(flat, [t.shape for t in tensors])


def shaped(flat: torch.Tensor, shapes: Iterable[tuple[int, ...]]) -> list[torch.Tensor]:
    """Return consecutive views of the vector ``flat`` with the shapes ``shapes``."""
    shapes = list(shapes)
    parts = flat.split([math.prod(shape) for shape in shapes]) if shapes else []
    return [part.view(shape) for part, shape in zip(parts, shapes, strict=True)]


def to_device(x: torch.Tensor, y: torch.Tensor, device: torch.device, dtype: torch.dtype):
    """Move the inputs ``x`` and the targets ``y`` of a batch to ``device``, and return them.

    Inputs are converted to ``dtype``, except tokens (int64 or int32). Floating-point targets are converted to
    ``dtype``, or to float32 if ``dtype`` is bfloat16.
    """
    is_tokens = x.dtype in (torch.int64, torch.int32)
    x = x.to(device) if is_tokens else x.to(device, dtype)
    of_targets = torch.float32 if dtype is torch.bfloat16 else dtype
    return x, y.to(device, of_targets) if y.is_floating_point() else y.to(device)


def output_of(model: torch.nn.Module, x: torch.Tensor):
    """Return the output of ``model`` for the inputs ``x``. An output of bfloat16 is converted to float32, because
    losses are computed in float32."""
    made = model(x)
    return made.float() if torch.is_tensor(made) and made.dtype is torch.bfloat16 else made
