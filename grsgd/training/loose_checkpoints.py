"""Checkpoints of ranks that never wait for each other, in a run that goes on without processes that die.

The lowest rank that has a process *leads*: it tells all ranks when a checkpoint is due. Each rank copies its state
before its next step, and writes its file. So no rank rests, and the copies are as far apart as one step of the slowest
rank takes. A message between two copies is lost if it is sent before the sender's copy and arrives after the receiver's
copy. In the opposite case the message counts on both ranks.

All processes share the folder. A checkpoint is whole if it has the files of all ranks that had a process when the
checkpoint was called. If one of these processes dies first, the older checkpoint stays.
"""

import secrets
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated, NamedTuple

import numpy as np

from grsgd.comm import records, tags
from grsgd.comm.communicator import Communicator, receive_if_come
from grsgd.comm.elastic.meeting import GO_ON, MeetingCall
from grsgd.comm.elastic.membership import Membership, Tolerant
from grsgd.comm.pollables import Until
from grsgd.comm.records import Int64
from grsgd.training.checkpoint_file import Header
from grsgd.training.checkpoint_folder import is_same_folder, name_of, remove_older, whole_in
from grsgd.training.checkpoint_writer import CheckpointWriter
from grsgd.training.checkpoints import ID_BITS, Every
from grsgd.training.curve_file import CurveFile
from grsgd.training.recovery import Recovery, do_nothing
from grsgd.training.trainer import Trainer

NO_PROCESS = -1
LEFT = 0
"""Id in the message of a rank that takes no step any more, so that it writes no file of any checkpoint."""


class CheckpointCall(NamedTuple):
    """Message that calls all ranks to take a checkpoint.

    ``id``: random number of the checkpoint. ``samples``: number of samples of all ranks. ``curve``: number in the name
    of the folder for the snapshots. ``reason``: reason to end the run after the checkpoint; empty if the run goes on.
    The processes that take part follow in the message: the process of each rank, or `NO_PROCESS`, int64 of shape
    [ranks].
    """

    id: Int64
    samples: Int64
    curve: Int64
    reason: Annotated[bytes, "S248"]

    @property
    def ends_for(self) -> str:
        return self.reason.decode(errors="replace").strip()


class Called(NamedTuple):
    """Checkpoint that was called, with the process of each rank that takes part, or `NO_PROCESS`."""

    call: CheckpointCall
    processes: tuple[int, ...]

    def packed(self) -> np.ndarray:
        return np.concatenate([records.pack(self.call), np.array(self.processes, np.int64).view(np.uint8)])

    @classmethod
    def unpacked(cls, message: np.ndarray) -> "Called":
        head = records.empty(CheckpointCall).size
        processes = message[head:].copy().view(np.int64)
        return cls(records.unpack(CheckpointCall, message[:head].copy()), tuple(processes.tolist()))


