"""Base class of optimizers with methods that return the average of all ranks' models during training."""

from __future__ import annotations

from functools import partial

import torch

from grsgd.algorithms.averaging import average_buffers, exact_average
from grsgd.algorithms.base import Algorithm
from grsgd.algorithms.equal_models import EqualModels
from grsgd.algorithms.equal_tensors import make_equal
from grsgd.models.flat import Flat
from grsgd.models.replica import Replica, views
from grsgd.own_loop.checks import InPlace
from grsgd.own_loop.copying import copy_of, own_memory
from grsgd.own_loop.loop import Loop
from grsgd.own_loop.tracing import untraced
from grsgd.own_loop.wrapping import WrappingOptimizer


class AveragingOptimizer(WrappingOptimizer):
    """Optimizer with methods that average the models of all ranks without changing any rank's model."""

    replica: Replica
    algorithm: Algorithm
    equal_models: EqualModels
    finished: bool
    loop: Loop
    _in_place: InPlace

    @untraced
    @torch.no_grad()
    def averaged_model(self) -> torch.nn.Module:
        """Return a copy of the model with the average of all ranks' parameters and buffers. All ranks must call this
        method.

        The average uses each rank's model at the time of the rank's call. With push-sum the average is weighted; with
        ``easgd`` the result is the centre. Models in messages under way are not included, unless `rest` is called
        first. So with an asynchronous algorithm the average can have a higher accuracy than the final model. After the
        call, training goes on as if this method had not been called. After `finish`, a rank can call this method alone,
        and gets a copy of the final model.

        If a tensor of a module has an autograd graph, the tensor is copied without the graph. Objects that cannot be
        copied, such as a lock, are shared with the model, with a warning. The copy's frozen parameters share their
        memory with the model, unless the frozen parameters differ between ranks.

        Raises the errors of `DistributedOptimizer.step`. Raises RuntimeError if ``copy.deepcopy`` cannot copy the
        model.
        """
        return self._average("averaged_model()")

    @untraced
    @torch.no_grad()
    def averaged_state_dict(self) -> dict[str, torch.Tensor]:
        """Return the average of all ranks' trained parameters and buffers, by name. All ranks must call this method.

        The names are the names in the model's ``state_dict()``. Frozen parameters are left out, so they are neither
        copied nor compared between ranks. ``model.load_state_dict(averaged, strict=False)`` loads the result. Raises
        the errors of `averaged_model`.
        """
        found = self._average("averaged_state_dict()", compares_frozen=False).state_dict(keep_vars=True)
        return {
            name: value.detach().clone() if isinstance(value, torch.Tensor) else value
            for name, value in found.items()
            if not isinstance(value, torch.nn.Parameter) or value.requires_grad
        }

    def _average(self, call: str, compares_frozen: bool = True) -> torch.nn.Module:
        """Return a copy of the model with the average of all ranks' values. ``call`` is the name of the user's call,
        for error messages."""
        if not self.finished:
            self._in_place.check()
            if self.loop.survives:
                return self.driver.run(self.loop.average())
        result = copy_of(self.replica.model, call)
        if not self.finished:
            self.replica.settle()
            self.meet(f"in {call}")
            self.driver.run(self.average_into(result, compares_frozen))
        return result

    def average_into(self, model: torch.nn.Module, compares_frozen: bool = True):
        """Write the average of all ranks' parameters and buffers into ``model``, a copy of the replica's model. Each
        rank's values have the weight that the algorithm gives to the rank. All ranks must run this schedule (a
        generator that a driver runs) at once."""
        yield from self.loop.lifecycle.start()
        self.put_into(model, *(yield from self._averages()))
        yield from self.equal_models.look(self.steps)
        self.replica.follow(model)
        others = self.replica.outside(model, with_frozen=compares_frozen)
        yield from make_equal(self.algorithm.uncounted_comm, others, partial(own_memory, model))

    def put_into(self, model: torch.nn.Module, params: Flat, buffers: Flat):
        """Write flat parameters and buffers into ``model``, a copy of the replica's model."""
        trained = [p for p in model.parameters() if p.requires_grad]
        for p, view in zip(trained, views(params.tensor, trained), strict=True):
            p.copy_(view)
        for name, view in self._in_place.buffers_in(buffers.tensor):
            buffer = model.get_buffer(name)
            if buffer.shape == view.shape:
                buffer.copy_(view)

    def _averages(self):
        """Return the averages of all ranks' parameters and buffers, as two `Flat` in new memory. All ranks must run
        this schedule (a generator that a driver runs) at once."""
        replica, comm = self.replica, self.algorithm.uncounted_comm
        params, buffers = replica.params.like(), replica.buffers.like()
        for flat, tensor in zip((params, buffers), self.algorithm.snapshot(), strict=True):
            flat.tensor.copy_(tensor)
        yield from exact_average(comm, params, self.algorithm.weight)
        yield from average_buffers(comm, replica, buffers)
        return params, buffers
