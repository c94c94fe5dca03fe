"""Roll call, with which each rank of a user's script learns which collective call of grsgd each other rank has entered.

A rank in a collective call first sends a report of the call to all other ranks, and waits for the reports of all other
ranks. If the calls of two ranks do not match, an error names the two calls at once. If a rank waits in a step for a
rank that is in a collective call, the waiting rank learns of the call.
"""

import math
import os
import sys
import time
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator
from functools import cache
from typing import NamedTuple

import numpy as np

from grsgd.comm import tags
from grsgd.comm.backend import MpiBackend
from grsgd.comm.communicator import Communicator, LostRank, receive_if_come
from grsgd.comm.driver import WaitTimeout, back_off
from grsgd.comm.engine import ENGINE
from grsgd.comm.stop_signal import UnevenCalls, UnevenSteps, died
from grsgd.comm.watchdog import within
from grsgd.job import launch
from grsgd.text import ranks_in_words

FINISH = "in finish()"
END_OF_RECORDING = "at the end of recording()"
END_OF_SCRIPT = "at the end of the script"
END_OF_BATCHES = "at the end of a loop over batches()"
GOING_ON = "in the first step after rest()"
REMEDY = "all ranks must make these calls, in one order, and none alone, as under `if grsgd.is_main():`"

NUMBERS, TEXT_BYTES = 4, 224
"""Lengths of the two parts of a message: number of integers (the rank, and the numbers of a `CallReport`), and number
of bytes of the call's text."""

FAR = 2**32
"""Upper bound of the number of collective calls that a rank makes. After `RollCall.begin_anew`, all ranks number their
calls from the next multiple of this bound."""

VAIN_SECONDS = 1.0
"""Seconds that a rank waits in a step that another rank will not take, before the waiting rank raises an error. Within
`VAIN_SECONDS`, messages under way can still end the wait."""
LOOK_SECONDS = 1.0
"""Seconds between two searches by `RollCall.look` for waiting ranks; for asynchronous algorithms."""
PATIENCE_SECONDS = 2.0
"""Seconds that another rank must have waited before this rank prints a line about the waiting rank."""
END_SECONDS = 60.0
"""Seconds that a rank waits at the end of its script for ranks that have made no collective call of grsgd."""


class CallReport(NamedTuple):
    """Report of a rank that it is in a collective call.

    ``number`` is the number of the call among the rank's collective calls, counted from 1. ``points`` is the rank's
    `RollCall.points`. ``steps`` is the number of steps that the optimizer of the call has taken. ``call`` is a text
    such as ``in finish()``.
    """

    number: int
    points: int
    steps: int
    call: str


