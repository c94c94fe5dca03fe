"""Measures what messages take of a processor, between two ranks: of which one computes, and the other sends to it.

Each time is a difference between computing with messages and without, by turns, in rounds; in both a schedule in the
background looks for them, which takes time of its own. The medians of the rounds count, and their quartiles are the
spread.
"""

import itertools
import statistics
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from grsgd.comm import tags
from grsgd.comm.driver import BUSY
from grsgd.comm.pollables import Compute, Delay, Until

SMALL, LARGE = 8, 256 * 1024
"""Bytes of the messages that show what one takes, and what each byte of it."""
ROUNDS, LEAST_ROUNDS = 12, 4
"""How often it is computed with messages and without; less often where steps are long."""
COST_SECONDS = 5.0
"""About how long that may take for each of the costs."""
ROUND_SECONDS = 0.1
"""About how long a rank computes in a round, either way."""
PAUSE = 2e-3
"""Seconds between two messages that are sent while a rank computes."""
PINGS = 4
"""For each round, questions of which the answers show how soon a rank notices a message."""
POLL_EVERY = 100
"""Small products between two polls of a rank that has no step of training to compute."""
SILENCE = 20e-3
"""Seconds of silence after which a rank that waits has gone to sleep."""
EAGER_BYTES = [2**power for power in range(10, 23)]
"""The sizes of messages of which it is tried whether they leave before the receive for them is posted."""
PATIENCE = 0.05
"""For so many seconds, and three times what it takes on its way, a message is watched whether it leaves."""


