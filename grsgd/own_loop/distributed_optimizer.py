"""Optimizer for a user's own training loop, which trains a model together with the models of the other ranks."""

import atexit
import os
import warnings
from collections import OrderedDict
from contextlib import contextmanager, nullcontext

import numpy as np
import torch

from grsgd.algorithms.base import Algorithm
from grsgd.algorithms.equal_models import EqualModels
from grsgd.algorithms.equal_tensors import make_equal
from grsgd.algorithms.lifecycle import Lifecycle
from grsgd.comm.allreduce import halving_doubling_allreduce
from grsgd.comm.watchdog import within
from grsgd.job import words
from grsgd.job.ending import BEFORE_ABORT
from grsgd.own_loop.averaged_model import AveragingOptimizer
from grsgd.own_loop.checks import InPlace
from grsgd.own_loop.early_gradients import EarlyGradients
from grsgd.own_loop.forward_hook import BeforeForward
from grsgd.own_loop.gradients import CHANGED, on_gradients
from grsgd.own_loop.joining import Joining, joined
from grsgd.own_loop.leaving import end_if_unfinished
from grsgd.own_loop.loop import Loop
from grsgd.own_loop.other_steps import OtherSteps
from grsgd.own_loop.ranks import warn_of_other_shards
from grsgd.own_loop.resume import SavedAlgorithm
from grsgd.own_loop.roll_call import FINISH, Answers, RollCall
from grsgd.own_loop.saved_record import SavedRecord
from grsgd.own_loop.saving import SavingOptimizer
from grsgd.own_loop.share_of_data import SharingOptimizer
from grsgd.own_loop.stops import Stops
from grsgd.own_loop.times import LoopTimes
from grsgd.own_loop.tracing import untraced
from grsgd.training import unwrapped

unfinished: list["DistributedOptimizer"] = []
"""Optimizers of this process whose training has not ended."""


