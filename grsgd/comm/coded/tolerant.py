"""`TolerantSum`, the scheme in which ranks compute the sum of all blocks of a gradient without waiting for silent ranks
(ranks that send no messages). The module `coding.tolerant` describes the code by which the sum is computed from the
messages of some ranks.

A schedule is a generator that yields each object (such as a request of a message) for which the schedule waits.
"""

import math
from collections.abc import Callable
from functools import partial

import numpy as np

from coding.fixed_point import FixedPoint
from coding.kernels import kernels
from coding.tolerant import tolerant_code
from grsgd.comm.coded.errors import SilentRanks
from grsgd.comm.coded.fingerprints import Fingerprints
from grsgd.comm.coded.multicast import Unicast
from grsgd.comm.coded.parting import Parting
from grsgd.comm.coded.queues import Queues
from grsgd.comm.coded.scheme import Scheme
from grsgd.comm.coded.streams import AHEAD, FIXED, HeaderKind, Streams, header
from grsgd.comm.communicator import Communicator
from grsgd.comm.pollables import Delay, Until
from grsgd.text import ranks_in_words

LAG_BYTES = 256 * 2**20
"""Total size in bytes of the messages that a rank stores for another rank that is some steps behind. If the parameter
``lag`` is not given, a rank stores the messages of as many steps as fit into `LAG_BYTES`, but of at least `MIN_LAG` and
at most `MAX_LAG` steps."""
MIN_LAG, MAX_LAG = 8, 1000
NEWS = 1 / 16
"""Longest time for which a rank that was late in the last step waits for headers, as a fraction of the time in which it
computes its blocks."""


