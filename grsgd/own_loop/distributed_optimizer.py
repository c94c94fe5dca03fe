"""Optimizer that trains its model together with the other ranks' models, in a user's own loop."""

import atexit
import os
import sys
import warnings
from collections import OrderedDict
from contextlib import contextmanager, nullcontext
from functools import partial

import numpy as np
import torch

from grsgd.algorithms.base import Algorithm
from grsgd.algorithms.equal_models import EqualModels
from grsgd.algorithms.equal_tensors import make_equal
from grsgd.algorithms.hooks import schedule_of
from grsgd.algorithms.lifecycle import Lifecycle
from grsgd.comm.allreduce import halving_doubling_allreduce
from grsgd.comm.watchdog import within
from grsgd.job import launch
from grsgd.own_loop.averaged_model import average_into
from grsgd.own_loop.checks import InPlace
from grsgd.own_loop.copying import copy_of
from grsgd.own_loop.early_gradients import EarlyGradients
from grsgd.own_loop.forward_hook import BeforeForward
from grsgd.own_loop.gradients import CHANGED, on_gradients
from grsgd.own_loop.other_steps import OtherSteps
from grsgd.own_loop.ranks import warn_of_other_shards
from grsgd.own_loop.resume import SavedAlgorithm
from grsgd.own_loop.roll_call import FINISH, Answers, RollCall
from grsgd.own_loop.saved_record import SavedRecord
from grsgd.own_loop.stops import Stops
from grsgd.own_loop.times import LoopTimes
from grsgd.own_loop.tracing import untraced
from grsgd.own_loop.wrapping import WrappingOptimizer
from grsgd.training import unwrapped

unfinished: list["DistributedOptimizer"] = []
"""Optimizers of this process whose training has not ended."""


