"""Measures what messages take of a processor, between two ranks: of which one computes, and the other sends to it.

Each time is a difference between computing with messages and without, by turns, in rounds; in both a schedule in the
background looks for them, which takes time of its own. What follows a wait takes another time
(`grsgd.simulate.compute.AfterWaits`), so some steps that are not timed come first. The medians of the rounds count, and
their quartiles are the spread.
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
from grsgd.simulate.calibration.computing import computing_of
from grsgd.simulate.calibration.shares import LEAST_ROUNDS, is_known, prolonged, seconds_now, trusted
from grsgd.simulate.calibration.spread import Spread, mean_and_quartiles
from grsgd.simulate.network import AFTER_WAIT_SECONDS

SMALL, LARGE = 8, 256 * 1024
"""Bytes of the messages that show what one takes, and what each byte of it."""
MOST_ROUNDS = 24
"""How often it is computed with messages and without: until the share of the time that they take is known to
`grsgd.simulate.calibration.shares.PRECISION`; less often where steps are long, but `LEAST_ROUNDS` times at least."""
COST_SECONDS = 4.0
"""About how long that may take for each of the costs."""
ROUND_SECONDS = 0.25
"""About how long a rank computes in a round, either way."""
PAUSE = 2e-3
"""Seconds between two messages that are sent while a rank computes."""
PINGS, PINGS_BESIDE = 2, 8
"""Questions, for each round that there may be, whose answers show how soon a rank notices a message: a rank that waits,
and a rank that computes, which is late by the length of a gradient at one time and by nothing at another."""
SILENCE = 20e-3
"""Seconds of silence after which a rank that waits has gone to sleep."""
QUESTION_BYTES = 64 * 1024
"""Of the messages whose answers show that."""
EXCHANGES, WAITS, WAIT_SECONDS = 25, 9, 0.1
"""Short messages that two ranks which do nothing else send to each other, to see what these take of a quota; how often;
and how long a rank waits to see what looking for messages takes of it."""
EAGER_BYTES = [2**power for power in range(10, 23)]
"""The sizes of messages of which it is tried whether they leave before the receive for them is posted."""
PATIENCE = 0.05
"""For so many seconds, and three times what it takes on its way, a message is watched whether it leaves."""


class ProcessorTimes(NamedTuple):
    """The times of a `grsgd.simulate.network.ProcessorSpec`, and the size up to which messages are eager."""

    send: Spread
    receive: Spread
    send_byte: Spread
    receive_byte: Spread
    polling: Spread
    reaction: Spread
    wake: Spread
    eager_bytes: int
    progress_mode: str
    """How messages were moved in the background."""
    spin: float
    full_sleep: float
    share: float = 1.0
    period: float = 0.0
    """As for `grsgd.simulate.network.ProcessorSpec`."""
    exchange: Spread = Spread(0.0, 0.0, 0.0)
    look: Spread = Spread(0.0, 0.0, 0.0)


class MessageMeter:
    """Rank ``here``, which computes, and ``there``, which sends to it and receives from it; both call the same methods
    in the same order. ``step()`` is what ``here`` computes again and again, and ``let_others_wait()`` the schedule by
    which it tells all other ranks to compute no longer."""

    def __init__(self, driver, comm, here: int, there: int, step: Callable[[], None], let_others_wait: Callable):
        self.driver, self.comm, self.here, self.there = driver, comm, here, there
        self.is_here = comm.rank == here
        self.other = there if self.is_here else here
        self.step, self.let_others_wait = step, let_others_wait
        self.by_thread = driver.progress_mode == "thread"
        self.steps, self.untimed, self.most_rounds = 1, 1, MOST_ROUNDS

    def measure(self, seconds_per_byte: float, exchanges: np.ndarray | None = None) -> ProcessorTimes | None:
        """Measure everything; returns the times on rank ``here``, else None.

        seconds_per_byte: of the wire. exchanges: of `exchanges_beside`, where a thread moves messages.
        """
        if self.is_here:
            begin = time.perf_counter()
            self.compute(3)
            seconds = (time.perf_counter() - begin) / 3
            self.steps = max(1, round(ROUND_SECONDS / seconds))
            self.untimed = math.ceil(AFTER_WAIT_SECONDS / seconds)
            both = 2 * (self.untimed + self.steps) * seconds
            self.most_rounds = max(LEAST_ROUNDS, min(MOST_ROUNDS, int(COST_SECONDS / both)))
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
        eager = self.eager_bytes(seconds_per_byte)
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
        """Return the value that rank ``here`` gives, on both."""
        array = np.full(1, float(value))
        self.share(array, is_mine=self.is_here)
        return float(array[0])

    def share(self, array: np.ndarray, is_mine: bool):
        """Send an array to the other rank if it is this one's, else receive it."""
        transfer = self.comm.Isend if is_mine else self.comm.Irecv
        self.driver.run(ended(transfer(array, self.other, tags.CALIBRATION)))

    def compute(self, steps: int) -> np.ndarray:
        """Compute so many steps, after some that are not timed; returns what has been had of `seconds_now`."""
        begin = seconds_now()
        for number in range(self.untimed + steps):
            if number == self.untimed:
                begin = seconds_now()
            self.driver.run(computing_of(self.step))
        return seconds_now() - begin

    def cost(self, nbytes: int, sends: bool, pause: float) -> list[float]:
        """Return by how many seconds a message prolongs what rank ``here`` computes, in each round; there, nothing.

        sends: whether the messages come from ``here``.
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
            timed = self.steps / (self.untimed + self.steps)  # the part of the messages that has been timed
            counts.append(max(counted.value * timed, 1))
            alone.append(without[0])
            shares.append(prolonged(without, beside, self.by_thread))
        seconds = statistics.median(alone) if alone else 0.0
        return [share * seconds / count for share, count in zip(trusted(shares), counts, strict=True)]

    def rounds(self, shares: list[np.ndarray]) -> Iterator[None]:
        """Iterate over rounds, on both ranks, until rank ``here`` knows the mean of ``shares`` by the clock, to which
        each round appends, or has measured for `COST_SECONDS`: beside other programs rounds take longer than they are
        planned to."""
        begin = time.perf_counter()
        for _ in range(self.most_rounds):
            yield
            late = len(shares) >= LEAST_ROUNDS and time.perf_counter() - begin > COST_SECONDS
            if self.given(is_known(shares) or late):
                return

    def polling(self) -> Spread | None:
        """Return which share of its computing time rank ``here`` takes longer while a schedule in the background waits
        for a message."""
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

    def reactions(self, costs: dict[str, Spread], exchanges: np.ndarray | None) -> tuple[Spread, Spread]:
        """Return how much later a rank notices a message that computes, and one that sleeps, than one that looks for
        messages all the time.

        Both ranks ask, and rank ``here`` answers; what ``there`` has measured is what ``here`` does. But how late a
        thread is, ``exchanges`` show: with a quota, an answer depends on the moment of its period at which a question
        comes, so that one calibration found three times as much as another.

        Ranks that sleep mostly wait for each other, so the others do not compute meanwhile. Questions are long, as what
        ranks wait for is: they look at such a message while it comes. A link that has been idle may send faster at
        first, so a rank that does not sleep is asked after the same silence, but has got a short message right before.
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
        """Return the seconds in which ``here`` has answered, on both. computes: whether ``here`` does meanwhile. warns:
        whether a short message comes right before a question."""
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
        """Schedule: ask as often as ``seconds`` is long, and note how long each answer takes."""
        question, reply = np.zeros(QUESTION_BYTES, np.uint8), np.zeros(1, np.uint8)
        for k in range(len(seconds)):
            yield Delay(SILENCE * (1 + 0.618 * k % 1))  # at any moment of what the other one computes
            question[0] = k == len(seconds) - 1
            if warns:
                yield from self.tell()
            begin = time.perf_counter()
            receiving = self.comm.Irecv(reply, self.other, tags.CALIBRATION)
            yield [receiving, self.comm.Isend(question, self.other, tags.CALIBRATION)]
            seconds[k] = time.perf_counter() - begin

    def answer(self, warns: bool):
        """Schedule: answer until the last question."""
        question = np.zeros(QUESTION_BYTES, np.uint8)
        while not question[0]:
            if warns:
                yield from self.told()
            yield self.comm.Irecv(question, self.other, tags.CALIBRATION)
            yield self.comm.Isend(question[:1].copy(), self.other, tags.CALIBRATION)

    def exchange_seconds(self) -> list[float]:
        """Return the seconds of the processor that an exchange of short messages takes, by round, on both ranks."""
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
        """Return the seconds of the processor that a look for messages takes on rank ``here``, by wait; there, other
        numbers. A rank that has waited for long looks after each `SLEEP_SECONDS`."""

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