class RollCall:
    """Exchange of reports on collective calls between this rank and all other ranks.

    ``comm`` is a communicator that carries only these reports.
    """

    def __init__(self, comm: Communicator):
        self.comm = comm
        self.others = [rank for rank in range(comm.size) if rank != comm.rank]
        self.words: dict[int, deque[CallReport]] = defaultdict(deque)
        """Reports of each other rank about calls that this rank has not left yet, oldest first."""
        self.points = 0
        """Number of points that this rank has reached in steps of synchronous algorithms. The points of a step are the
        step's beginning and each exchange of the step."""
        self._number = self._optimizers = 0
        self._answers = None
        self._mine: CallReport | None = None
        """Report of this rank's last collective call."""
        self._sending: list = []
        self._vain = (0, 0.0)
        self._waiting: dict[int, tuple[int, float]] = {}
        self._looked = 0.0

    def of_new_optimizer(self) -> str:
        """Return a text that distinguishes the calls of a new optimizer from calls of the script's other optimizers.
        The text is empty for the script's first optimizer."""
        self._optimizers += 1
        return f" of the optimizer of distribute() call {self._optimizers}" if self._optimizers > 1 else ""

    def call(self, call: str, steps: int = 0) -> "Answers":
        """Tell all other ranks that this rank is in a collective call. Return a pollable (an object whose ``Test()``
        can be waited for) that is true when all ranks are in the call.

        ``call`` is a text such as ``in finish()``. ``steps`` is the number of steps that the optimizer of the call has
        taken.
        """
        self._number += 1
        call = call.encode()[:TEXT_BYTES].decode(errors="ignore")
        numbers = np.array([self.comm.rank, self._number, self.points, steps], np.int64)
        self._mine = CallReport(self._number, self.points, steps, call)
        message = np.concatenate([numbers.view(np.uint8), np.frombuffer(call.encode().ljust(TEXT_BYTES), np.uint8)])
        self._sending = [sending for sending in self._sending if not sending.Test()]
        self._sending += [self.comm.Isend(message, rank, tags.ROLL_CALL) for rank in self.others]
        self._answers = Answers(self, self._number, call, self.points)
        return self._answers

    def begin_anew(self):
        """Forget all calls up to now, on all ranks. So the ranks' numbers of calls agree again after an error because
        of which some ranks did not make some calls."""
        self._number += FAR - self._number % FAR
        self._answers = None

    def count_steps_anew(self):
        """Forget all steps up to now, on all ranks. So the ranks' points agree again after an error because of which
        some ranks did not take some steps."""
        self.points, self._vain = 0, (0, 0.0)

    def watch(self, step: int, algorithm: str):
        """Raise UnevenCalls or UnevenSteps if this rank waits for a rank that will not come.

        ``step`` is the number, from 1, of this rank's present step of a synchronous algorithm; 0 outside of steps.
        """
        if self._answers is not None and self._answers.Test():
            self._answers = None
        elif self._answers is None and step:
            self.take()
            for rank, word in self._ahead():
                if self.points > word.points:
                    self._waits_in_vain(rank, word, step, algorithm)

    def _waits_in_vain(self, rank: int, word: CallReport, step: int, algorithm: str):
        """Raise an error if this rank has waited `VAIN_SECONDS` in its step. Rank ``rank`` will not take this step,
        because it is in the call of the report ``word``."""
        now, mine = time.perf_counter(), self.comm.rank
        if self._vain[0] != self.points:
            self._vain = self.points, now
        if now - self._vain[1] < VAIN_SECONDS:
            return
        if word.call.startswith(FINISH):
            raise UnevenSteps(
                f"rank {rank} finished after {word.steps} steps, rank {mine} is in step {step}: "
                f"{algorithm} needs the same number of steps on all ranks; "
                "grsgd.shard(data, even=True) gives all ranks equally many batches; with optimizer.join() or "
                "grsgd.even(loader) the numbers of batches may differ"
            )
        raise UnevenCalls(f"rank {rank} is {word.call} after {word.steps} steps, rank {mine} in step {step}: {REMEDY}")

    def look(self, steps: int, now: float):
        """Print a line if another rank waits for this rank in a call, and this rank has taken more steps than the
        waiting rank. At most one line is printed per call. ``steps`` is the number of this rank's steps, and ``now`` is
        the time in seconds."""
        if now - self._looked < LOOK_SECONDS:
            return
        self._looked = now
        self.take()
        for rank, word in self._ahead():
            number, since = self._waiting.get(rank, (0, now))
            if number != word.number:
                self._waiting[rank] = word.number, now
            elif now - since >= PATIENCE_SECONDS and steps > word.steps and not word.call.startswith(NATURAL_ENDS):
                self._waiting[rank] = word.number, math.inf
                mine = f"rank {self.comm.rank} is in step {steps}"
                line = f"rank {rank} waits {word.call} after {word.steps} steps, {mine}: {REMEDY}"
                print(f"\ngrsgd: {line}", file=sys.stderr, flush=True)

    def next_call(self, ranks: Iterable[int]) -> str | None:
        """Return the next call that this rank must make, if all of ``ranks`` are in a call that this rank has not made.
        If not, return None."""
        self.take()
        calls = [next((word.call for word in self.words[rank] if word.number > self._number), None) for rank in ranks]
        return None if None in calls else calls[0]

    def waiting(self) -> dict[int, CallReport]:
        """Return, by rank, the last reports of the ranks that wait in a call. Include this rank if it waits in a call,
        too."""
        self.take()
        first = self._number + (self._answers is None)
        last = {rank: words[-1] for rank, words in self.words.items() if words and words[-1].number >= first}
        if self._answers is not None:
            last[self.comm.rank] = self._mine
        return {rank: word for rank, word in last.items() if not word.call.startswith(WITHOUT_WAITING)}

    def take(self):
        """Receive the reports of other ranks that have arrived."""
        size = NUMBERS * 8 + TEXT_BYTES
        while self.others and (message := receive_if_come(self.comm, tags.ROLL_CALL, size)) is not None:
            rank, *numbers = message[: NUMBERS * 8].view(np.int64).tolist()
            self.words[rank].append(CallReport(*numbers, message[NUMBERS * 8 :].tobytes().decode().strip()))

    def _ahead(self) -> Iterator[tuple[int, CallReport]]:
        """Yield the number and the last report of each other rank that is in a call which this rank has not reached."""
        for rank, words in self.words.items():
            if words and words[-1].number > self._number:
                yield rank, words[-1]


NATURAL_ENDS = (FINISH, END_OF_RECORDING, END_OF_SCRIPT, END_OF_BATCHES)
"""Calls in which a rank normally waits long for ranks that still take steps of an asynchronous algorithm."""

WITHOUT_WAITING = (END_OF_BATCHES, GOING_ON)
"""Calls in which no rank waits. With these calls, serving ranks learn where the training ranks are in the script."""


