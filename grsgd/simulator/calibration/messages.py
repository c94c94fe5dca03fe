"""Measurement of the processor time that a message takes on a rank that computes. Two ranks send messages to each other
while one of the two ranks computes.

The measurement consists of rounds. In each round the computing rank computes once without messages and once with
messages. The result of a round is the difference between the seconds with messages and the seconds without messages. In
both parts of a round, a schedule in the background looks for messages, so the difference does not include the time for
looking. The first steps of each part are not timed, because steps after a wait take another time than later steps
(`grsgd.simulator.compute.AfterWaits`). The measurement returns the median and the quartiles of the rounds' results.
"""

import itertools
import math
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from grsgd.comm import tags
from grsgd.comm.engine import SLEEP_SECONDS
from grsgd.comm.pollables import Delay, Until
from grsgd.simulator.calibration.computing import computing_of
from grsgd.simulator.calibration.eager import eager_bytes, ended
from grsgd.simulator.calibration.shares import MIN_ROUNDS, is_known, prolonged, seconds_now, trusted
from grsgd.simulator.calibration.spread import Spread, mean_and_quartiles
from grsgd.simulator.network import AFTER_WAIT_SECONDS

SMALL, LARGE = 8, 256 * 1024
"""Bytes of the messages that measure the processor time per message (``SMALL``) and the processor time per byte
(``LARGE``)."""
MAX_ROUNDS = 24
"""Largest number of rounds of one measurement of processor time. In each round a rank computes once with messages and
once without messages.

A measurement ends earlier if the standard error of its mean result falls below
`grsgd.simulator.calibration.shares.PRECISION`. A measurement whose training steps are long has fewer rounds than
`MAX_ROUNDS`, but at least `MIN_ROUNDS`.
"""
COST_SECONDS = 4.0
"""Seconds that all rounds of one measurement take together, approximately. One measurement finds, for example, the
processor time per sent message."""
ROUND_SECONDS = 0.25
"""Approximate seconds for which a rank computes in each half of a round (with messages, and without messages)."""
PAUSE = 2e-3
"""Seconds that the sender waits between two messages while a rank computes."""
PINGS, PINGS_BESIDE = 2, 8
"""Numbers of questions with answers (round trips of messages) per round. `PINGS` round trips measure how soon a waiting
rank notices a message, and `PINGS_BESIDE` round trips how soon a computing rank does.

The delay with which a computing rank notices a message varies between 0 and the seconds of a gradient, so the
measurement of this delay needs more round trips.
"""
SILENCE = 20e-3
"""Seconds for which no message is sent before a question is sent. After `SILENCE` seconds without a message, a waiting
rank sleeps between two looks for messages."""
QUESTION_BYTES = 64 * 1024
"""Bytes of a question, which is a message that measures how soon the receiving rank sends an answer."""
EXCHANGES, WAITS, WAIT_SECONDS = 25, 9, 0.1
"""Number of exchanges of short messages per measurement (``EXCHANGES``), number of measurements (``WAITS``), and
seconds for which a rank waits (``WAIT_SECONDS``).

In the measurements of exchanges and of waits, two ranks send and receive messages, and neither rank computes.
The measurements give the processor time of an exchange and of a wait, which both use up a rank's quota of
processor time.
"""


class ProcessorTimes(NamedTuple):
    """Measured processor times of messages, from which a `grsgd.simulator.network.ProcessorSpec` is made.
    ``eager_bytes`` is the greatest size in bytes of a message that leaves its sender before its receive is posted."""

    send: Spread
    receive: Spread
    send_byte: Spread
    receive_byte: Spread
    polling: Spread
    reaction: Spread
    wake: Spread
    eager_bytes: int
    progress_mode: str
    """Value of the option ``comm.progress_mode``, which chooses how messages are moved while a rank computes."""
    spin: float
    full_sleep: float
    share: float = 1.0
    period: float = 0.0
    """Fraction of a core that a quota of processor time allows (``share``), and seconds after which the quota is
    renewed (``period``)."""
    exchange: Spread = Spread(0.0, 0.0, 0.0)
    look: Spread = Spread(0.0, 0.0, 0.0)