class Spread(NamedTuple):
    """The median, and the quartiles."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values) -> "Spread":
        """Return that of differences, of which none can be less than 0. The median is 0 where the lower quartile is: it
        cannot be told from nothing."""
        values = [max(value, 0.0) for value in values]
        low, median, high = statistics.quantiles(values, n=4)
        return cls(median if low > 0 else 0.0, low, high)


class ProcessorTimes(NamedTuple):
    """What `grsgd.simulate.network.ProcessorSpec` has, and the size up to which messages are eager."""

    send: Spread
    receive: Spread
    send_byte: Spread
    receive_byte: Spread
    polling: Spread
    reaction: Spread
    wake: Spread
    eager_bytes: int
    progress_mode: str
    """What moved messages in the background."""


class Meter:
    """Rank ``here``, which computes, and ``there``, which sends to it and receives from it; both call the same methods
    in the same order. ``step()`` is what ``here`` computes again and again."""

    def __init__(self, driver, comm, here: int, there: int, step: Callable[[], None]):
        self.driver, self.comm, self.here, self.there = driver, comm, here, there
        self.is_here = comm.rank == here
        self.other = there if self.is_here else here
        self.step = step
        self.steps, self.rounds = 1, ROUNDS

    def measure(self, seconds_per_byte: float) -> ProcessorTimes | None:
        """Measure everything; returns the times on rank ``here``, else None. ``seconds_per_byte``: of the wire."""
        if self.is_here:
            begin = time.perf_counter()
            self.compute(3)
            seconds = (time.perf_counter() - begin) / 3
            self.steps = max(1, round(ROUND_SECONDS / seconds))
            self.rounds = max(LEAST_ROUNDS, min(ROUNDS, int(COST_SECONDS / (2 * self.steps * seconds))))
        self.rounds = int(self.given(self.rounds))
        found = {}
        for sends in (False, True):
            small = self.cost(SMALL, sends, PAUSE)
            large = self.cost(LARGE, sends, max(PAUSE, 3 * LARGE * seconds_per_byte))
            found["send" if sends else "receive"] = Spread.of(small) if self.is_here else None
            if self.is_here:
                base = found["send" if sends else "receive"].median
                found["send_byte" if sends else "receive_byte"] = Spread.of([(c - base) / LARGE for c in large])
        found["polling"] = self.polling()
        found["reaction"], found["wake"] = self.reactions()
        eager = self.eager_bytes(seconds_per_byte)
        if not self.is_here:
            return None
        return ProcessorTimes(**found, eager_bytes=eager, progress_mode=self.driver.progress_mode)

    def given(self, value: float) -> float:
        """Return the value that rank ``here`` gives, on both."""
        array = np.full(1, float(value))
        self.share(array, is_mine=self.is_here)
        return float(array[0])

    def share(self, array: np.ndarray, is_mine: bool):
        """Send an array to the other rank if it is this one's, else receive it."""
        transfer = self.comm.Isend if is_mine else self.comm.Irecv
        self.driver.run(ended(transfer(array, self.other, tags.CALIBRATION)))

    def compute(self, steps: int) -> float:
        """Compute so many steps; returns the seconds."""

        def computing():
            yield Compute(self.step)

        begin = time.perf_counter()
        for _ in range(steps):
            self.driver.run(computing())
        return time.perf_counter() - begin

    def cost(self, nbytes: int, sends: bool, pause: float) -> list[float]:
        """Return by how many seconds a message prolongs what rank ``here`` computes, in each round; there it is empty.

        sends: whether the messages come from ``here``.
        """
        found = []
        for _ in range(self.rounds):
            if not self.is_here:
                self.driver.run(self.receive_all(nbytes) if sends else self.send_until_told(nbytes, pause))
                continue
            begin, stop = [False], [False]
            messages = self.send_all(nbytes, pause, stop, begin) if sends else self.receive_all(nbytes)
            counted = self.driver.start(messages)
            without = self.compute(self.steps)
            begin[0] = True
            if not sends:
                self.driver.run(self.tell())
            beside = self.compute(self.steps)
            stop[0] = True
            if not sends:
                self.driver.run(self.tell())
            self.driver.run(ended(counted))
            found.append((beside - without) / max(counted.value, 1))
        return found

    def polling(self) -> Spread | None:
        """Return which share of its computing time rank ``here`` takes longer while a schedule in the background waits
        for a message."""
        found = []
        for _ in range(self.rounds):
            if not self.is_here:
                self.driver.run(self.told())
                self.driver.run(self.tell())
                continue
            alone = self.compute(self.steps)
            waiting = self.driver.start(self.told())
            beside = self.compute(self.steps)
            self.driver.run(self.tell())
            self.driver.run(ended(waiting))
            found.append(beside / alone - 1)
        return Spread.of(found) if self.is_here else None

    def tell(self):
        """Schedule: an empty message to the other one."""
        yield self.comm.Isend(np.zeros(1, np.uint8), self.other, tags.CALIBRATION_SIGNAL)

    def told(self):
        """Schedule: wait for it."""
        yield self.comm.Irecv(np.zeros(1, np.uint8), self.other, tags.CALIBRATION_SIGNAL)

    def send_until_told(self, nbytes: int, pause: float):
        """Schedule: messages from when the other one computes beside them until it does not any more."""
        yield from self.told()
        stop = [False]

        def listen():
            yield from self.told()
            stop[0] = True

        listening = self.driver.start(listen())
        yield from self.send_all(nbytes, pause, stop)
        yield listening

    def send_all(self, nbytes: int, pause: float, stop: list[bool], begin: Sequence[bool] = (True,)):
        """Schedule: from ``begin`` on a message after each pause until ``stop`` says so, and the last one; returns how
        many."""
        message = np.zeros(nbytes, np.uint8)
        yield Until(lambda: begin[0], "the first message")
        for count in itertools.count(1):
            message[0] = stop[0]
            yield self.comm.Isend(message, self.other, tags.CALIBRATION)
            if message[0]:
                return count
            yield Delay(pause)

    def receive_all(self, nbytes: int):
        """Schedule: receive until the last message, and add each up, as all-reduces do; returns how many."""
        incoming, total = np.zeros(nbytes, np.uint8), np.zeros(nbytes // 4, np.float32)
        for count in itertools.count(1):
            yield self.comm.Irecv(incoming, self.other, tags.CALIBRATION)
            total += incoming.view(np.float32)
            if incoming[0]:
                return count

    def reactions(self) -> tuple[Spread, Spread]:
        """Return how much later a rank answers that computes, and one that sleeps, than one that looks for messages all
        the time. Both ranks ask; what ``there`` has measured is what ``here`` does."""
        times = []
        for silence, computes in ((0.0, False), (SILENCE, True), (SILENCE, False)):
            seconds = np.zeros(PINGS * self.rounds)
            if not self.is_here:
                self.driver.run(self.ask(seconds, silence))
            elif computes:
                answering = self.driver.start(self.answer())
                while not answering.Test():
                    self.compute(1)
            else:
                self.driver.run(self.answer())
            times.append(seconds)
            self.share(seconds, is_mine=not self.is_here)
        at_once, computing, sleeping = times
        usual = statistics.median(at_once)
        return mean_and_quartiles(computing - usual), Spread.of(sleeping - usual)

    def ask(self, seconds: np.ndarray, silence: float):
        """Schedule: ask as often as ``seconds`` is long, and note how long each answer takes."""
        question, reply = np.zeros(1, np.uint8), np.zeros(1, np.uint8)
        for k in range(len(seconds)):
            if silence:
                yield Delay(silence * (1 + 0.618 * k % 1))  # at any moment of what the other one computes
            question[0] = k == len(seconds) - 1
            begin = time.perf_counter()
            receiving = self.comm.Irecv(reply, self.other, tags.CALIBRATION)
            yield [receiving, self.comm.Isend(question, self.other, tags.CALIBRATION)]
            seconds[k] = time.perf_counter() - begin

    def answer(self):
        """Schedule: answer until the last question."""
        question = np.zeros(1, np.uint8)
        while not question[0]:
            yield self.comm.Irecv(question, self.other, tags.CALIBRATION)
            yield self.comm.Isend(question.copy(), self.other, tags.CALIBRATION)

    def eager_bytes(self, seconds_per_byte: float) -> int:
        """Return the size in bytes of the longest message, of those that were tried, that leaves rank ``here`` before
        the receive for it is posted; 0 if none does, and on the other rank."""
        longest = 0
        for nbytes in EAGER_BYTES:
            message = np.zeros(nbytes, np.uint8)
            if self.is_here:
                sending = self.comm.Isend(message, self.other, tags.CALIBRATION)
                deadline = time.perf_counter() + PATIENCE + 3 * nbytes * seconds_per_byte
                self.driver.run(passed(sending, deadline))
                longest = nbytes if sending.Test() else longest
                self.driver.run(self.tell())
                self.driver.run(ended(sending))
            else:
                self.driver.run(self.told())
                self.share(message, is_mine=False)
        return longest


def ended(pollable):
    """Schedule: wait for it."""
    yield pollable


def passed(message, deadline: float):
    """Schedule: wait until the message is complete, or it is so late."""
    yield Until(lambda: message.Test() or time.perf_counter() > deadline, "a message that may leave at once")


def mean_and_quartiles(values) -> Spread:
    """Return the mean in the place of the median: what happens rarely and takes long counts, too."""
    spread = Spread.of(values)
    return spread._replace(median=max(float(np.mean(values)), 0.0))


def work_of(seconds: float, poll: Callable[[], None]) -> Callable[[], None]:
    """Return what takes so many seconds of a core, always the same, and calls ``poll()`` now and then, as a backward
    pass does."""

    def work(times: int):
        for number in range(times):
            BUSY @ BUSY
            if number % POLL_EVERY == 0:
                poll()

    begin = time.perf_counter()
    work(1000)
    times = max(1, round(1000 * seconds / (time.perf_counter() - begin)))
    return lambda: work(times)