class Answers:
    """Pollable that is true when all other ranks are in the collective call of this rank."""

    def __init__(self, roll_call: RollCall, number: int, call: str, points: int):
        self.roll_call, self.number, self.call = roll_call, number, call
        self.points = {points}
        """The values of `RollCall.points` of the ranks that are in the call. All ranks have the same value, unless an
        error has broken off a step."""
        self.steps: dict[int, int] = {}
        """Number of steps that each other rank in the call has reported, by rank."""
        self.missing = set(roll_call.others)

    def Test(self) -> bool:
        """Return whether all ranks are in the call. Raise UnevenCalls if a rank is in another call, and LostRank if a
        rank has died."""
        if not self.missing:
            return True
        self.roll_call.take()
        for rank in sorted(self.missing):
            words = self.roll_call.words[rank]
            has_ended = bool(words) and words[-1].call == END_OF_SCRIPT
            if has_ended and self.call == END_OF_SCRIPT:  # the numbers of calls of the two ranks may differ
                self.missing.discard(rank)
                continue
            while words and words[0].number < self.number and not (has_ended and len(words) == 1):
                words.popleft()
            if not words:
                continue
            if words[0].call != self.call:
                mine = self.roll_call.comm.rank
                raise UnevenCalls(f"rank {mine} is {self.call}, rank {rank} {words[0].call}: {REMEDY}")
            self.points.add(words[0].points)
            self.steps[rank] = words[0].steps
            self.missing.discard(rank)
        lost = self.roll_call.comm.lost
        if self.missing and lost:
            raise LostRank(died(lost))
        return not self.missing

    def come(self):
        """Wait until all ranks are in the call. This method is a schedule (a generator that a driver runs)."""
        yield self

    def __str__(self):
        who, mine = ranks_in_words(sorted(self.missing)), self.roll_call.comm.rank
        return f"{who} to be {self.call}, as rank {mine} is: {REMEDY}"


def roll_call(mpi, call: str, seconds: float) -> RollCall:
    """Wait until all ranks of ``mpi`` are in the collective call ``call``. Return the roll call of ``mpi``. This
    function is for calls in which the rank has no driver yet.

    Raises UnevenCalls if a rank is in another call, LostRank if a rank has died, and WaitTimeout after ``seconds``.
    """
    found = of_communicator(mpi, call, seconds)
    wait_for(found.call(call), seconds)
    return found


def wait_for(answers: Answers, seconds: float):
    """Wait until ``answers`` is true, on a rank without a driver. Raises the errors of `roll_call`."""
    begin = time.perf_counter()
    while not answers.Test():
        ENGINE.poll()
        waited = time.perf_counter() - begin
        if waited > seconds:
            raise WaitTimeout(f"rank {answers.roll_call.comm.rank} waited {seconds:g} s for {answers}")
        back_off(waited)


def of_communicator(mpi, call: str, seconds: float) -> RollCall:
    """Return the roll call of the communicator ``mpi``, always the same object. All ranks must make the first call
    together."""
    if mpi.size == 1:
        return RollCall(Communicator(MpiBackend(mpi)))
    found = mpi.Get_attr(attribute())
    if found is None:
        try:
            launch.barrier(mpi, seconds, ENGINE.poll)
        except WaitTimeout:
            others = f"other ranks, which have made no such call: {REMEDY}"
            raise WaitTimeout(f"rank {mpi.rank} waited {seconds:g} s {call} for {others}") from None
        with within(seconds, f"{call}: making a communicator"):
            found = RollCall(Communicator(MpiBackend(mpi.Dup())))
        mpi.Set_attr(attribute(), found)
    return found


@cache
def attribute() -> int:
    """Return the key with which MPI stores a communicator's roll call in the communicator, until the communicator is
    freed."""
    from mpi4py import MPI

    def free(mpi, key, found: RollCall):
        if not MPI.Is_finalized() and mpi != MPI.COMM_WORLD:
            found.comm.free()

    return MPI.Comm.Create_keyval(delete_fn=free)


def end_of_script(mpi, process: int):
    """Tell ranks that wait in a call of grsgd that this rank's script has ended. Does nothing in a process other than
    ``process``, such as a fork.

    The waiting ranks can then end the job with an error message. A rank whose script has made no collective call of
    grsgd waits at most `END_SECONDS`.
    """
    from mpi4py import MPI

    if os.getpid() != process or MPI.Is_finalized():
        return
    has_met = mpi.Get_attr(attribute()) is not None
    try:
        roll_call(mpi, END_OF_SCRIPT, math.inf if has_met else END_SECONDS)
    except UnevenCalls:
        time.sleep(LEAVING_SECONDS)
        os._exit(1)
    except RuntimeError:  # another rank has died, or has never made a call of grsgd
        return


LEAVING_SECONDS = 5.0
"""Seconds that a rank waits at the end of its script while another rank waits for it in another call. Within
`LEAVING_SECONDS`, the other rank can print an error and end the job."""
