"""Checkpoints of ranks that never wait for each other, in a run that continues when processes die.

The lowest rank whose process has a model is the *leading* rank. The leading rank *calls* a checkpoint: it sends a
message to all ranks, which asks them to take a checkpoint. When a rank has received a call, it copies its state before
its next step, and writes its checkpoint file. So no rank pauses for a checkpoint, and the times at which ranks copy
their states differ by at most one step of the slowest rank. If a message is sent before the sender copies its state,
and arrives after the receiver has copied its state, the message is missing in the checkpoint. If a message is sent
after the sender has copied its state, and arrives before the receiver copies its state, the message's content is in
both copies.

All processes share one folder for the checkpoints. A checkpoint is whole if it has the files of all ranks that had a
process when the checkpoint was called. If a process that takes part in a checkpoint dies before it has written its
file, the previous checkpoint is kept.
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
"""Checkpoint id in the message of a rank that has taken its last step, and writes no further checkpoint files."""


class CheckpointCall(NamedTuple):
    """Call of a checkpoint: the message by which the leading rank asks all ranks to take a checkpoint.

    ``id`` is a random number that identifies the checkpoint. ``samples`` is the number of samples that all ranks have
    processed at the call. ``curve`` is the number in the name of the folder to which the ranks write their snapshots
    (copies of the model). ``reason`` is the reason why the run ends after the checkpoint; empty if the run goes on.
    After the fields of this class, the message has the process of each rank that takes part in the checkpoint, or
    `NO_PROCESS`, int64 [ranks].
    """

    id: Int64
    samples: Int64
    curve: Int64
    reason: Annotated[bytes, "S248"]

    @property
    def ends_for(self) -> str:
        return self.reason.decode(errors="replace").strip()


class Called(NamedTuple):
    """Call of a checkpoint, and the process of each rank that takes part in the checkpoint (`NO_PROCESS` for other
    ranks)."""

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
    """Checkpoints of one rank. The rank takes a checkpoint without waiting for other ranks or for messages under way.

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
        """Number of samples that all ranks had processed when a checkpoint was last called."""
        self._step, self._time = 0, time.monotonic()
        """Number of this rank's step when a checkpoint was last called, and the time of this call in seconds."""
        self._new: deque[str] = deque()
        """Queue with the reasons of new requests for a checkpoint, to which other threads add reasons. An empty reason
        means that the run goes on after the checkpoint."""
        self._asked: list[str] = []
        """Reasons of all requests for a checkpoint after which no checkpoint has been called yet."""
        self._told: int | None = None
        """Process to which this rank has sent the requests in `_asked`; None if the requests have not been sent."""
        self._ids: set[int] = set()
        """Ids of all calls for checkpoints that this rank has received."""
        self._due: Called | None = None
        """Call of the checkpoint that this rank takes before its next step; None if this rank takes no checkpoint."""
        self._last: Called | None = None
        self._end: Called | None = None
        """Call for a checkpoint after which the run ends; None if the run goes on."""
        self._writing = LEFT
        """Id of the checkpoint whose file this rank writes now; `LEFT` if this rank writes no file."""
        self._has_left = False
        self._written: set[tuple[int, int]] = set()
        """Set of pairs (checkpoint id, process) of processes that have written their file of the checkpoint, or will
        not write it. The id `LEFT` means that the process writes no file of any further checkpoint."""
        self._curve = CurveFile(self.folder, comm.rank)
        self._curves: dict[int, str] = {}
        """Dict from a checkpoint's number of samples to the name of the folder with the snapshots of this
        checkpoint."""
        self._sending: list[Tolerant] = []

    def attach(self, trainer: Trainer):
        """Take checkpoints of ``trainer`` from now on. Raises ConfigError if the state of the trainer's optimizer
        cannot be written to a file."""
        super().attach(trainer)
        self.writer.attach(trainer)

    def go_on_from_checkpoint(
        self, folder: Path, samples: int, whole: list[tuple[str, str]], curve: CurveFile | None
    ):
        """Record the checkpoint from which this run goes on. New snapshots go to a new folder, because the ranks now
        have other processes than in the earlier run."""
        self._at = samples
        if is_same_folder(self.folder, folder):
            self._curves.update((samples, curve_name) for _, curve_name in whole)

    def begun(self):
        """Start to count the steps and seconds until the next checkpoint is due."""
        self._step, self._time = self.trainer.recovery.position, time.monotonic()

    def asks_for_checkpoint(self, reason: str) -> bool:
        self._new.append(reason)
        return True

    def watch(self):
        """Receive other ranks' calls of checkpoints and requests for checkpoints. If this rank is the leading rank and
        a checkpoint is due, call the checkpoint by a message to all ranks. If this rank is not the leading rank, send
        its new requests for a checkpoint to the leading rank."""
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
        """Copy this rank's state before step number ``step``, if the leading rank has called a checkpoint. This method
        is a generator (schedule) that the rank's driver (event loop) runs. Returns False, because ranks do not pause
        for a checkpoint.

        If a signal of the system has asked for the end of the run, raises Stopped on all ranks after the checkpoint.
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
        """Tell all ranks that this rank has taken its last step, so that no rank waits for a checkpoint file of this
        rank."""
        self._has_left, self._due = True, None
        self._tell_written(LEFT)

    def at_rest(self, ended: bool):
        """Wait until this rank's last checkpoint file is written, and return True, which means that training is over.
        This method is a generator (schedule) that the rank's driver (event loop) runs."""
        yield from self.writer.written()
        return True

    @property
    def last(self) -> Path | None:
        """Folder of the last whole checkpoint that this run has taken; None if this run has taken no whole
        checkpoint."""
        whole = [samples for samples in whole_in(self.folder) if samples in self._curves]
        return self.folder / name_of(whole[-1]) if whole and self._ids else None

    def warnings(self) -> list[str]:
        return self.writer.warnings()

    # ---- calls

    def _leader(self) -> int | None:
        """Return the number of the leading process, which calls checkpoints by messages to all ranks. The leading
        process holds the lowest rank whose process has a model."""
        training = self.membership.training
        return next((holder for holder in self.membership.holders if holder in training), None)

    def _call_if_due(self):
        """Ask all ranks to take a checkpoint if the interval is over or if a rank has requested a checkpoint. If any
        rank has ended its training, do nothing. While a rank still writes its file of the last checkpoint, call only a
        checkpoint after which the run ends."""
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
        take_part = samples > self._at  # False if no sample was processed after the last checkpoint
        processes = tuple(each if take_part and each in training else NO_PROCESS for each in holders)
        id = 1 + secrets.randbits(ID_BITS - 1)
        curve = self._last.call.curve if self._last and self._last.processes == processes else id
        self._follow(Called(CheckpointCall(id, max(samples, self._at), curve, reason.encode()), processes))

    def _follow(self, called: Called):
        """Record the call of a checkpoint, which this rank takes before its next step. Send the call to all ranks,
        because the leading rank may have died before the call has reached all ranks."""
        if called.call.id in self._ids:
            return
        self._ids.add(called.call.id)
        self._send(called.packed(), tags.CHECKPOINT_CALL, range(self.comm.size))
        if self._end is not None:  # two ranks were leading for a short time, and both have called the end of the run
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
        if left_out not in (None, self._end):  # tells other ranks not to wait for this process's file
            self._tell_written(left_out.call.id)

    def _copy(self, called: Called):
        """Copy this rank's state, and start to write its checkpoint file. Do nothing if this process does not take part
        in the checkpoint."""
        rank, process, (call, processes) = self.membership.rank, self.membership.process, called
        if processes[rank] != process:
            return
        ranks = [each for each, holder in enumerate(processes) if holder != NO_PROCESS]
        name = f"curve-{call.curve:013x}"
        if self._curve.name != name:
            self._curve = CurveFile(self.folder, ranks.index(rank), name)
        header = Header(f"{call.id:013x}", call.samples, len(ranks), ranks.index(rank))
        removal = partial(remove_older, self.folder, call.samples, dict(self._curves))
        removes = self._leader() == process and not call.reason  # at the run's end, ranks may still write older files
        self.writer.begin(header, self._curve, ranks, removal if removes else None)
        self._writing = call.id

    # ---- messages

    def _is_kept(self) -> bool:
        """Return True if each living process has written its files of the last checkpoint and of the checkpoint that
        ends the run. The run can end when this method returns True."""
        return all(self._all_have_written(called) for called in (self._last, self._end) if called is not None)

    def _all_have_written(self, called: Called) -> bool:
        """Return True if each living process has written its file of the checkpoint ``called``, or will not write the
        file."""
        self._hear()
        id, waited = called.call.id, set(called.processes) - {NO_PROCESS} - self.membership.dead
        return all({(id, process), (LEFT, process)} & self._written for process in waited)

    def _tell_written(self, id: int):
        """Tell all ranks that this process writes no further file of the checkpoint ``id``. If ``id`` is `LEFT`, this
        process writes no file of any further checkpoint."""
        told = (id, self.membership.process)
        if told not in self._written:
            self._written.add(told)
            self._send(np.array(told, np.int64), tags.CHECKPOINT_WRITTEN, range(self.comm.size))

    def _hear(self):
        """Receive all messages about checkpoints that have arrived from other ranks."""
        size = records.empty(CheckpointCall).size + 8 * self.comm.size
        while (message := receive_if_come(self.comm, tags.CHECKPOINT_CALL, size)) is not None:
            self._follow(Called.unpacked(message))
        while (message := receive_if_come(self.comm, tags.CHECKPOINT_WRITTEN, 2, np.int64)) is not None:
            self._written.add(tuple(message.tolist()))
        size = records.empty(MeetingCall).size
        while (message := receive_if_come(self.comm, tags.MEETING, size)) is not None:
            asked = records.unpack(MeetingCall, message)
            reason = asked.reason.decode(errors="replace").strip()
            if self._end is None and (reason or asked.number >= self._at):  # older requests are already fulfilled
                self._asked.append(reason)
                self._told = None

    def _send(self, message: np.ndarray, tag: int, ranks):
        self._sending = [sending for sending in self._sending if not sending.Test()]
        for rank in set(ranks) - {self.comm.rank} - set(self.comm.lost):
            self._sending.append(Tolerant(self.comm.Isend(message, rank, tag), message))
