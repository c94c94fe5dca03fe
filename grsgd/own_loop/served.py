"""Optimizer for users' own loops with a central model, in which some ranks may only serve the ranks that train."""

import copy
import pickle
from collections import defaultdict
from collections.abc import Callable

import torch

from grsgd.algorithms.central import CentralAlgorithm
from grsgd.algorithms.hooks import schedule_of
from grsgd.comm.pollables import Until
from grsgd.comm.stop_signal import UnevenSteps
from grsgd.own_loop.distributed_optimizer import DistributedOptimizer
from grsgd.own_loop.roll_call import END_OF_BATCHES, GOING_ON, VAIN_SECONDS
from grsgd.training.times import TimedOptimizer

AVERAGED, STATE, REST = "in averaged_model()", "in averaged_state_dict()", "in rest()"
"""Names of calls in which the serving ranks join the workers, within a loop over `ServedOptimizer.batches`."""


class ServedOptimizer(DistributedOptimizer):
    """Optimizer of a rank that trains with a central model, or of a rank that only serves the training ranks."""

    algorithm: CentralAlgorithm

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self._updating: torch.optim.Optimizer = self.algorithm.optimizer.optimizer
        """Optimizer that updates the central model, if this rank has a server of the central model."""
        if self._updating is not self.optimizer:
            copy_state(self.optimizer, self._updating)
        self._told = b""
        """Settings of the parameter groups, pickled, that this rank has sent to the servers."""
        self._stuck_since: float | None = None
        """Time from which on workers wait in vain for this rank's server; None if no worker waits in vain."""
        self._in_batches = False
        """Whether this rank is in a loop over `batches`, and must tell the serving ranks when the loop ends."""

    def batches(self, batches):
        if self.workers == self.algorithm.comm.size:
            yield from batches
        elif self.algorithm.is_worker:
            self._end_batches()
            self._in_batches = True
            try:
                yield from batches
            finally:  # even if the script has left the loop early
                self._end_batches()
        else:
            self._serve()

    def zero_grad(self, set_to_none=True):
        if self.algorithm.is_worker:  # on a serving rank, p.grad holds sums of the workers' gradients
            super().zero_grad(set_to_none)

    def finish(self):
        self._end_batches()
        super().finish()

    def state_dict(self, *, algorithm: bool = True):
        return super().state_dict(algorithm=algorithm) | {"state": self._updating.state_dict()["state"]}

    def load_state_dict(self, state_dict):
        super().load_state_dict(state_dict)
        if self._updating is not self.optimizer:
            self._updating.load_state_dict({name: state_dict[name] for name in ("state", "param_groups")})
        self._told = b""

    def _apply(self):
        if not self.algorithm.is_worker:
            raise RuntimeError(
                f"step() on rank {self.algorithm.comm.rank}, which only serves the ranks that train: loop over "
                "`for x, y in optimizer.batches(loader):`, or let all ranks train with distribute(server='shared')"
            )
        self._begin_step()  # no hook has begun the step if the script did not call the model as a module
        self.replica.collect_gradients()
        self.optimizer._opt_called = True  # torch's schedulers warn if their optimizer has not stepped
        if self.algorithm.traits.sends_gradients:
            self._tell_settings()
        self._run(self.loop.hook("step"))

    def _begin_step(self):
        if self._has_rested and self.workers < self.algorithm.comm.size:
            self._roll_call.call(GOING_ON + self._of_this, self.steps)
        super()._begin_step()

    @property
    def _has_rested(self) -> bool:
        """Whether the algorithm has started, but its background activities are at rest, as after `rest` or
        `load_state_dict`."""
        return self.loop.lifecycle.has_started and not self.loop.lifecycle.has_begun

    def _tell_settings(self):
        """Send the settings of this rank's optimizer, such as learning rates, to the servers, if the settings have
        changed."""
        groups = self.optimizer.param_groups
        settings = [{name: value for name, value in group.items() if name != "params"} for group in groups]
        content = pickle.dumps(settings)
        if content != self._told:
            self._told = content
            self._run(lambda: self.algorithm.tell_settings(settings))

    def _end_batches(self):
        """Tell the serving ranks that this rank's loop over `batches` has ended, if this rank was in a loop over
        `batches`."""
        if self._in_batches and not self.finished:
            self._in_batches = False
            self._roll_call.call(END_OF_BATCHES + self._of_this, self.steps)

    def _serve(self):
        """Serve until all workers have left their loop over `batches`. Join the workers in their calls within the
        loop."""
        self.replica.collect_gradients()  # model.zero_grad() may have set p.grad to None
        while True:
            if self._has_rested:
                call = self.driver.run(self._called())
            else:
                self.driver.run(self.loop.lifecycle.begin())
                call = self.driver.run(self._served())
            if call.startswith(AVERAGED):
                self.averaged_model()
            elif call.startswith(STATE):
                self.averaged_state_dict()
            elif call.startswith(REST):
                self.rest()
            elif call.startswith(GOING_ON):
                self._roll_call.call(call)
                self.driver.run(self.loop.lifecycle.begin())
            else:
                break
        if call.startswith(END_OF_BATCHES):
            self._roll_call.call(call)

    def _averages(self):
        """Schedule that returns the parameters of the central model and the mean of the workers' buffers."""
        mine = self.replica.params, self.replica.buffers
        before = [flat.tensor.clone() for flat in mine]
        for flat, tensor in zip(mine, self.algorithm.snapshot(), strict=True):
            flat.tensor.copy_(tensor)
        yield from self.algorithm.broadcast_model(self.algorithm.uncounted_comm)
        found = [flat.like() for flat in mine]
        for flat, copied, tensor in zip(mine, found, before, strict=True):
            copied.tensor.copy_(flat.tensor)
            flat.tensor.copy_(tensor)
        return found

    def _watch(self):
        super()._watch()
        if self.algorithm.comm.size > 1 and self.loop.lifecycle.has_begun:
            self._look_for_stuck()

    def _look_for_stuck(self):
        """Raise UnevenSteps if a worker waits for the gradient of another worker that is in a call for all ranks."""
        waiting, now = self._roll_call.waiting(), self.driver.clock()
        stuck = self.algorithm.stuck(set(waiting)) if waiting else set()
        if not stuck:
            self._stuck_since = None
        elif self._stuck_since is None:
            self._stuck_since = now
        elif now - self._stuck_since > VAIN_SECONDS:
            rank, word = min(waiting.items())
            raise UnevenSteps(
                f"rank {rank} is {word.call} after {word.steps} steps, and rank {min(stuck)} has taken more steps and "
                f"waits for the next gradient of rank {rank}: {self.algorithm.traits.label} needs nearly equal numbers "
                "of steps before this call; grsgd.shard(data, parts=optimizer.workers, even=True) makes them equal"
            )

    def _served(self):
        """Schedule that serves until all workers are in a call which this rank has not made. The schedule returns the
        call."""
        while True:
            for event in schedule_of(self.algorithm.serve):
                yield Until(either(self._next_call, event.Test), str(event))
                if call := self._next_call():
                    return call

    def _called(self):
        """Schedule that waits until all workers are in a call which this rank has not made. The schedule returns the
        call."""
        yield Until(lambda: bool(self._next_call()), "the next call of the ranks that train")
        return self._next_call()

    def _next_call(self) -> str | None:
        return self._roll_call.next_call(range(self.workers))


