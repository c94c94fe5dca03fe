"""Checkpoints of a run: the state of every rank (`rank_state`), stored in a folder that remains after the job's end.

Each rank writes its own checkpoint files (`checkpoint_folder`) in the background, while training continues. A
checkpoint is whole when all ranks have written their files.
"""

import secrets
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from grsgd.comm import tags
from grsgd.comm.allreduce import broadcast, halving_doubling_allreduce
from grsgd.comm.elastic.meeting import GO_ON, Meeting
from grsgd.comm.stop_signal import EndAsked
from grsgd.errors import ConfigError
from grsgd.training.checkpoint_file import Header
from grsgd.training.checkpoint_folder import (
    KEPT,
    as_numbers,
    from_numbers,
    is_same_folder,
    mark_complete,
    name_of,
    remove,
    remove_others,
)
from grsgd.training.checkpoint_writer import CheckpointWriter
from grsgd.training.curve_file import CurveFile
from grsgd.training.memory_checkpoints import MemoryCheckpoints, NoMemory
from grsgd.training.recovery import Recovery, do_nothing
from grsgd.training.trainer import Trainer

ID_BITS = 52
"""Number of bits of a checkpoint's random id. Ranks send the id as a float64, which represents integers of up to 53
bits exactly."""


@dataclass(frozen=True)
class Every:
    """Interval between two checkpoints: either ``steps`` training steps or ``seconds`` seconds."""

    steps: int | None = None
    seconds: float | None = None

    @classmethod
    def read(cls, text: str, option: str = "--every") -> "Every":
        """Return the interval that ``text`` gives: ``100`` means steps, ``60s`` means seconds. Raises ConfigError,
        whose message names the command's ``option``, if ``text`` has any other form."""
        with suppress(ValueError):
            if text.endswith("s") and float(text[:-1]) > 0:
                return cls(seconds=float(text[:-1]))
            if int(text) > 0:
                return cls(steps=int(text))
        raise ConfigError(f"{option} {text}: expected steps, as in 100, or seconds, as in 60s")