class DistributedOptimizer(SharingOptimizer, AveragingOptimizer, SavingOptimizer):
    """Torch optimizer whose ``step()`` also mixes the models of all ranks. `distribute` makes this optimizer.

    ``param_groups`` and ``state`` are the wrapped optimizer's; ``state_dict()`` adds the entries of the algorithm.
    """

    end_call = "optimizer.finish() or close()"
    """Name of the call that a user's script must make after the last step, for error messages."""

    def __init__(self, optimizer, replica, gradients, algorithm, context, transport, roll_call: RollCall):
        """Wrap ``optimizer``, which the user's script has made. ``gradients`` are the gradients that ``algorithm``
        sends, or None if ``algorithm`` sends models. ``transport`` says how arrays travel between ranks
        (`grsgd.comm.gpu.select.Choice`)."""
        driver, uncounted = context.driver, context.uncounted_comm
        self.optimizer, self.model = optimizer, replica.model
        self.replica, self.driver = replica, driver
        self.loop = Loop(Lifecycle(algorithm))
        self.seed, self.transport = context.seed, transport
        self.reasons: dict[str, str] = {}
        """Reasons for the choice of options left open by the user (``variant = "auto"``), by attribute of a run
        file."""
        self.finished = False
        self.times = LoopTimes(driver, algorithm.optimizer)
        self.moment = driver.clock()
        """Time of the driver's clock, in seconds, at the end of the last step or of `finish`."""
        self.stops = Stops(driver.clock)
        self.end_is_told = False
        """Whether a recording has already printed why the ranks end their scripts without a call of `finish`."""
        self.recorded = SavedRecord()
        self.recording = None
        """The recording (`grsgd.own_loop.recording.LoopRun`) that is under way; None without a recording."""
        self._gradients, self._uncounted_comm = gradients, uncounted
        self.joining = Joining(uncounted, driver)
        self._in_place = InPlace(replica)
        self._roll_call, self._of_this = roll_call, roll_call.of_new_optimizer()
        self._step_under_way = False
        self._is_broken = False
        """Whether an error broke off a hook of the algorithm, whose messages are then possibly under way."""
        self._saved = SavedAlgorithm(self.loop.lifecycle)
        self.equal_models = EqualModels(algorithm)
        prepare = type(algorithm).before_backward
        self._prepares = prepare is not Algorithm.before_backward or algorithm.traits.in_background
        """Whether the algorithm possibly has work to do before a backward pass begins."""
        self._warned = False
        self._process = os.getpid()
        # torch's register_step_pre_hook() and register_step_post_hook() keep their hooks in these two attributes.
        self._optimizer_step_pre_hooks, self._optimizer_step_post_hooks = OrderedDict(), OrderedDict()
        self._hooks = [replica.model.register_forward_pre_hook(BeforeForward(self.before_forward), with_kwargs=True)]
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
        """Update the model, and exchange models or gradients with other ranks. If ``closure`` is given, `step` first
        calls ``closure()`` once.

        Raises RuntimeError after `finish`, if trained parameters were given new memory, and if parameters were frozen
        or unfrozen. With a synchronous algorithm, raises RuntimeError if this rank waits for a rank that has called
        `finish` after fewer steps.
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
        self.loop.check()
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
                f"{type(self.optimizer).__name__} asks for its closure, which distribute() calls once, before the "
                f"step: an optimizer that calls the closure itself cannot be distributed ({error})"
            ) from error
        if self.equal_models.is_due(self.steps + 1) and self.joining.all_have_batches:
            self._run(lambda: self.equal_models.look(self.steps + 1))
        self._step_under_way = False
        self.times.step_ended()
        self.loop.stepped()
        self.moment = self.driver.clock()
        if not self.algorithm.traits.synchronous:  # with a synchronous algorithm, `_watch` looks for uneven steps
            self._roll_call.look(self.steps, self.moment)
        self.stops.watch()
        return loss

    def _apply(self):
        """Update the model, and send the messages of the present step that were not sent before ``step()``."""
        if self._gradients is None:
            self.joining.has_batch()
            self._begin_step()  # no hook has begun the step if the script did not call the model as a module
            self._run(self.loop.hook("step"))
        else:
            self._reduce()
            if not self.loop.is_overtaken:
                self.times.run_update(self.algorithm.update)
            self._gradients.forget()

    def step_without_batch(self):
        """Take part, within `join`, in a step of the other ranks for which this rank has no batch.

        If the algorithm sends gradients, this rank sends zeros and keeps its model. If the algorithm sends models, this
        rank mixes its model with others, and its optimizer changes no parameter.
        """
        self.zero_grad()
        if self._gradients is None:
            self._begin_step()
            self._run(self.loop.hook("step"))
        else:
            self._reduce(has_batch=False)
            self.zero_grad()
        self._step_under_way = False

    @untraced
    def synchronize(self):
        """Replace this rank's gradients by the means over all ranks, which `step` will apply. All ranks must call this
        method.

        Call this method before code that reads or changes gradients between ``backward()`` and ``step()``, such as
        clipping or ``GradScaler.unscale_``. The next ``step()`` then sends no gradients. With algorithms that send
        models, this method has no effect.
        """
        self._check()
        if self._gradients is not None:
            self._reduce()
            self._gradients.follow()

    @contextmanager
    def no_sync(self):
        """Accumulate gradients without sending them, as ``no_sync`` of torch's DDP does. Use this context for all
        backward passes of a step except the last. Without buckets, gradients are only sent in ``step()`` in any
        case."""
        with self._gradients.held_back() if self._gradients is not None else nullcontext():
            yield

    def join(self):
        """Return a context for a loop in which ranks have unequal numbers of batches, like DDP's ``join``; collective.

        A rank whose loop ends early takes part in the other ranks' steps without a batch. So all ranks have equal
        numbers of `steps` when they leave the block. Ranks of an asynchronous algorithm need no steps without batches.
        """
        self._check()
        self.loop.refuse("join()")
        return joined(self)

    @untraced
    def zero_grad(self, set_to_none: bool = True):
        unwrapped.zero_grad(self.optimizer, set_to_none)
        if self._gradients is not None:
            self._gradients.forget()

    @untraced
    def finish(self):
        """Receive all messages under way and make all models equal, after the last step. All ranks must call this
        method.

        Raises RuntimeError if trained parameters were given new memory, or if parameters were frozen or unfrozen.
        Raises UnevenCalls if another rank is in another collective call.
        """
        if self.finished:
            return
        self._in_place.check()
        self.replica.settle()
        if self.loop.survives:
            self._let_go()
            self.loop.finish()
            self._end(frees=False)
            BEFORE_ABORT.remove(self.stops.tell_failure)
            for process in self.loop.lives.membership.dead:  # a death does not make this job a failed one
                words.leave(words.ENDED, process=process)
            return
        all_finish = self._roll_call.call(FINISH + self._of_this, self.steps)
        self._let_go()
        self._drain()
        self.driver.run(all_finish.come())  # messages of the average must not arrive in another collective call
        self.driver.run(self.loop.lifecycle.average())
        self.replica.settle()
        self.driver.run(self.equal_models.at_end())
        self.driver.run(make_equal(self._uncounted_comm, self.replica.outside()))
        warn_of_other_shards(self._uncounted_comm.backend.mpi, self.driver.timeout)
        self._end()

    @untraced
    def close(self):
        """Give up the training: all ranks must call this instead of `finish`. Each rank's model keeps the rank's own
        weights.

        `close` frees everything that `distribute` has allocated. So a search over hyperparameters can drop a training
        in which all ranks have raised an exception. If an error broke off a step on some rank, messages of that step
        stay under way and keep their memory.
        """
        if self.finished:
            return
        self.loop.refuse("close()")
        self._let_go()
        all_close = self.meet("in close()")
        uneven = np.array([float(self._is_broken or len(all_close.points) > 1)])
        self._roll_call.count_steps_anew()
        self.driver.run(halving_doubling_allreduce(self._uncounted_comm, uneven))
        if not uneven[0]:
            self._drain()
        self._end(frees=not uneven[0])

    def give_up(self):
        """End the training in a loop over `surviving` that a signal has ended. All ranks call this method at once. Each
        rank's model keeps the rank's own weights."""
        self._let_go()
        self._end(frees=False)

    def _let_go(self):
        """Remove the hooks that `distribute` has given the model."""
        for hook in self._hooks:
            hook.remove()
        if self._gradients is not None:
            self._gradients.close()

    def _drain(self):
        """Receive, together with the other ranks, all messages of the algorithm that are under way."""
        self._is_broken = True
        self.driver.run(self.loop.begin())
        if isinstance(self._gradients, EarlyGradients):
            self.driver.run(self._gradients.end_sums(self._uncounted_comm, self.algorithm))
        self.driver.run(self.loop.lifecycle.drain())
        self._is_broken = False

    def _end(self, frees: bool = True):
        """End this training. If ``frees``, also free the training's communicators, on which no message may then be
        under way."""
        self.driver.close()
        self.replica.settle()
        self.replica.leave()
        with within(self.driver.timeout, "freeing communicators"):
            for comm in (self.algorithm.comm, self._uncounted_comm) if frees else ():
                comm.free()
        self.finished = True
        self.moment = self.driver.clock()
        unfinished.remove(self)
        atexit.unregister(self._check_finished)

    def survive(self, loop: Loop):
        """Go on in ``loop``, a loop that continues after the death of a process."""
        self.stops.signal = self.stops.signal or loop.lives.signal
        self.stops.signal.tolerant = True
        self.loop, self.equal_models = loop, EqualModels(loop.algorithm, is_looked_at=False)
        BEFORE_ABORT.append(self.stops.tell_failure)
        loop.start()

    def broken_off(self):
        """Record that an error has ended a recording, so that some ranks did not make the recording's last collective
        calls."""
        self.end_is_told = True
        self._roll_call.begin_anew()

    def meet(self, call: str) -> Answers:
        """Wait until all ranks are in the collective call named ``call``, such as "in rest()". Raises UnevenCalls."""
        answers = self._roll_call.call(call + self._of_this, self.steps)
        self.driver.run(answers.come())
        return answers

    @property
    def algorithm(self) -> Algorithm:
        """The algorithm of this rank."""
        return self.loop.algorithm

    @property
    def steps(self) -> int:
        """Number of steps that this rank has taken."""
        return self.times.totals.steps

    def __repr__(self):
        return f"{type(self).__name__}({self.algorithm.name}, {self.optimizer!r})"

    @property
    def _step_supports_amp_scaling(self) -> bool:
        """False: `GradScaler.step` itself looks for overflow. Raises RuntimeError if gradients are not yet averaged."""
        if self._gradients is not None and not self._gradients.reduced:
            raise RuntimeError(
                "GradScaler.step() with gradients of this rank alone: call optimizer.synchronize() after backward(); "
                "without the call, a rank whose gradients overflow skips a step in which the other ranks wait for it"
            )
        return False

    def _check(self):
        if self.finished:
            raise RuntimeError("step() after finish(): the ranks do not train together any more; distribute() again")
        self._in_place.check()

    def _reduce(self, has_batch: bool = True):
        if not self._gradients.taken():
            if has_batch:
                self.joining.has_batch()
            self._begin_step()
            while True:
                self._gradients.collect()
                self.loop.collected()
                self._run(self.loop.hook("reduce"))
                if not self._gradients.sent_in_vain():
                    break
            self._gradients.take()

    def _gradients_are_own(self) -> bool:
        """Return whether the present gradients come from this rank alone, so that `step` will average them."""
        return self._gradients is not None and self._step_under_way and not self._gradients.reduced

    def _run(self, hook):
        self._roll_call.points += self.algorithm.traits.synchronous
        self._is_broken = True
        self.times.run(hook)
        self.replica.settle()
        self._is_broken = False

    def _begin_step(self):
        if not self._step_under_way:
            self._saved.check_model()
            self._step_under_way = True
            self.replica.settle()
            self._roll_call.points += self.algorithm.traits.synchronous
            self.driver.run(self.loop.begin())
            if self._gradients is not None:
                self._gradients.begin()
            if self._prepares:
                self.driver.poll()
                self._run(self.loop.hook("before_backward"))

    def before_forward(self, samples: int | None):
        """Record that a forward pass of ``samples`` samples begins. A hook of the model calls this method."""
        self._begin_step()
        self.times.forward(samples)

    def _watch(self):
        """Raise an error if this rank waits in vain. The driver calls this method while this rank waits."""
        in_step = self.joining.is_open or (self._step_under_way and self.algorithm.traits.synchronous)
        self._roll_call.watch(self.steps + 1 if in_step else 0, self.algorithm.name)
        self.stops.watch_in_step()
        self.loop.watch()

    def _check_finished(self):
        end_if_unfinished(self._uncounted_comm.backend.mpi, self._process, self.end_is_told, self.end_call)