def either(*conditions: Callable) -> Callable[[], bool]:
    """Return a function that returns whether any of ``conditions`` is true."""
    return lambda: any(condition() for condition in conditions)


def updating_optimizer(algorithm: type, options, optimizer: torch.optim.Optimizer, comm, clock) -> TimedOptimizer:
    """Return the optimizer for ``algorithm`` on this rank of ``comm``. ``clock()`` returns the time in seconds.

    If workers send gradients, a server may be on the rank of a worker. The worker's script goes on to use ``optimizer``
    for the worker's model, so the server gets another optimizer.
    """
    if issubclass(algorithm, CentralAlgorithm) and algorithm.traits.sends_gradients:
        if comm.rank < algorithm.workers(options, comm.size):
            optimizer = twin_of(optimizer)
    return TimedOptimizer(optimizer, clock)


def twin_of(optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
    """Return an optimizer of the same class, parameters and settings as ``optimizer``. The new optimizer has its own
    parameter groups, and no state."""
    twin = object.__new__(type(optimizer))
    vars(twin).update({name: value for name, value in vars(optimizer).items() if name != "step"})  # a scheduler's step
    twin.param_groups = [group | {"params": list(group["params"])} for group in optimizer.param_groups]
    twin.state = defaultdict(dict)
    return twin


def copy_state(optimizer: torch.optim.Optimizer, twin: torch.optim.Optimizer):
    """Give ``twin`` a copy of the state of each parameter in ``optimizer``. Parameters correspond by their
    positions."""
    for group, others in zip(optimizer.param_groups, twin.param_groups, strict=True):
        for p, other in zip(group["params"], others["params"], strict=True):
            if p in optimizer.state:
                twin.state[other] = copy.deepcopy(optimizer.state[p])