class DistributedOptimizer(WrappingOptimizer):
    """Torch optimizer whose ``step()`` also mixes the models of all ranks; made by `distribute`.

    Everything else comes from the wrapped optimizer: ``param_groups``, ``state``, learning-rate schedulers, and
    ``state_dict()`` except for its entries of the algorithm.
    """

    def __init__(self, optimizer, replica, gradients, algorithm, context, transport, roll_call: RollCall):
        """Wrap ``optimizer``, a `TimedOptimizer`. ``gradients`` are sent by ``algorithm``, or None. ``transport`` is
        the way of arrays between ranks (`grsgd.comm.gpu.select.Choice`)."""
        driver, uncounted = context.driver, context.uncounted_comm
        self.optimizer, self.model = optimizer.optimizer, replica.model
        self.replica, self.algorithm, self.driver = replica, algorithm, driver
        self._lifecycle = Lifecycle(algorithm)
        self.seed, self.transport = context.seed, transport
        self.reasons: dict[str, str] = {}
        """Reasons for values of options that were left open (``variant = "auto"``), by attribute of a record."""
        self.finished = False
        self.times = LoopTimes(driver, optimizer)
        self.moment = driver.clock()
        """Time at which the last step, or `finish`, has ended."""
        self.stops = Stops(driver.clock)
        self.end_is_told = False
        """Whether a recording has printed why the ranks end without `finish`."""
        self.recorded = SavedRecord()
        self._gradients, self._uncounted_comm = gradients, uncounted
        self._in_place = InPlace(replica)
        self._roll_call, self._of_this = roll_call, roll_call.of_new_optimizer()
        self._step_under_way = False
        self._is_broken = False
        """Whether a hook of the algorithm was broken off: some of its messages may be under way."""
        self._saved = SavedAlgorithm(self._lifecycle)
        self.equal_models = EqualModels(algorithm)
        prepare = type(algorithm).before_backward
        self._prepares = prepare is not Algorithm.before_backward or algorithm.traits.in_background
        """Whether the algorithm may have work before a gradient is computed."""
        self._warned = False
        self._process = os.getpid()
        # The attributes in which torch's register_step_pre_hook() and register_step_post_hook() keep hooks.
        self._optimizer_step_pre_hooks, self._optimizer_step_post_hooks = OrderedDict(), OrderedDict()
        before_forward = BeforeForward(self._before_forward)
        self._hooks = [replica.model.register_forward_pre_hook(before_forward, with_kwargs=True)]
        driver.watch = self._watch
        driver.limit = "; distribute(timeout=...) is the limit, for ranks that may be that slow"
        if algorithm.traits.in_background and uncounted.size > 1 and driver.progress_mode == "inline":
            self._hooks += on_gradients(replica, driver.poll)
        self._hooks.append(OtherSteps(self.optimizer, replica.trained, lambda: self.steps, self._gradients_are_own))
        unfinished.append(self)
        atexit.register(self._check_finished)
        self.is_made = True

    @untraced
    def step(self, closure=None):
        """Update the model with its gradient and the other ranks' models. A closure is called once, before that.

        Raises RuntimeError after `finish`; if trained parameters of the model were given new memory, frozen or
        unfrozen; and if a rank waits for a rank that has finished with fewer steps (synchronous algorithms).
        """
        arguments, named = (self,) if closure is None else (self, closure), {}
        for hook in list(self._optimizer_step_pre_hooks.values()):
            arguments, named = hook(self, arguments, named) or (arguments, named)
        loss = DistributedOptimizer._step(*arguments, **named)
        for hook in list(self._optimizer_step_post_hooks.values()):
            hook(self, arguments, named)
        return loss

    def _step(self, closure=None):
        self._check()
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        if self._gradients is not None and self._gradients.changed() and not self._gradients.reduced:
            if not self._warned:
                self._warned = True
                warnings.warn(CHANGED, stacklevel=5)
        try:
            self._apply()
        except Exception as error:
            if closure is None or "closure" not in str(error):
                raise
            raise RuntimeError(
                f"{type(self.optimizer).__name__} asks for its closure, which distribute() calls once, before it: "
                f"an optimizer that calls the closure itself cannot be distributed ({error})"
            ) from error
        if self.equal_models.is_due(self.steps + 1):
            self._run(partial(self.equal_models.look, self.steps + 1))
        self._step_under_way = False
        self.times.step_ended()
        self.moment = self.driver.clock()
        if not self.algorithm.traits.synchronous:  # synchronous algorithms look while they wait
            self._roll_call.look(self.steps, self.moment)
        self.stops.watch()
        return loss

    def _apply(self):
        """Update the model, and send everything of this step that was not sent before."""
        if self._gradients is None:
            self._begin_step()  # the model's forward may not have been called through the module
            self._run(self.algorithm.step)
        else:
            self._reduce()
            self.times.run_update(self.algorithm.update)
            self._gradients.forget()

    @untraced
    def synchronize(self):
        """Replace the gradients by the means over all ranks, which `step` will apply; to be called on all ranks.

        Call this method before code that reads or changes gradients between ``backward()`` and ``step()``: clipping, or
        ``GradScaler.unscale_``. The next ``step()`` then sends nothing. Does nothing for algorithms that send models.
        """
        self._check()
        if self._gradients is not None:
            self._reduce()
            self._gradients.follow()

    @contextmanager
    def no_sync(self):
        """Accumulate gradients, as DDP's ``no_sync``: other backward passes of the step follow the passes in the block.
        Without buckets nothing is sent before ``step()`` anyway."""
        with self._gradients.held_back() if self._gradients is not None else nullcontext():
            yield

    @untraced
    def zero_grad(self, set_to_none: bool = True):
        unwrapped.zero_grad(self.optimizer, set_to_none)
        if self._gradients is not None:
            self._gradients.forget()

    @untraced
    def finish(self):
        """Take in all messages under way and make all models equal, after the last step and on all ranks.

        Raises RuntimeError if trained parameters of the model were given new memory, frozen or unfrozen, and
        UnevenCalls if other ranks are in another call.
        """
        if self.finished:
            return
        self._in_place.check()
        all_finish = self._roll_call.call(FINISH + self._of_this, self.steps)
        self._let_go()
        self._drain()
        self.driver.run(all_finish.come())  # an average's messages must not meet messages of another call
        self.driver.run(self._lifecycle.average())
        self.driver.run(self.equal_models.at_end())
        self.driver.run(make_equal(self._uncounted_comm, self.replica.outside()))
        warn_of_other_shards(self._uncounted_comm.backend.mpi, self.driver.timeout)
        self._end()

    @untraced
    def close(self):
        """Give up the training, on all ranks, in place of `finish`: the model keeps this rank's weights.

        Frees everything that `distribute` has allocated, so that a search over hyperparameters can drop a trial in
        which all ranks have raised an exception. If a step was broken off on some rank, its messages stay under way
        and keep their memory.
        """
        if self.finished:
            return
        self._let_go()
        all_close = self.meet("in close()")
        uneven = np.array([float(self._is_broken or len(all_close.points) > 1)])
        self._roll_call.count_steps_anew()
        self.driver.run(halving_doubling_allreduce(self._uncounted_comm, uneven))
        if not uneven[0]:
            self._drain()
        self._end(frees=not uneven[0])

    def _let_go(self):
        """Remove the hooks that `distribute` has given the model."""
        for hook in self._hooks:
            hook.remove()
        if self._gradients is not None:
            self._gradients.close()

    def _drain(self):
        """Take in all messages of the algorithm that are under way, together with the other ranks."""
        self._is_broken = True
        self.driver.run(self._lifecycle.begin())
        if isinstance(self._gradients, EarlyGradients):
            self._end_what_was_sent()
        self.driver.run(self._lifecycle.drain())
        self._is_broken = False

    def _end(self, frees: bool = True):
        """Record that this training has ended; ``frees`` says that no message is under way on its communicators."""
        self.driver.close()
        self.replica.leave()
        with within(self.driver.timeout, "freeing communicators"):
            for comm in (self.algorithm.comm, self._uncounted_comm) if frees else ():
                comm.free()
        self.finished = True
        self.moment = self.driver.clock()
        unfinished.remove(self)
        atexit.unregister(self._check_finished)

    @untraced
    @torch.no_grad()
    def averaged_model(self) -> torch.nn.Module:
        """Return a copy of the model with the average of all ranks' parameters and buffers; to be called on all ranks.

        The average is the algorithm's present model: the ranks' models at the time of each rank's call, weighted by the
        algorithm (push-sum), or the centre of ``easgd``. Models in messages under way are missing, so the average of an
        asynchronous algorithm may test better than the final model; call `rest` first to include them. Training goes on
        afterwards as if this method had not been called. After `finish`, any single rank may call this method, which
        then returns a copy of the final model. Tensors that modules keep with a graph are copied without it. Objects
        that cannot be copied, such as a lock, are shared with the model, with a warning.

        Raises the errors of `step`, and RuntimeError if the model's class makes no copy.
        """
        result = copy_of(self.replica.model, "averaged_model()")
        if self.finished:
            return result
        self._in_place.check()
        self.meet("in averaged_model()")
        self.driver.run(self._lifecycle.start())
        self.driver.run(average_into(result, self.algorithm, self._in_place))
        self.driver.run(self.equal_models.look(self.steps))
        self.replica.follow(result)
        self.driver.run(make_equal(self._uncounted_comm, self.replica.outside(result)))
        return result

    def broken_off(self):
        """Record that an error has ended a recording; some ranks have not made the last collective calls."""
        self.end_is_told = True
        self._roll_call.begin_anew()

    def meet(self, call: str) -> Answers:
        """Wait until all ranks are in a collective call, such as ``in rest()``; raises UnevenCalls."""
        answers = self._roll_call.call(call + self._of_this, self.steps)
        self.driver.run(answers.come())
        return answers

    @property
    def steps(self) -> int:
        """The number of steps that this rank has taken."""
        return self.times.totals.steps

    @untraced
    def rest(self):
        """Take in all messages under way, between two steps and on all ranks, so that `state_dict` is complete.

        Needed with asynchronous algorithms, ``sgp`` with ``tau``, and ``diloco`` with ``delay``; does nothing with
        others. Training goes on with the next step.
        """
        self._check()
        if not self._is_at_rest:
            self.meet("in rest()")
            self.driver.run(self._lifecycle.rest())
            self.driver.run(halving_doubling_allreduce(self._uncounted_comm, np.zeros(1)))

    @untraced
    def state_dict(self):
        """Return the wrapped optimizer's state_dict, with this rank's state of the algorithm under the key "grsgd".

        While messages are under way, or if the class of the algorithm has no `remembers`, there is no such state.
        Without this state one warning names the remedy, and `load_state_dict` refuses the saved dictionary. The key is
        missing before the first step, and after `finish` with algorithms that need `rest`.
        """
        saved = self._saved.state(self._is_at_rest, self.finished)
        return self.optimizer.state_dict() | self.recorded.state() | saved

    @untraced
    def load_state_dict(self, state_dict):
        """Load a `state_dict` of the same rank; load the model separately, at any time after `distribute`.

        Raises ConfigError for a state of another algorithm or rank, or without the algorithm's state. Raises
        RuntimeError if messages are under way here: call `rest` first. The next step raises ConfigError if the model
        differs from the model at the time of saving.
        """
        state_dict = dict(state_dict)
        self.recorded.load(state_dict)
        kept = self._saved.take(state_dict, self._is_at_rest)
        self.optimizer.load_state_dict(state_dict)
        self._saved.load(kept, self.driver)

    def __repr__(self):
        return f"{type(self).__name__}({self.algorithm.name}, {self.optimizer!r})"

    @property
    def _step_supports_amp_scaling(self) -> bool:
        """Whether `GradScaler.step` leaves steps with overflow to the optimizer: no, it looks at gradients itself."""
        if self._gradients is not None and not self._gradients.reduced:
            raise RuntimeError(
                "GradScaler.step() with gradients of this rank alone: call optimizer.synchronize() after backward(), "
                "or a rank whose gradients overflow skips a step in which the others wait for it"
            )
        return False

    def _check(self):
        if self.finished:
            raise RuntimeError("step() after finish(): the ranks do not train together any more; distribute() again")
        self._in_place.check()

    def _reduce(self):
        if not self._gradients.taken():
            self._begin_step()
            while True:
                self._gradients.collect()
                self._run(self.algorithm.reduce)
                if not self._gradients.sent_in_vain():
                    break
            self._gradients.take()

    def _gradients_are_own(self) -> bool:
        """Return whether gradients have been computed that `step` will average."""
        return self._gradients is not None and self._step_under_way and not self._gradients.reduced

    def _run(self, hook):
        self._roll_call.points += self.algorithm.traits.synchronous
        self._is_broken = True
        self.times.run(hook)
        self._is_broken = False

    def _end_what_was_sent(self):
        """End, on all ranks, the sums that a backward pass on any rank has begun and that no step followed."""
        begun = np.array([float(self._gradients.has_sent)])
        self.driver.run(halving_doubling_allreduce(self._uncounted_comm, begun))
        if begun[0]:
            self._gradients.begin()  # use the buffer that does not have the last step's gradients
            self.driver.run(schedule_of(self.algorithm.reduce))

    def _begin_step(self):
        if not self._step_under_way:
            self._saved.check_model()
            self._step_under_way = True
            self._roll_call.points += self.algorithm.traits.synchronous
            self.driver.run(self._lifecycle.begin())
            if self._gradients is not None:
                self._gradients.begin()
            if self._prepares:
                self.driver.poll()
                self._run(self.algorithm.before_backward)

    def _before_forward(self, samples: int | None):
        self._begin_step()
        self.times.forward(samples)

    def _watch(self):
        """Raise an error that makes further waiting useless; called regularly while this rank waits."""
        in_step = self._step_under_way and self.algorithm.traits.synchronous
        self._roll_call.watch(self.steps + 1 if in_step else 0, self.algorithm.name)
        self.stops.watch_in_step()

    @property
    def _is_at_rest(self) -> bool:
        """Return whether no message of the algorithm is under way between two steps."""
        return self.algorithm.traits.rests_between_steps or not self._lifecycle.has_begun

    def _check_finished(self):
        """End the job if this rank leaves without `finish`: the others would wait for ever. Does nothing in a fork."""
        mpi = self._uncounted_comm.backend.mpi
        if mpi.size > 1 and os.getpid() == self._process:
            if not self.end_is_told:
                who = f"rank {mpi.rank} of {mpi.size}"
                print(f"grsgd: {who} ended without optimizer.finish() or close()", file=sys.stderr)
            launch.abort(mpi)