class Checkpoints(Recovery):
    """Checkpoints of one rank, from which a later job can continue the run.

    If an algorithm can have messages under way between two steps, all ranks rest (pause) before a checkpoint. To rest,
    ranks receive all messages that are under way, and end their activities in the background.

    Parameters
    ----------
    writer
        Writer of this rank's checkpoint files. All ranks share one folder, or each rank has a folder of its own.
    every
        Interval between two checkpoints in the folder; in steps or in seconds.
    meeting
        Agreement of all ranks on the step of the next checkpoint, if a clock, a signal or a rank asks for a checkpoint.
    rests_between_steps
        Whether no message of the algorithm is under way between two steps; if False, ranks rest before a checkpoint.
    go_on
        Function ``go_on`` of `Recovery`.
    memory
        Object that takes further checkpoints in the memory of hosts, between the checkpoints in the folder.
    """

    knows_the_end = False

    def __init__(
        self,
        writer: CheckpointWriter,
        every: Every,
        meeting: Meeting,
        rests_between_steps: bool,
        go_on: Callable[[Trainer], None] = do_nothing,
        memory: MemoryCheckpoints | NoMemory | None = None,
    ):
        super().__init__(go_on)
        self.writer, self.folder, self.every, self.meeting = writer, writer.folder, every, meeting
        self.memory = memory or NoMemory()
        self._for_folder: deque[str] = deque()
        """Reasons for which this rank has requested a checkpoint in the folder, and not only in the memory of hosts. A
        checkpoint in memory does not fulfil a request for a checkpoint in the folder."""
        self._was_for_memory = False
        """Whether the last checkpoint was stored only in the memory of hosts."""
        self.comm, self.in_lockstep = meeting.comm, meeting.in_lockstep
        self.rests_between_steps = rests_between_steps
        self._at = 0
        """Number of samples that all ranks together had processed at the last checkpoint in the folder."""
        self._step, self._time = 0, time.monotonic()
        """Number of this rank's step at the last checkpoint in the folder, and the time of this checkpoint in
        seconds."""
        self._meets = False
        """Whether this rank must rest (pause) now, because a rank has asked all ranks to meet for a checkpoint."""
        self._ends_for = GO_ON
        """Reason to end the run after the checkpoint that is being taken; GO_ON if the run goes on."""
        self._all_ranks = meeting.comm
        self._curve = CurveFile(self.folder, self.comm.rank)
        self._whole: list[tuple[str, str]] = []
        """Names of two folders for each whole checkpoint that is kept: the checkpoint's folder, and the folder of its
        snapshots."""

    def attach(self, trainer: Trainer):
        """Take checkpoints of ``trainer`` from now on. Raises ConfigError if the state of the trainer's optimizer
        cannot be written to a file."""
        super().attach(trainer)
        self.writer.attach(trainer)
        self.memory.attach(trainer)

    def go_on_from_checkpoint(
        self, folder: Path, samples: int, whole: list[tuple[str, str]], curve: CurveFile | None
    ):
        """Record the checkpoint from which this run goes on, and the whole checkpoints in ``folder``. Checkpoints in
        ``folder`` that are newer than the recorded checkpoint are not whole, and are removed after the next whole
        checkpoint."""
        self._at, self._step, self._time = samples, self.trainer.recovery.position, time.monotonic()
        self.memory.step = self._step
        if is_same_folder(self.folder, folder):
            self._whole = list(whole)
            self._curve = curve or self._curve
            self.last = self.folder / name_of(samples)

    def watch(self):
        """Ask all ranks to take a checkpoint if this rank is rank 0 and the interval since the last checkpoint is over.
        Receive the requests of other ranks for a checkpoint. The trainer calls this method between steps and while this
        rank waits."""
        step = self.trainer.recovery.position
        self.memory.watch()
        if self.comm.rank == 0 and self._is_time(step):
            self._step, self._time = step, time.monotonic()
            self.asks_for_checkpoint(GO_ON)
        elif self.comm.rank == 0 and self._is_time_for_memory(step):
            self.memory.step = step
            self.meeting.ask()
        self.meeting.watch(step)

    def _is_time(self, step: int) -> bool:
        """Return whether rank 0 must ask all ranks for a checkpoint in the folder. If the interval is in steps, ranks
        in lockstep need no request, because each rank counts the same steps."""
        if self.every.seconds is not None:
            return time.monotonic() - self._time >= self.every.seconds
        return not self.in_lockstep and step >= self._step + self.every.steps

    def _is_time_for_memory(self, step: int) -> bool:
        """Return whether rank 0 must ask all ranks for a checkpoint in the memory of hosts. Ranks in lockstep, which
        count the same steps, need no request."""
        return not self.in_lockstep and step >= self.memory.step + self.memory.every

    def _is_due(self, step: int) -> bool:
        """Return whether ranks in lockstep take a checkpoint in the folder before step number ``step``."""
        return bool(self.in_lockstep and self.every.steps and step % self.every.steps == 0 and step > self._step)

    def before_step(self, step: int):
        """Take a checkpoint before step number ``step``, if a checkpoint is due. Return True if all ranks must rest
        (receive all messages) before the checkpoint, which `at_rest` takes in this case. This method is a generator
        (schedule) that the rank's driver (event loop) runs.

        If a signal of the system has asked for the end of the run, raises Stopped on all ranks after the checkpoint.
        """
        self.watch()
        meets = yield from self.meeting.before_step(step)
        is_due = self._is_due(step) or (self.in_lockstep and self.memory.is_due(step))
        if not self.rests_between_steps:
            self._meets = meets
            return bool(meets or is_due)
        if meets or is_due:
            yield from self._take(self.meeting.over() if meets else GO_ON)
        return False

    def leave_steps(self):
        """Record that this rank takes no further step before `at_rest`, in which all ranks meet.

        Ranks in lockstep still reply to requests to meet for a checkpoint, because another rank may ask to meet before
        a step that no rank takes.
        """
        self.meeting.is_held = not self.in_lockstep

    def at_rest(self, ended: bool):
        """Take a checkpoint, and return whether the run is over. This method is a generator (schedule) that all ranks
        run at once, while no message of the algorithm is under way.

        The run is over, and no checkpoint is taken, if any rank has taken its last step. A run of a user's own training
        loop is over only when all ranks have taken their last steps.

        ``ended`` says whether this rank has taken its last step. If a signal of the system has asked for the end of the
        run, raises Stopped on all ranks after the checkpoint.
        """
        votes = np.array([ended, self._meets, bool(self.meeting.reason)], float)
        yield from halving_doubling_allreduce(self.comm, votes, tags.CHECKPOINT)
        have_ended, meet, want_the_end = votes
        if have_ended and (self.trainer.is_one_schedule or have_ended == self.comm.size):
            yield from self.meeting.end()
            yield from self.written()
            yield from self.memory.over()
            return True
        if meet:
            yield from self.meeting.arranged()
        yield from self._take(self.meeting.over(want_the_end) if meet else GO_ON)
        return False

    def _take(self, reason: str):
        """Copy the state of the trainer, and start a thread that writes the copy. This method is a generator (schedule)
        that all ranks run at once. If ``reason`` is not empty, raises Stopped after the copy of the state is written.

        The checkpoint is written to the folder if any rank has a request for the folder, or if a checkpoint in the
        folder is due. If no rank requests the folder and no checkpoint in the folder is due, the checkpoint is stored
        only in the memory of hosts.
        """
        self._ends_for, requests = reason, len(self._for_folder)
        for _ in range(requests):  # a signal handler may add a request during this loop
            self._for_folder.popleft()
        self.memory.step = self.trainer.recovery.position
        wants_folder = bool(reason or requests) or self._is_due(self.trainer.recovery.position)
        in_folder, is_free, is_whole = yield from self.memory.agree(wants_folder)
        if not (in_folder or is_free):
            return
        yield from self.written()
        id = 0 if self.comm.rank else secrets.randbits(ID_BITS)
        told = np.array([self.trainer.recovery.samples, id], float)
        yield from halving_doubling_allreduce(self.comm, told, tags.CHECKPOINT)
        header = Header(f"{int(told[1]):013x}", int(told[0]), self.comm.size, self.comm.rank)
        if not in_folder:
            self._take_in_memory(header, is_whole)
        elif header.samples > self._at:
            self._at, self._step, self._time = header.samples, self.trainer.recovery.position, time.monotonic()
            self._was_for_memory = False
            self.writer.begin(header, self._curve)
        if reason:
            yield from self.written()
            self._ends_for = GO_ON
            raise EndAsked(reason)

    def _take_in_memory(self, header: Header, is_whole: bool):
        """Start a checkpoint in the memory of hosts. ``is_whole`` says whether all ranks have stored the last
        checkpoint in memory."""
        self.memory.conclude(is_whole, name_of(header.samples))
        if header.samples > max(self._at, self.memory.samples):
            self._was_for_memory = True
            self.memory.begin(header, self._curve)

    def written(self):
        """Wait until all ranks have written their files of the last checkpoint, and remove older checkpoints. This
        method is a generator (schedule) that all ranks run at once."""
        if not self.writer.has_begun:
            return
        yield from self.writer.written()
        if self._was_for_memory:
            return
        failed = np.array([float(bool(self.writer.problem))])
        yield from halving_doubling_allreduce(self.comm, failed, tags.CHECKPOINT)
        name = name_of(self._at)
        if failed[0]:  # a rank's file could not be written, so the files of all other ranks are useless
            remove(self.folder / name, self.comm.rank, self.comm.size)
            return
        self.last = self.folder / name
        self._whole = [*self._whole, (name, self._curve.name)][-KEPT:]
        remove_others(self.folder, {name for names in self._whole for name in names}, self.comm.rank, self.comm.size)
        if self.comm.rank == 0:
            mark_complete(self.folder)

    def gathered(self, narrow):
        before, self.comm = self.meeting, narrow(self._all_ranks)
        self.meeting = Meeting(self.comm, before.driver, self.in_lockstep)
        for reason in [*filter(None, [self._ends_for]), *before.unmet()]:
            self.meeting.ask(reason)
        self._meets = False
        self._curve = CurveFile(self.folder, self.comm.rank)

    def regrouped(self, narrow, giver):
        """Continue to take checkpoints in a new group of ranks (`Recovery.regrouped`), after a process has died or
        joined.

        No rank waits for other ranks' files of the checkpoint that the earlier group was writing when the process died
        or joined. If a rank's file of the interrupted checkpoint is missing, the checkpoint is not whole, and the
        checkpoint before it is kept. Rank ``giver`` sends the names of the whole checkpoints to all ranks of the new
        group. If the earlier group was asked to end the run, the new group takes a checkpoint, and ends the run.

        In a user's own training loop, ranks do not go back to the beginning of an interrupted step. So in a user's own
        training loop, no rank repeats a checkpoint that any rank has begun.
        """
        yield from self.writer.written()
        self.gathered(narrow)
        if not self.trainer.is_one_schedule:
            steps = np.zeros(self.comm.size)
            steps[self.comm.rank] = self._step
            yield from halving_doubling_allreduce(self.comm, steps, tags.CHECKPOINT)
            self._step = int(steps.max())
        known = np.array([self._step, *as_numbers(self._whole)], np.int64)
        yield from broadcast(self.comm, known, tags.CHECKPOINT, giver)
        self._step, *numbers = known.tolist()
        self._whole = from_numbers(numbers)
        self._at = max(0, *numbers[::2])  # leaves out an interrupted checkpoint, which may be taken again

    def asks_for_checkpoint(self, reason: str) -> bool:
        self._for_folder.append(reason)
        self.meeting.ask(reason)
        return True

    def warnings(self) -> list[str]:
        return [*self.writer.warnings(), *self.memory.warnings()]
