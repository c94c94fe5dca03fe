"""Detection of other ranks' failures in a recorded loop, between two steps and while this rank waits."""

from collections.abc import Callable
from contextlib import suppress

from grsgd.comm.communicator import LostRank
from grsgd.comm.pollables import Until
from grsgd.comm.stop_signal import EndAsked, Stopped, StopSignal

LISTENING_SECONDS = 0.02
"""Seconds between two checks for failures of other ranks, in the background."""
FAILURE_SECONDS = 0.5
"""Seconds that this rank still waits in a step after it has learnt that another rank has failed."""


class Stops:
    """Detection of other ranks' failures while a loop is recorded. Without a recording, a rank does not tell other
    ranks of its failure.

    ``clock()`` returns the time in seconds.
    """

    def __init__(self, clock: Callable[[], float]):
        self.clock = clock
        self.signal: StopSignal | None = None
        """The stop signal of the present recording (`grsgd.comm.stop_signal`); None without a recording."""
        self._listened = -LISTENING_SECONDS
        self._failure: tuple[StopSignal, float] | None = None
        """The stop signal that reported another rank's failure to this rank, and the time of the report."""

    def watch(self):
        """Raise Stopped if another rank has failed or has asked all ranks to stop. A loop calls this method between two
        steps."""
        if self.signal is not None:
            self.signal.watch()

    def stop(self, reason: str):
        """Raise EndAsked with ``reason``. All ranks call this method after a checkpoint with which their loops end."""
        raise EndAsked(reason)

    def attend(self):
        """Schedule (a generator that a driver runs) that receives failures of other ranks without end. This schedule
        runs in the background, even while this rank is in a call of MPI."""
        yield Until(self._listen, "failures of other ranks")

    def _listen(self) -> bool:
        now = self.clock()
        if self.signal is not None and now - self._listened >= LISTENING_SECONDS:
            self._listened = now
            with suppress(Stopped, LostRank):
                self.signal.watch_failures()
        return False

    def repeat(self, rank: int):
        """Send an earlier failure again to ``rank``, because a new process has taken this rank since the failure."""
        if self.signal is not None:
            self.signal.repeat(rank)

    def tell_failure(self, rank: int):
        """Tell the other ranks that rank ``rank`` has failed and ends the job. Without this message, the other ranks
        would go on as after a death."""
        if self.signal is not None and not self.signal.failed:
            self.signal.fail(f"rank {rank} has failed")

    def watch_in_step(self):
        """Raise Stopped if this rank waits in a step that cannot end, because another rank has failed or all ranks
        stop."""
        try:
            self.watch()
        except Stopped:
            if not self.signal.failed or self._waits_in_vain():
                raise

    def _waits_in_vain(self) -> bool:
        """Return whether this rank learnt of another rank's failure more than `FAILURE_SECONDS` ago. Messages that the
        failed rank had sent would have arrived within this time.

        So a step that needs only messages under way ends normally. The rank then stops between this step and the next
        step.
        """
        now = self.clock()
        if self._failure is None or self._failure[0] is not self.signal:
            self._failure = self.signal, now
        return now - self._failure[1] > FAILURE_SECONDS
