"""Roll call, by which ranks learn in which collective call of grsgd another rank is, in users' scripts.

A rank in a collective call first sends a report of the call to all other ranks, and waits for their reports. If the
calls of two ranks do not match, an error names both calls at once. A rank that waits in a step learns that another rank
is in a call, and not in the step.
"""

import math
import os
import sys
import time
from collections import defaultdict, deque
from collections.abc import Iterator
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
REMEDY = "all ranks must make these calls, in one order, and none alone, as under `if grsgd.is_main():`"

NUMBERS, TEXT_BYTES = 4, 224
"""Lengths of a message: the number of integers of a `CallReport` (with the rank), and the bytes of its call."""

FAR = 2**32
"""More collective calls than a rank makes: calls after `RollCall.begin_anew` are counted from a multiple of it."""

VAIN_SECONDS = 1.0
"""Seconds that a rank waits in a step that another rank will not take, before it raises: messages may still arrive."""
LOOK_SECONDS = 1.0
"""Seconds between two looks, by a rank that takes steps without waiting, for ranks that wait for it."""
PATIENCE_SECONDS = 2.0
"""Seconds that another rank must have waited before this rank prints a line about that rank."""
END_SECONDS = 60.0
"""Seconds that a rank waits at the end of its script for ranks that have made no collective call of grsgd."""