class TolerantSum(Scheme):
    """One rank's state in a scheme in which a step ends as soon as the messages of any n - ``silent`` ranks have
    arrived.

    If a rank has received enough messages before it has computed its blocks (`is_over`), it takes the step without
    computing its blocks. A rank that has not computed its blocks computes its message from the messages of other ranks,
    and sends it to the ranks that may still need it. Therefore each rank that is not silent sends a message in each
    step, and no step waits for a silent rank. Messages wait in `Queues` until the receiving rank receives them. If a
    receiving rank is more than ``lag`` steps behind, the other ranks send it no more messages (`is_left_behind`).

    Parameters
    ----------
    comm
        Communicator that carries the messages between ranks.
    driver
        Driver that sends and receives the messages in the background, between `open` and `close`.
    patience
        Seconds for which `close` waits for silent ranks.
    n, r, rank, length, fixed_point, empty
        Parameters of the base class `Scheme`. The sum of n numbers in the format ``fixed_point`` must be at most
        `coding.prime_field.HALF`.
    """

    sends_sums = True

    def __init__(
        self,
        comm: Communicator,
        driver,
        n: int,
        r: int,
        rank: int,
        length: int,
        fixed_point: FixedPoint,
        empty: Callable,
        silent: int,
        lag: int | None = None,
        patience: float = math.inf,
    ):
        self.comm, self.driver, self.silent, self.patience = comm, driver, silent, patience
        self.code = tolerant_code(n, r, silent)
        super().__init__(Unicast(comm), n, r, rank, length, fixed_point, empty)
        self.message_length = self.code.length(length)
        self.bounds = self.code.bounds(length)
        self.rows = empty((AHEAD + 1) * n * self.message_length, "int32")
        """Memory for the messages that this rank receives: `AHEAD` + 1 messages per sending rank, each for another
        step."""
        self.lag = lag or max(MIN_LAG, min(MAX_LAG, LAG_BYTES // max(4 * self.message_length, 1)))
        values = max(n, r)
        self.streams = Streams(comm, values, self.row, self._compare)
        self.fingerprints = Fingerprints()
        farewell = header(values, HeaderKind.LEFT_BEHIND)
        self.queues = Queues(comm, self.lag, partial(empty, self.message_length, "int32"), farewell)
        self.own_seconds = self._began = 0.0
        """`own_seconds`: seconds from the beginning of a step until this rank sent its message, in the last step in
        which this rank computed its blocks. `_began`: time in seconds at which the present step began."""
        self.used = np.zeros(n, np.int64)
        """Number of steps, for each rank i, in which this rank has decoded the sum of all blocks with the message of
        rank i: int64 of shape [n]."""
        self.made = 0
        """Number of steps that this rank has taken without computing its blocks."""

    def assign_blocks(self):
        self.blocks = self.code.placement.blocks(self.rank)
        self.num_blocks = self.n

    def sent(self):
        return ()

    received = sent

    # ---- background

    def open(self):
        """Begin to receive and send the messages of this scheme in the background."""
        self._receiving = {source: self.driver.start(self.streams.receive(source)) for source in self.queues.others}
        self._is_closed = False
        if self.queues.others:
            self._sending = self.driver.start(self._send_queued())

    def _send_queued(self):
        """Generator (schedule), run in the background, that sends the messages in `queues` to other ranks, until
        `close` has ended."""
        yield Until(lambda: self.queues.move() and self._is_closed, "messages to other ranks")

    def row(self, source: int, step: int):
        """Return the memory for the message that rank ``source`` sends for ``step``: int32 of shape
        [message_length]."""
        begin = self._place(source, step)
        return self.rows[begin : begin + self.message_length]

    def _place(self, source: int, step: int) -> int:
        return ((AHEAD + 1) * source + step % (AHEAD + 1)) * self.message_length

    # ---- a step

    @property
    def is_over(self) -> bool:
        """Return True if enough messages of other ranks have arrived that this rank can decode the sum of all blocks
        for the present step."""
        return self.streams.count() >= self.code.needed

    def look(self):
        """Generator (schedule), run at the beginning of each step, that sets `needs_no_blocks`. If enough other ranks
        have announced a message for the present step, the schedule waits for these messages.

        The schedule waits at most as long as this rank needs to compute its blocks, because some ranks that have
        announced messages may have fallen silent.
        """
        if self.needs_no_blocks:  # this rank took the last step without computing its blocks
            yield from self._wait(lambda: self.is_over or self._is_announced, NEWS * self.own_seconds)
        if self._is_announced:
            yield from self._wait(lambda: self.is_over, self.own_seconds)
        self.needs_no_blocks = self.is_over
        self._began = self.driver.clock()

    @property
    def _is_announced(self) -> bool:
        """Return True if enough other ranks have announced a message for the present step or a later step."""
        return self.streams.announced() >= self.code.needed

    def _wait(self, is_true: Callable[[], bool], seconds: float):
        """Generator (schedule) that waits until ``is_true()`` returns True, but at most ``seconds`` seconds."""
        if seconds and not is_true():
            alarm = self.driver.start(watch_the_clock(seconds))
            yield Until(lambda: is_true() or alarm.Test(), "messages to or from ranks that may be silent")

    def add_up(self):
        """Generator (schedule) that sets `total` to the sum of the blocks of all ranks, unless this rank
        `is_left_behind`."""
        step = self.streams.step
        if not self.needs_no_blocks:
            self.own_seconds = self.driver.clock() - self._began
            self._send_own(step)
        yield StepEnd(self)
        if self.is_left_behind:
            return
        senders = tuple(sorted(self.streams.arrived(step)[: self.code.needed]))
        self._decode(step, senders)
        if self.needs_no_blocks:
            self.made += 1
            self._send_made(step, senders)
        self.used[list(senders)] += 1
        self.streams.go_on()

    def _send_own(self, step: int):
        lengths = [end - begin for begin, end in zip(self.bounds, self.bounds[1:], strict=False)]
        buffer, row = self.queues.take_buffer(), self.row(self.rank, step)
        kernel = kernels(self.rows)
        kernel.combine(
            self.block_buffers,
            np.array([k * self.length + begin for k in range(self.r) for begin in self.bounds[:-1]]),
            np.array(lengths * self.r),
            self.code.coefficients(self.rank).reshape(-1),
            buffer,
        )
        row[:] = buffer
        prints = [kernel.fingerprint(self.block_buffer(k)) for k in range(self.r)]
        numbers = header(self.streams.values, HeaderKind.STEP, step, values=prints)
        self.queues.send(numbers, buffer, self._in_need(step))
        self._compare(self.rank, step, numbers)
        self.streams.take(self.rank, step)

    def _send_made(self, step: int, senders: tuple[int, ...]):
        """Compute this rank's message for ``step`` from the messages of the ranks ``senders``. Send the message to all
        ranks that may lack messages to end the step."""
        if receivers := self._in_need(step):
            buffer = self.queues.take_buffer()
            factors = self.code.repeating(senders, self.rank)
            self._combine(step, senders, factors, buffer)
            self.queues.send(header(self.streams.values, HeaderKind.STEP, step, is_made=True), buffer, receivers)

    def _in_need(self, step: int) -> list[int]:
        """Return the ranks that may not have ended ``step``, because they have not announced a message for a later
        step."""
        return [rank for rank in self.queues.others if self.streams.newest[rank] <= step]

    def _decode(self, step: int, senders: tuple[int, ...]):
        factors = self.code.decoding(senders)
        for part, (begin, end) in enumerate(zip(self.bounds, self.bounds[1:], strict=False)):
            self._combine(step, senders, factors[part], self.total[begin:end])

    def _combine(self, step: int, senders: tuple[int, ...], factors: np.ndarray, out):
        """Write the sum of the messages of ``senders``, each multiplied by its element of ``factors``, into ``out``. If
        ``out`` is shorter than a message, only the first elements of the sum are computed."""
        places = np.array([self._place(sender, step) for sender in senders])
        kernels(self.rows).combine(self.rows, places, np.full(len(senders), out.size), factors, out)

    def _compare(self, source: int, step: int, numbers: np.ndarray):
        """Compare the fingerprints of the blocks that rank ``source`` has computed with the fingerprints from other
        ranks. Raise UnequalBlocks if two ranks have different fingerprints of one block."""
        if not numbers[2]:  # the header of a message that was computed from other ranks' messages has no fingerprints
            prints = numbers[FIXED : FIXED + self.r].tolist()
            self.fingerprints.compare(step, source, dict(zip(self.code.placement.blocks(source), prints, strict=True)))

    @property
    def is_left_behind(self) -> bool:
        """Return True if other ranks have left this rank behind, and this rank can therefore no longer get enough
        messages to end a step."""
        return self._without(self.streams.said[HeaderKind.LEFT_BEHIND].keys()) < self.code.needed

    def _without(self, ranks) -> int:
        """Return how many messages for the present step have arrived or can still arrive, if the ranks ``ranks`` send
        no more messages."""
        step = self.streams.step
        return len((set(range(self.n)) - set(ranks)) | set(self.streams.arrived(step)))

    def check_lost(self):
        """Raise SilentRanks if too many ranks have died or given up for this rank to end a step."""
        gone = self.streams.dead | self.streams.said[HeaderKind.GONE].keys()
        if self._without(gone) < self.code.needed and not self.is_left_behind:
            lost = ranks_in_words(sorted(gone))
            raise SilentRanks(f"lost: {lost}; at most {self.silent} may be lost or silent (algorithm.silent)")

    # ---- the end

    def close(self):
        """Generator (schedule), run after the last step, in which the ranks agree on the ranks that they leave behind.
        The schedule also receives the messages that are still under way, and sets the attribute `lost`."""
        parting = Parting(self.queues, self.streams, self.driver, self.silent, self.patience)
        if self.is_left_behind:
            yield from parting.give_up()
            self.lost = frozenset({self.rank})
            return
        self.lost = yield from parting.agree()
        if self.rank in self.lost:
            return
        left = [rank for rank in self.queues.others if rank not in self.lost]
        self.queues.tell(header(self.streams.values, HeaderKind.LAST), left)
        yield [self._receiving[rank] for rank in left]
        yield Until(lambda: self.queues.is_delivered(left), f"last messages to {ranks_in_words(left)}")
        self._is_closed = True
        if left and not self.lost:
            yield self._sending


def watch_the_clock(seconds: float):
    """Generator (schedule), run in the background, that ends after ``seconds`` seconds."""
    yield Delay(seconds)


class StepEnd:
    """A pollable whose ``Test()`` returns True when the present step of ``scheme`` can end. The string of a `StepEnd`,
    which appears in error messages, names the silent ranks."""

    def __init__(self, scheme: TolerantSum):
        self.scheme = scheme

    def Test(self) -> bool:
        scheme = self.scheme
        if scheme.is_over or scheme.is_left_behind:
            return True
        scheme.check_lost()
        return False

    def __str__(self):
        scheme, step = self.scheme, self.scheme.streams.step
        arrived = scheme.streams.arrived(step)
        silent = ranks_in_words([rank for rank in range(scheme.n) if rank not in arrived])
        return f"step {step} to end without {silent}: at most {scheme.silent} may be silent (algorithm.silent)"
