"""A user's own loop that goes on after the death of a process, with the recovery that `grsgd train` uses."""

import math
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import islice

import numpy as np
import torch

from grsgd import seeding
from grsgd.algorithms.averaging import average_buffers, exact_average
from grsgd.algorithms.context import RankContext
from grsgd.algorithms.equal_tensors import make_equal
from grsgd.algorithms.hooks import schedule_of
from grsgd.algorithms.lifecycle import Lifecycle
from grsgd.comm.allreduce import broadcast
from grsgd.comm.backend import MpiBackend
from grsgd.comm.communicator import Communicator
from grsgd.comm.pollables import Until
from grsgd.own_loop.asked_checkpoints import AskingSignals, run
from grsgd.own_loop.iterations import CountedIterations
from grsgd.own_loop.lives import GO_ON, Lives, meet
from grsgd.own_loop.loop import Loop
from grsgd.own_loop.packed_state import packed, unpacked
from grsgd.own_loop.survived_average import JoinedAverages, RequestedAverages, call_number
from grsgd.training.progress import Lockstep
from grsgd.training.rank_state import restore_streams
from grsgd.training.survival import recovery_from_deaths


class SurvivingLoop(Loop):
    """Calls of an algorithm's hooks in a loop that goes on after the death of a process.

    The loop has the attributes that a recovery (`grsgd.training.surviving`) needs of a trainer. The loop's progress
    counts iterations, not samples.

    Parameters
    ----------
    optimizer
        Distributed optimizer, before its first step.
    lives
        Communicators of all processes.
    objects
        Objects of the user, by name. A rank that is behind takes over their states from another rank.
    is_late
        Whether this process has taken the rank of a dead process.
    kept
        Checkpoints of the loop (`grsgd.own_loop.kept_loop.KeptLoop`); None if the loop takes no checkpoints.
    """

    survives = hands_over = True
    before = 0
    """Number of iterations in the name of the loaded checkpoint which no present rank has counted."""
    is_one_schedule = False
    """Whether all steps are one schedule (a generator that a driver runs), as in a trainer of `grsgd train`."""

    def __init__(self, optimizer, lives: Lives, objects: dict[str, object], is_late: bool = False, kept=None):
        self.lives, self.objects, self.times, self.is_late = lives, objects, optimizer.times, is_late
        self.distributed = optimizer
        self.replica, self.driver, self.stop_signal = optimizer.replica, optimizer.driver, optimizer.stops
        self.optimizer, before = optimizer.times.optimizer, optimizer.algorithm
        self.context = RankContext(
            lives.comm, lives.uncounted, self.driver, seed=optimizer.seed, membership=lives.membership
        )
        self._of_options = partial(type(before), before.options, self.replica, self.optimizer)
        self.beside = self.driver.beside(lives.membership.process)
        self.kept, self.signals = kept, AskingSignals(self)
        checkpoints = kept and kept.recovery(optimizer, lives)
        self.recovery = recovery_from_deaths(before.traits, self.context, lives.states, self.beside, checkpoints)
        context = self.recovery.context_of(self.context)
        kind, where = (Lockstep, context) if before.traits.synchronous else (CountedIterations, self.context)
        self.progress = kind(where.uncounted_comm, self.driver, None, math.inf, 1)
        super().__init__(self.make_lifecycle(context))
        self.recovery.attach(self)
        self.averages = (JoinedAverages if before.traits.survives_deaths == "together" else RequestedAverages)(self)
        self.is_over = False
        """Whether the other ranks have ended their training."""
        self._iteration, self._averages = -1, 0
        """Number of the present iteration, and number of the script's calls for an average in the present iteration."""
        self._state_of_another: dict = {}
        """State that this rank takes over at the end of an iteration in which other ranks have overtaken it."""
        self._prepared = None
        """The algorithm whose `before_backward` was called for the present step."""
        self._has_stepped = True
        """Whether the present iteration has had its step, or no iteration is under way."""
        self._is_wanted, self._packs, self._packed = False, 0, np.zeros(0, np.uint8)
        """Whether a process waits for this rank's state, how often the state was packed, and the state as bytes."""
        self._has_ended = False
        """Whether the packed state is the state after the last iteration."""
        self._without_share = 0
        """Number of steps whose mean gradient has no part from this rank, whose process had just joined."""
        self.streams: dict = {}
        """States of random streams from a checkpoint, to be restored after the items of earlier iterations were
        drawn."""
        self.generators: dict[str, torch.Tensor] = {}
        """States of the user's generators from a checkpoint, by name, to be restored together with ``streams``."""

    def make_lifecycle(self, context: RankContext) -> Lifecycle:
        """Return the lifecycle of a new algorithm that sends its messages with ``context``."""
        return Lifecycle(self._of_options(context))

    @property
    def left_out(self) -> int:
        return super().left_out + self._without_share

    # ---- the loop

    def start(self):
        """Begin the loop before the first iteration, on all ranks at once, or on a process that takes a rank."""
        self.driver.raises_in_waits_only = True  # the recovery handles errors of waits, not of polls
        self.beside.start(self.lives.membership.attend())
        self.beside.start(self.stop_signal.attend())
        if self.is_late:
            self.driver.run(self.recovery.take_over())
        else:
            if self.kept and self.kept.resumed:
                self.driver.run(self.lifecycle.start())
                self.recovery.started()
            self.progress.start()
        self.driver.run(self._begin())
        if not self.progress.began:
            self.progress.start()
        self.recovery.begun()
        self.averages.start()

    def iterate(self, items: Iterable) -> Iterator:
        """Yield the items of this rank's iterations, except iterations that a regrouping has passed over.

        Each iteration has at most one step. Raises EndedBySignal if a signal ends the loop after a checkpoint.
        """
        items, drawn = iter(items), 0
        self.signals.begin()
        while not self.is_over:
            if self._is_wanted:
                self._pack()
            if self.kept:
                self._take_checkpoint()
                if self.is_over:
                    return
            missed = self.position - drawn
            try:
                item = self._item_after(items, missed)
            except StopIteration:
                return
            drawn += missed + 1
            self._has_stepped = self.is_overtaken = False
            self._iteration, self._averages = drawn - 1, 0
            yield item
            if not self._has_stepped and not self.is_overtaken:
                self.progress.advance(1)
            if self.position > drawn:  # the other ranks took this step without this rank, so their objects are ahead
                self._take(self._state_of_another)
            self._state_of_another = {}
            self._has_stepped, self.is_overtaken = True, False

    def _item_after(self, items: Iterator, missed: int):
        """Return the item that follows the next ``missed`` items. First restore random streams of a checkpoint."""
        if self.streams:
            list(islice(items, missed, missed))
            restore_streams(self, self.streams)
            for name, state in self.generators.items():
                self.objects[name].set_state(state)
            self.streams, missed = {}, 0
        return next(islice(items, missed, None))

    def _take_checkpoint(self):
        """Take a checkpoint, if due, between two iterations. After a regrouping, take over another rank's state."""
        run(self, self.whole(self._between_iterations))
        self._take(self._state_of_another)
        self._state_of_another = {}

    def _between_iterations(self):
        """Schedule that takes a checkpoint if one is due. All ranks first rest (receive all messages under way)."""
        yield from self.lifecycle.begin()
        if (yield from self.recovery.before_step(self.position)):
            self.recovery.leave_steps()
            yield from self.lifecycle.rest()
            yield from self.recovery.at_rest(ended=False)
            yield from self.lifecycle.begin()

    @property
    def reached(self) -> int:
        """Number by which checkpoints are ordered and named: the iterations of each rank in lockstep, and for other
        ranks the iterations of all ranks together, including ranks without a process."""
        progress = self.progress
        return progress.steps if isinstance(progress, Lockstep) else self.before + int(progress.counts.sum())

    @property
    def position(self) -> int:
        """Number of iterations that this rank's model has seen."""
        return self.progress.batches

    def begin(self):
        if self.replica.grads is None:  # if gradients are sent, the ranks regroup after the gradient, to keep it
            yield from self._begin()

    def _begin(self):
        yield from self.whole(lambda: self.lifecycle.begin())

    def hook(self, name):
        def part():
            yield from self.lifecycle.begin()
            if self._prepared is not self.algorithm and name != "before_backward":
                yield from schedule_of(self.algorithm.before_backward)
            self._prepared = self.algorithm
            if name == "reduce":
                self.recovery.put_back()
            yield from schedule_of(getattr(self.algorithm, name))

        return partial(self.whole, self.recovery.guarded(part))

    def whole(self, part: Callable):
        """Schedule that runs ``part()``, a hook or schedule, to its end, even if the ranks regroup meanwhile."""
        self.is_over |= not (yield from self.recovery.whole(partial(self._settled, part)))

    def _settled(self, part: Callable):
        """Schedule that computes averages requested before a regrouping, then runs ``part()``.

        If the other ranks have taken this rank's step without it, this rank has their model, and leaves ``part()`` out.
        """
        self.progress.begin()
        yield from self.averages.settle()
        self.is_overtaken |= not self._has_stepped and self.position > self._iteration
        if not self.is_overtaken:
            yield from schedule_of(part)

    def average(self):
        """Schedule that returns a copy of the model whose values are the average of the living ranks' models."""
        self._averages += 1
        return (yield from self.averages.average(call_number(self._iteration, self._averages)))

    def check(self):
        if self._has_stepped:
            raise RuntimeError("step() twice in one iteration of surviving(), or outside: call it once in each")

    def collected(self):
        self.recovery.collected()

    def stepped(self):
        self._prepared, self._has_stepped = None, True
        self._without_share += not self.recovery.has_share
        if not self.is_overtaken:
            self.progress.advance(1)
        self.times.totals.steps = self.position

    def watch(self):
        self.recovery.watch()

    def warnings(self):
        return self.recovery.warnings()

    def refuse(self, call, remedy=""):
        remedy = remedy or "let it follow finish()"
        raise RuntimeError(f"{call} with surviving(): a process may die in it; {remedy}")

    # ---- for the recovery

    def take_place(self, batches: int, marks: int):
        """Do nothing, because `iterate` leaves out the items that this rank has had before."""

    def hand_over(self, comm: Communicator, giver: int, is_wanted: bool):
        """Schedule, run on all ranks of ``comm`` at once, that sends the state of rank ``giver``. Ranks with
        ``is_wanted`` load the state."""
        content = packed(self.state()) if comm.rank == giver else np.zeros(0, np.uint8)
        size = np.array([content.size])
        yield from broadcast(comm, size, root=giver)
        content = content if comm.rank == giver else np.zeros(int(size[0]), np.uint8)
        yield from broadcast(comm, content, root=giver)
        if is_wanted:
            self.load(content)

    def content(self):
        """Schedule for the background that returns this rank's state as bytes, after the present iteration has
        ended."""
        packs, self._is_wanted = self._packs, True
        yield Until(lambda: self._packs > packs or self._has_ended, "the end of this rank's iteration")
        return self._packed

    def _pack(self):
        self._is_wanted, self._packed = False, packed(self.state())
        self._packs += 1

    def state(self) -> dict:
        """Return the state that this rank gives to another rank: the optimizer's groups, the states of the user's
        objects, the model's tensors that are not trained, the recording, and ``before``."""
        recording = self.distributed.recording
        return {
            "groups": [{key: each for key, each in group.items() if key != "params"} for group in self._groups],
            "objects": {name: each.state_dict() for name, each in self.stateful.items()},
            "outside": [tensor.detach().cpu() for tensor in self.replica.outside()],
            "recording": recording and recording.shared(),
            "before": self.before,
        }

    def load(self, content: np.ndarray):
        """Take over the state of another rank; ``content`` are the bytes of the state."""
        state = unpacked(content)
        if self._iteration >= 0:
            self._state_of_another = state
            return
        self._take(state)
        if self.is_late:
            for tensor, theirs in zip(self.replica.outside(), state["outside"], strict=True):
                tensor.detach().copy_(theirs)
            if self.distributed.recording and state["recording"]:
                self.distributed.recording.take(**state["recording"])
            self.before = state["before"]
            self.seed_generators()

    def _take(self, state: dict):
        """Take over the optimizer's groups and the states of the user's objects from the state of another rank."""
        for group, theirs in zip(self._groups, state.get("groups", ()), strict=False):
            group.update(theirs)
        self.take_objects(state.get("objects", {}))

    def take_objects(self, states: dict):
        """Take over ``states``, the states of the user's objects by name."""
        for name, theirs in states.items():
            self.stateful[name].load_state_dict(theirs)

    def seed_generators(self):
        """Give the user's generators new seeds, because the process that held the rank before used the script's
        seeds."""
        key = self.lives.membership.rank, self.position
        for number, each in enumerate(self.objects.values()):
            if isinstance(each, torch.Generator):
                seeding.begin_stream(each, seeding.Purpose.TAKEN_RANK, self.context.seed, *key, number)

    def go_on(self, reached: int, record: dict | None):
        """Go on from a checkpoint whose state this rank has loaded. ``reached`` is the number in the checkpoint's name,
        and ``record`` is the recording that the checkpoint has stored."""
        self.before = max(reached - int(self.progress.counts.sum()), 0)
        self.times.totals.steps = self.position
        if self.distributed.recording:
            self.distributed.recording.go_on_from(record)

    @property
    def generators_given(self) -> dict[str, torch.Generator]:
        """The user's generators, by name."""
        return {name: each for name, each in self.objects.items() if isinstance(each, torch.Generator)}

    @property
    def stateful(self) -> dict[str, object]:
        return {name: each for name, each in self.objects.items() if not isinstance(each, torch.Generator)}

    @property
    def _groups(self) -> list[dict]:
        return self.optimizer.param_groups

    def to_the_end(self):
        """Schedule that receives all messages under way, after this rank's last iteration."""
        yield from self.averages.settle()
        is_over = False
        while not is_over:
            yield from self.lifecycle.begin()
            self.recovery.leave_steps()
            yield from self.lifecycle.drain()
            yield from self.progress.finish()
            is_over = yield from self.recovery.at_rest(ended=True)
            self.lifecycle.has_begun = is_over  # if other ranks still iterate, this rest was for their checkpoint

    # ---- the end

    def finish(self):
        """Make the models of all living ranks equal, after the last iteration. All living ranks must call this
        method."""
        self._pack()
        self._has_ended = True
        run(self, self.recovery.train())
        self.driver.watch = None
        self.recovery.ended()
        params, buffers = meet(self.lives.world, self.driver.timeout, GO_ON, self._average)
        self.stop_signal.watch()
        self.lives.membership.look()
        self.replica.params.tensor.copy_(params.tensor)
        self.replica.buffers.tensor.copy_(buffers.tensor)
        self.times.totals.steps = self.position
        self.close()

    def close(self):
        """Restore the former signal handlers, and let other jobs take checkpoints in the folder."""
        self.signals.close()
        self.beside.close()
        if self.kept:
            self.kept.close()

    def _average(self, mpi, made: list):
        """Return the average model of all processes of ``mpi``, as copies of the flat parameters and buffers."""
        comm, run = Communicator(MpiBackend(mpi, self.driver.timeout)), self.driver.run
        have_trained = mpi.allgather(self.recovery.has_trained)
        weight = self.algorithm.weight if self.recovery.has_trained else 0.0
        copies = []
        for flat, tensor in zip((self.replica.params, self.replica.buffers), self.recovery.model(), strict=True):
            copies.append(flat.like())
            copies[-1].tensor.copy_(tensor)
        run(exact_average(comm, copies[0], weight, root=have_trained.index(True)))
        run(average_buffers(comm, self.replica, copies[1]))
        run(make_equal(comm, self.replica.outside()))
        return copies