class CallReport(NamedTuple):
    """Report of a rank that it is in a collective call.

    ``number`` counts the rank's collective calls, from 1. ``points`` are `RollCall.points`. ``steps`` counts the steps
    of the optimizer in the call. ``call`` is a text such as ``in finish()``.
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
        """Reports of each other rank on calls that this rank has not left yet, oldest first."""
        self.points = 0
        """Points of synchronous steps that this rank has reached: the beginning of a step, and each of its
        exchanges."""
        self._number = self._optimizers = 0
        self._answers = None
        self._sending: list = []
        self._vain = (0, 0.0)
        self._waiting: dict[int, tuple[int, float]] = {}
        self._looked = 0.0

    def of_new_optimizer(self) -> str:
        """Return a text to append to the calls of an optimizer from `distribute`, if it is not the first optimizer."""
        self._optimizers += 1
        return f" of the optimizer of distribute() call {self._optimizers}" if self._optimizers > 1 else ""

    def call(self, call: str, steps: int = 0) -> "Answers":
        """Tell all other ranks that this rank is in a collective call; return a pollable that is true when all are in
        it.

        ``call`` is a text such as ``in finish()``; ``steps`` counts the steps of the optimizer in the call.
        """
        self._number += 1
        call = call.encode()[:TEXT_BYTES].decode(errors="ignore")
        numbers = np.array([self.comm.rank, self._number, self.points, steps], np.int64)
        message = np.concatenate([numbers.view(np.uint8), np.frombuffer(call.encode().ljust(TEXT_BYTES), np.uint8)])
        self._sending = [sending for sending in self._sending if not sending.Test()]
        self._sending += [self.comm.Isend(message, rank, tags.ROLL_CALL) for rank in self.others]
        self._answers = Answers(self, self._number, call, self.points)
        return self._answers

    def begin_anew(self):
        """Forget all calls so far, on all ranks: some ranks made fewer of the calls that an error has broken off."""
        self._number += FAR - self._number % FAR
        self._answers = None

    def count_steps_anew(self):
        """Forget all steps so far, on all ranks: some ranks began fewer of the steps that an error has broken off."""
        self.points, self._vain = 0, (0, 0.0)

    def watch(self, step: int, algorithm: str):
        """Raise UnevenCalls or UnevenSteps if this rank waits in vain.

        ``step`` is this rank's present step of a synchronous algorithm, from 1; 0 outside of steps.
        """
        if self._answers is not None and self._answers.Test():
            self._answers = None
        elif self._answers is None and step:
            self.take()
            for rank, word in self._ahead():
                if self.points > word.points:
                    self._waits_in_vain(rank, word, step, algorithm)

    def _waits_in_vain(self, rank: int, word: CallReport, step: int, algorithm: str):
        """Raise an error, if this rank has waited `VAIN_SECONDS` in a step that another rank will not take."""
        now, mine = time.perf_counter(), self.comm.rank
        if self._vain[0] != self.points:
            self._vain = self.points, now
        if now - self._vain[1] < VAIN_SECONDS:
            return
        if word.call.startswith(FINISH):
            raise UnevenSteps(
                f"rank {rank} finished after {word.steps} steps, rank {mine} is in step {step}: "
                f"{algorithm} needs the same number of steps on all ranks; "
                "grsgd.shard(data, even=True) gives all ranks equally many batches"
            )
        raise UnevenCalls(f"rank {rank} is {word.call} after {word.steps} steps, rank {mine} in step {step}: {REMEDY}")

    def look(self, steps: int, now: float):
        """Print a line, once per call, if another rank waits in a call for this rank, which has taken more
        ``steps``."""
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

    def take(self):
        """Take in the reports that have arrived."""
        size = NUMBERS * 8 + TEXT_BYTES
        while self.others and (message := receive_if_come(self.comm, tags.ROLL_CALL, size)) is not None:
            rank, *numbers = message[: NUMBERS * 8].view(np.int64).tolist()
            self.words[rank].append(CallReport(*numbers, message[NUMBERS * 8 :].tobytes().decode().strip()))

    def _ahead(self) -> Iterator[tuple[int, CallReport]]:
        """Yield other ranks, with their reports, that are in a call which this rank has not reached."""
        for rank, words in self.words.items():
            if words and words[-1].number > self._number:
                yield rank, words[-1]


NATURAL_ENDS = (FINISH, END_OF_RECORDING, END_OF_SCRIPT)
"""Calls in which a rank may wait long for others that take steps of an asynchronous algorithm."""


class Answers:
    """Pollable that is true when all other ranks are in the collective call of this rank."""

    def __init__(self, roll_call: RollCall, number: int, call: str, points: int):
        self.roll_call, self.number, self.call = roll_call, number, call
        self.points = {points}
        """`RollCall.points` of the ranks that are in the call: one number, unless an error has broken off a step."""
        self.missing = set(roll_call.others)

    def Test(self) -> bool:
        """Return whether all ranks are in the call; raise UnevenCalls if one is in another call, LostRank if one has
        died."""
        if not self.missing:
            return True
        self.roll_call.take()
        for rank in sorted(self.missing):
            words = self.roll_call.words[rank]
            has_ended = bool(words) and words[-1].call == END_OF_SCRIPT
            if has_ended and self.call == END_OF_SCRIPT:  # earlier calls of either rank do not matter
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
            self.missing.discard(rank)
        lost = self.roll_call.comm.lost
        if self.missing and lost:
            raise LostRank(died(lost))
        return not self.missing

    def come(self):
        """Schedule that waits until all ranks are in the call."""
        yield self

    def __str__(self):
        who, mine = ranks_in_words(sorted(self.missing)), self.roll_call.comm.rank
        return f"{who} to be {self.call}, as rank {mine} is: {REMEDY}"


def roll_call(mpi, call: str, seconds: float) -> RollCall:
    """Call the roll of the ranks of ``mpi``, for a collective call in which this rank has no driver; collective.

    Raises UnevenCalls, LostRank, and WaitTimeout after ``seconds``.
    """
    found = of_communicator(mpi, call, seconds)
    answers, begin = found.call(call), time.perf_counter()
    while not answers.Test():
        ENGINE.poll()
        waited = time.perf_counter() - begin
        if waited > seconds:
            raise WaitTimeout(f"rank {mpi.rank} waited {seconds:g} s for {answers}")
        back_off(waited)
    return found


def of_communicator(mpi, call: str, seconds: float) -> RollCall:
    """Return the roll call of a communicator, the same object every time; collective at the first time."""
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
    """Return the key under which MPI keeps the roll call of a communicator, until the communicator is freed."""
    from mpi4py import MPI

    def free(mpi, key, found: RollCall):
        if not MPI.Is_finalized() and mpi != MPI.COMM_WORLD:
            found.comm.free()

    return MPI.Comm.Create_keyval(delete_fn=free)


def end_of_script(mpi, process: int):
    """Tell ranks in a call of grsgd, at the end of a script and by its process, that this rank will not come.

    The job can then end with a line of these ranks. A rank that has made no call with others waits for one minute only.
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
"""Seconds that a rank waits at its end for another rank to print that it waits in vain, and to end the job."""