class MessageMeter:
    """Measurement of the processor time that messages take on rank ``here`` while it computes. Rank ``there`` is the
    partner, which sends messages to rank ``here`` and receives messages from it.

    The ranks ``here`` and ``there`` must call the same methods of their `MessageMeter` objects in the same order. Rank
    ``here`` computes by repeated calls of ``step()``. ``let_others_wait`` makes a generator for the driver, with which
    rank ``here`` tells the ranks other than ``there`` to stop computing.
    """

    def __init__(self, driver, comm, here: int, there: int, step: Callable[[], None], let_others_wait: Callable):
        self.driver, self.comm, self.here, self.there = driver, comm, here, there
        self.is_here = comm.rank == here
        self.other = there if self.is_here else here
        self.step, self.let_others_wait = step, let_others_wait
        self.by_thread = driver.progress_mode == "thread"
        self.steps, self.untimed, self.most_rounds = 1, 1, MAX_ROUNDS

    def measure(self, seconds_per_byte: float, exchanges: np.ndarray | None = None) -> ProcessorTimes | None:
        """Measure all processor times of messages. Return the times on rank ``here``, and None on rank ``there``.

        seconds_per_byte: seconds that a byte needs on the slowest link. exchanges: result of `exchanges_beside`; None
        unless a communication thread moves messages.
        """
        if self.is_here:
            begin = time.perf_counter()
            self.compute(3)
            seconds = (time.perf_counter() - begin) / 3
            self.steps = max(1, round(ROUND_SECONDS / seconds))
            self.untimed = math.ceil(AFTER_WAIT_SECONDS / seconds)
            both = 2 * (self.untimed + self.steps) * seconds
            self.most_rounds = max(MIN_ROUNDS, min(MAX_ROUNDS, int(COST_SECONDS / both)))
        self.most_rounds = int(self.given(self.most_rounds))
        found = {}
        for sends in (False, True):
            small = self.cost(SMALL, sends, PAUSE)
            large = self.cost(LARGE, sends, max(PAUSE, LARGE * seconds_per_byte))
            found["send" if sends else "receive"] = Spread.of(small) if self.is_here else None
            if self.is_here:
                base = found["send" if sends else "receive"].median
                found["send_byte" if sends else "receive_byte"] = Spread.of([(c - base) / LARGE for c in large])
        found["polling"] = self.polling()
        found["reaction"], found["wake"] = self.reactions(found, exchanges)
        quota = self.driver.quota()
        if self.given(quota is not None):
            exchange, look = self.exchange_seconds(), self.look_seconds()
        eager = eager_bytes(self.driver, self.comm, self.other, self.is_here, seconds_per_byte)
        if not self.is_here:
            return None
        driver = self.driver
        found |= {"spin": driver.spin_seconds, "full_sleep": SLEEP_SECONDS / driver.sleep_share}
        if quota is not None:
            found |= {"share": quota.cores, "period": quota.period}
            for name, seconds in {"exchange": exchange, "look": look}.items():
                found[name] = Spread.of(np.array(seconds) / quota.cores)
        return ProcessorTimes(**found, eager_bytes=eager, progress_mode=driver.progress_mode)

    def given(self, value: float) -> float:
        """Return, on both ranks, the ``value`` that rank ``here`` has passed."""
        array = np.full(1, float(value))
        self.share(array, is_mine=self.is_here)
        return float(array[0])

    def share(self, array: np.ndarray, is_mine: bool):
        """Send ``array`` to the partner rank if ``is_mine``, else receive the partner's data into ``array``."""
        transfer = self.comm.Isend if is_mine else self.comm.Irecv
        self.driver.run(ended(transfer(array, self.other, tags.CALIBRATION)))

    def compute(self, steps: int) -> np.ndarray:
        """Compute ``self.untimed`` steps without measuring, and then ``steps`` steps whose time is measured. Return the
        times of the measured steps as three numbers in seconds, which `seconds_now` explains."""
        begin = seconds_now()
        for number in range(self.untimed + steps):
            if number == self.untimed:
                begin = seconds_now()
            self.driver.run(computing_of(self.step))
        return seconds_now() - begin

    def cost(self, nbytes: int, sends: bool, pause: float) -> list[float]:
        """Return, for each round of the measurement, the seconds by which one message prolongs the computation of rank
        ``here``.

        sends: True if rank ``here`` sends the messages, False if rank ``here`` receives them. Rank ``there`` returns an
        empty list.
        """
        shares, counts, alone = [], [], []
        for _ in self.rounds(shares):
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
            timed = self.steps / (self.untimed + self.steps)  # fraction of the steps whose time is measured
            counts.append(max(counted.value * timed, 1))
            alone.append(without[0])
            shares.append(prolonged(without, beside, self.by_thread))
        seconds = statistics.median(alone) if alone else 0.0
        return [share * seconds / count for share, count in zip(trusted(shares), counts, strict=True)]

    def rounds(self, shares: list[np.ndarray]) -> Iterator[None]:
        """Iterate over the rounds of a measurement, on both ranks at the same time. The iteration ends when rank
        ``here`` knows the mean of ``shares`` precisely enough (`is_known`).

        In each round the caller must append one element to ``shares``. The iteration also ends after `COST_SECONDS`
        seconds, because rounds take longer than planned if other programs run on the machine.
        """
        begin = time.perf_counter()
        for _ in range(self.most_rounds):
            yield
            late = len(shares) >= MIN_ROUNDS and time.perf_counter() - begin > COST_SECONDS
            if self.given(is_known(shares) or late):
                return

    def polling(self) -> Spread | None:
        """Return the fraction by which a computation of rank ``here`` takes longer while a schedule waits in the
        background.

        The schedule in the background waits for a message from rank ``there``. Rank ``there`` returns None.
        """
        shares = []
        for _ in self.rounds(shares):
            if not self.is_here:
                self.driver.run(self.told())
                self.driver.run(self.tell())
                continue
            alone = self.compute(self.steps)
            waiting = self.driver.start(self.told())
            beside = self.compute(self.steps)
            self.driver.run(self.tell())
            self.driver.run(ended(waiting))
            shares.append(prolonged(alone, beside, self.by_thread))
        return Spread.of(trusted(shares)) if self.is_here else None

    def tell(self):
        """Send a one-byte signal to the partner rank. This method is a schedule (a generator that yields the objects it
        waits for)."""
        yield self.comm.Isend(np.zeros(1, np.uint8), self.other, tags.CALIBRATION_SIGNAL)

    def told(self):
        """Wait for the signal that the partner rank sends by `tell`. This method is a generator that yields the objects
        it waits for."""
        yield self.comm.Irecv(np.zeros(1, np.uint8), self.other, tags.CALIBRATION_SIGNAL)

    def send_until_told(self, nbytes: int, pause: float):
        """Send messages from the first signal of the partner rank until its second signal. This method is a generator
        that yields the objects it waits for."""
        yield from self.told()
        stop = [False]

        def listen():
            yield from self.told()
            stop[0] = True

        listening = self.driver.start(listen())
        yield from self.send_all(nbytes, pause, stop)
        yield listening

    def send_all(self, nbytes: int, pause: float, stop: list[bool], begin: Sequence[bool] = (True,)):
        """Send messages of ``nbytes`` bytes, with ``pause`` seconds between two messages. Return the number of sent
        messages. This method is a generator that yields the objects it waits for.

        The first message is sent when ``begin[0]`` is true. After ``stop[0]`` has become true, one last message is
        sent.
        """
        message = np.zeros(nbytes, np.uint8)
        yield Until(lambda: begin[0], "the first message")
        for count in itertools.count(1):
            message[0] = stop[0]
            yield self.comm.Isend(message, self.other, tags.CALIBRATION)
            if message[0]:
                return count
            yield Delay(pause)

    def receive_all(self, nbytes: int):
        """Receive all messages that the partner rank sends by `send_all`, and add each message to a sum, as all-reduces
        do. Return the number of received messages. This method is a generator that yields the objects it waits for."""
        incoming, total = np.zeros(nbytes, np.uint8), np.zeros(nbytes // 4, np.float32)
        for count in itertools.count(1):
            yield self.comm.Irecv(incoming, self.other, tags.CALIBRATION)
            total += incoming.view(np.float32)
            if incoming[0]:
                return count

    def reactions(self, costs: dict[str, Spread], exchanges: np.ndarray | None) -> tuple[Spread, Spread]:
        """Return two delays in seconds, relative to a rank that waits and looks for messages without pause.

        The first delay is how much later a computing rank notices a message, and the second is how much later a
        sleeping rank does. Rank ``there`` sends questions and measures the seconds until rank ``here`` has answered. If
        a communication thread moves messages, the delay of a computing rank is computed from ``exchanges``, and not
        from answers. The reason is that, under a quota of processor time, the time of an answer depends on the moment
        of the quota period at which the question arrives. With the times of answers, the results of repeated
        calibrations differed by a factor of three.

        When a rank sleeps in a training, the other ranks mostly wait, too, so no rank computes during the measurement
        of the sleeping rank's delay. A question is as long as the messages of trainings, because a rank looks for a
        long message already while it arrives. A link that has been idle may send its first bytes faster than a busy
        link. Questions to a rank that waits without sleep are therefore sent after the same silence as questions to a
        sleeping rank. A short message just before the question wakes the rank.
        """
        computing = self.answers(computes=True) if exchanges is None else None
        if self.is_here:
            self.driver.run(self.let_others_wait())
        awake = statistics.median(self.answers(warns=True))
        wake = Spread.of(self.answers() - awake)
        if not self.is_here:
            return wake, wake
        if exchanges is not None:
            return Spread.of(exchanges - costs["send"].median - costs["receive"].median), wake
        taking_in = costs["receive"].median + QUESTION_BYTES * costs["receive_byte"].median
        return mean_and_quartiles(computing - awake - taking_in), wake

    def answers(self, computes: bool = False, warns: bool = False) -> np.ndarray:
        """Return, on both ranks, the seconds from each question of rank ``there`` until the answer of rank ``here`` has
        arrived.

        computes: whether rank ``here`` computes while it waits for questions. warns: whether a short message arrives at
        rank ``here`` just before each question.
        """
        seconds = np.zeros((PINGS_BESIDE if computes else PINGS) * self.most_rounds)
        if not self.is_here:
            self.driver.run(self.ask(seconds, warns))
        elif computes:
            answering = self.driver.start(self.answer(warns))
            while not answering.Test():
                self.compute(1)
        else:
            self.driver.run(self.answer(warns))
        self.share(seconds, is_mine=not self.is_here)
        return seconds

    def ask(self, seconds: np.ndarray, warns: bool):
        """Send ``len(seconds)`` questions to the partner rank, and write the seconds until each answer into
        ``seconds``. This method is a generator that yields the objects it waits for."""
        question, reply = np.zeros(QUESTION_BYTES, np.uint8), np.zeros(1, np.uint8)
        for k in range(len(seconds)):
            yield Delay(SILENCE * (1 + 0.618 * k % 1))  # so that questions arrive at any moment of a computation
            question[0] = k == len(seconds) - 1
            if warns:
                yield from self.tell()
            begin = time.perf_counter()
            receiving = self.comm.Irecv(reply, self.other, tags.CALIBRATION)
            yield [receiving, self.comm.Isend(question, self.other, tags.CALIBRATION)]
            seconds[k] = time.perf_counter() - begin

    def answer(self, warns: bool):
        """Answer all questions of the partner rank; the last question begins with a nonzero byte. This method is a
        generator that yields the objects it waits for."""
        question = np.zeros(QUESTION_BYTES, np.uint8)
        while not question[0]:
            if warns:
                yield from self.told()
            yield self.comm.Irecv(question, self.other, tags.CALIBRATION)
            yield self.comm.Isend(question[:1].copy(), self.other, tags.CALIBRATION)

    def exchange_seconds(self) -> list[float]:
        """Return, on both ranks, a rank's processor seconds per exchange of short messages, one value from each of
        `WAITS` measurements."""
        message, incoming = np.zeros(SMALL, np.uint8), np.zeros(SMALL, np.uint8)

        def exchanges():
            for _ in range(EXCHANGES):
                receiving = self.comm.Irecv(incoming, self.other, tags.CALIBRATION)
                yield [receiving, self.comm.Isend(message, self.other, tags.CALIBRATION)]

        seconds = []
        for _ in range(WAITS):
            begin = time.process_time()
            self.driver.run(exchanges())
            seconds.append((time.process_time() - begin) / EXCHANGES)
        return seconds

    def look_seconds(self) -> list[float]:
        """Return the processor seconds that one look for messages takes on rank ``here``, one value from each of
        `WAITS` waits.

        After a long wait a rank sleeps for `SLEEP_SECONDS` between two looks for messages. The numbers that rank
        ``there`` returns have no meaning.
        """

        def late_message():
            yield Delay(WAIT_SECONDS)
            yield from self.tell()

        seconds = []
        for _ in range(WAITS):
            begin, used = time.perf_counter(), time.process_time()
            self.driver.run(self.told() if self.is_here else late_message())
            used, waited = time.process_time() - used, time.perf_counter() - begin
            seconds.append(used * SLEEP_SECONDS / max(waited - used, SLEEP_SECONDS))
            self.driver.run(self.tell() if self.is_here else self.told())
        return seconds