class LooseCheckpoints(Recovery):
    """Checkpoints of one rank, which neither waits for other ranks nor first receives all messages under way.

    Parameters
    ----------
    writer
        Writer of this rank's files, in a folder that all processes share.
    every
        Interval of checkpoints: steps of the leading rank, or seconds.
    comm
        Communicator of all ranks that carries only messages of this class.
    membership
        Process of each rank.
    go_on
        Function ``go_on`` of `Recovery`.
    """

    def __init__(
        self,
        writer: CheckpointWriter,
        every: Every,
        comm: Communicator,
        membership: Membership,
        go_on: Callable[[Trainer], None] = do_nothing,
    ):
        super().__init__(go_on)
        self.writer, self.folder, self.every = writer, writer.folder, every
        self.comm, self.membership = comm, membership
        self._at = 0
        """Number of samples of all ranks at the last checkpoint that was called."""
        self._step, self._time = 0, time.monotonic()
        """This rank's step at the last call, and the time of that call in seconds."""
        self._new: deque[str] = deque()
        """Reasons of requests of another thread; empty text if the run goes on after the checkpoint."""
        self._asked: list[str] = []
        """Reasons of all requests that no call has answered."""
        self._told: int | None = None
        """Process that was sent `_asked`; None if no process was."""
        self._ids: set[int] = set()
        """Ids of all calls that this rank has heard."""
        self._due: Called | None = None
        """Call that this rank follows before its next step."""
        self._last: Called | None = None
        self._end: Called | None = None
        """Call after which the run ends."""
        self._writing = LEFT
        """Id of the checkpoint whose file is written now; `LEFT` if none is."""
        self._has_left = False
        self._written: set[tuple[int, int]] = set()
        """Id of a checkpoint, or `LEFT`, and process: the processes that write no file any more for this checkpoint."""
        self._curve = CurveFile(self.folder, comm.rank)
        self._curves: dict[int, str] = {}
        """Name of the curve's folder of each checkpoint, by the checkpoint's samples."""
        self._sending: list[Tolerant] = []

    def attach(self, trainer: Trainer):
        """Take checkpoints of ``trainer`` from now on. Raises ConfigError if the state of the trainer's optimizer
        cannot be written to a file."""
        super().attach(trainer)
        self.writer.attach(trainer)

    def go_on_from_checkpoint(
        self, folder: Path, samples: int, whole: list[tuple[str, str]], curve: CurveFile | None
    ):
        """Note the checkpoint from which this run goes on. The snapshots are written anew, because the processes of the
        ranks are others than before."""
        self._at = samples
        if is_same_folder(self.folder, folder):
            self._curves.update((samples, curve_name) for _, curve_name in whole)

    def begun(self):
        """Begin to count steps and seconds to the next checkpoint."""
        self._step, self._time = self.trainer.recovery.position, time.monotonic()

    def asks_for_checkpoint(self, reason: str) -> bool:
        self._new.append(reason)
        return True

    def watch(self):
        """Hear calls and requests of other ranks; call a checkpoint, or pass requests on to the rank that leads."""
        self._hear()
        while self._new:
            self._asked.append(self._new.popleft())
            self._told = None
        if self._writing != LEFT and not self.writer.is_writing:
            self._tell_written(self._writing)
            self._writing = LEFT
        if self._end is not None and self._has_left and not self.trainer.is_one_schedule and self._is_kept():
            self.trainer.stop_signal.stop(self._end.call.ends_for)
        if self._end is not None or self._has_left:
            return
        leader = self._leader()
        if leader == self.membership.process:
            self._call_if_due()
        elif self._asked and leader not in (None, self._told):
            self._told = leader
            message = records.pack(MeetingCall(self._at, max(self._asked).encode()))
            self._send(message, tags.MEETING, [self.membership.joined[leader]])

    def before_step(self, step: int):
        """Copy this rank's state before step number ``step``, if a checkpoint was called. This method is a schedule (a
        generator that yields the objects it waits for). Returns False, because no rank rests.

        Raises Stopped on all ranks, after the checkpoint, if a signal asked for the checkpoint.
        """
        self.watch()
        due, self._due = self._due, None
        if due is not None:
            yield from self.writer.written()
            self._copy(due)
        if self._end is not None:
            yield from self.writer.written()
            self.watch()
            self._tell_written(self._end.call.id)
            yield Until(self._is_kept, "the checkpoints of all ranks")
            self.trainer.stop_signal.stop(self._end.call.ends_for)
        return False

    def leave_steps(self):
        """Tell all ranks that this rank takes no further step, so that no rank waits for its file."""
        self._has_left, self._due = True, None
        self._tell_written(LEFT)

    def at_rest(self, ended: bool):
        """Wait until this rank's last file is written, and return True, because no rank rests. This method is a
        schedule."""
        yield from self.writer.written()
        return True

    @property
    def last(self) -> Path | None:
        """The last whole checkpoint that this run has taken; None if there is none."""
        whole = [samples for samples in whole_in(self.folder) if samples in self._curves]
        return self.folder / name_of(whole[-1]) if whole and self._ids else None

    def warnings(self) -> list[str]:
        return self.writer.warnings()

    # ---- calls

    def _leader(self) -> int | None:
        """Return the process that leads: the process of the lowest rank that has a process with a model."""
        training = self.membership.training
        return next((holder for holder in self.membership.holders if holder in training), None)

    def _call_if_due(self):
        """Call a checkpoint if it is time or if a rank has asked for one, but not after a rank has ended its training.
        While a rank still writes its last file, call only a checkpoint after which the run ends."""
        position = self.trainer.recovery.position
        is_time = (
            time.monotonic() - self._time >= self.every.seconds
            if self.every.seconds is not None
            else position >= self._step + self.every.steps
        )
        has_left = any(id == LEFT for id, _ in self._written)
        reason, samples = max(self._asked, default=GO_ON), self.trainer.reached
        is_busy = not reason and self._last is not None and not self._all_have_written(self._last)
        if not (is_time or self._asked) or has_left or is_busy:
            return
        if samples <= self._at and not reason:
            return
        training, holders = self.membership.training, self.membership.holders
        take_part = samples > self._at  # otherwise the last checkpoint already has all samples
        processes = tuple(each if take_part and each in training else NO_PROCESS for each in holders)
        id = 1 + secrets.randbits(ID_BITS - 1)
        curve = self._last.call.curve if self._last and self._last.processes == processes else id
        self._follow(Called(CheckpointCall(id, max(samples, self._at), curve, reason.encode()), processes))

    def _follow(self, called: Called):
        """Follow a call before the next step, and pass the call on, because the rank that leads may have died while it
        told all ranks."""
        if called.call.id in self._ids:
            return
        self._ids.add(called.call.id)
        self._send(called.packed(), tags.CHECKPOINT_CALL, range(self.comm.size))
        if self._end is not None:  # two ranks lead for a moment, and both end the run
            self._tell_written(called.call.id)
            return
        self._step, self._time = self.trainer.recovery.position, time.monotonic()
        self._told = None
        if called.call.reason:
            self._end, self._asked = called, []
        self._asked = [reason for reason in self._asked if reason]
        left_out = called
        if called.call.samples > self._at:
            self._at, self._last, left_out = called.call.samples, called, self._due
            self._curves[self._at] = f"curve-{called.call.curve:013x}"
            self._due = None if self._has_left else called
            known = self._ids - {called.call.id}
            self._written = {each for each in self._written if each[0] not in known}
        if left_out not in (None, self._end):  # no rank may wait for a file that this process does not write
            self._tell_written(left_out.call.id)

    def _copy(self, called: Called):
        """Copy this rank's state, and begin to write its file, if this process takes part in the checkpoint."""
        rank, process, (call, processes) = self.membership.rank, self.membership.process, called
        if processes[rank] != process:
            return
        ranks = [each for each, holder in enumerate(processes) if holder != NO_PROCESS]
        name = f"curve-{call.curve:013x}"
        if self._curve.name != name:
            self._curve = CurveFile(self.folder, ranks.index(rank), name)
        header = Header(f"{call.id:013x}", call.samples, len(ranks), ranks.index(rank))
        removal = partial(remove_older, self.folder, call.samples, dict(self._curves))
        removes = self._leader() == process and not call.reason  # else a rank may still write an earlier checkpoint
        self.writer.begin(header, self._curve, ranks, removal if removes else None)
        self._writing = call.id

    # ---- messages

    def _is_kept(self) -> bool:
        """Return whether the run can end: no living process still writes a file of the last checkpoint. The run
        ends with a call of its own if no samples have followed the last checkpoint."""
        return all(self._all_have_written(called) for called in (self._last, self._end) if called is not None)

    def _all_have_written(self, called: Called) -> bool:
        """Return whether no living process still writes a file of a checkpoint."""
        self._hear()
        id, waited = called.call.id, set(called.processes) - {NO_PROCESS} - self.membership.dead
        return all({(id, process), (LEFT, process)} & self._written for process in waited)

    def _tell_written(self, id: int):
        """Tell all ranks that this process writes no file any more for the checkpoint ``id``, or `LEFT` for any."""
        told = (id, self.membership.process)
        if told not in self._written:
            self._written.add(told)
            self._send(np.array(told, np.int64), tags.CHECKPOINT_WRITTEN, range(self.comm.size))

    def _hear(self):
        """Receive all messages that have arrived."""
        size = records.empty(CheckpointCall).size + 8 * self.comm.size
        while (message := receive_if_come(self.comm, tags.CHECKPOINT_CALL, size)) is not None:
            self._follow(Called.unpacked(message))
        while (message := receive_if_come(self.comm, tags.CHECKPOINT_WRITTEN, 2, np.int64)) is not None:
            self._written.add(tuple(message.tolist()))
        size = records.empty(MeetingCall).size
        while (message := receive_if_come(self.comm, tags.MEETING, size)) is not None:
            asked = records.unpack(MeetingCall, message)
            reason = asked.reason.decode(errors="replace").strip()
            if self._end is None and (reason or asked.number >= self._at):  # otherwise a later call has answered it
                self._asked.append(reason)
                self._told = None

    def _send(self, message: np.ndarray, tag: int, ranks):
        self._sending = [sending for sending in self._sending if not sending.Test()]
        for rank in set(ranks) - {self.comm.rank} - set(self.comm.lost):
            self._sending.append(Tolerant(self.comm.Isend(message, rank, tag), message))
