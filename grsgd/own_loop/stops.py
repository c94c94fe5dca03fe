"""Failures of other ranks in a recording, of which a rank learns between two steps and while it waits."""

from collections.abc import Callable
from contextlib import suppress

from grsgd.comm.communicator import LostRank
from grsgd.comm.pollables import Until
from grsgd.comm.stop_signal import EndAsked, Stopped, StopSignal

LISTENING_SECONDS = 0.02
"""Seconds between two looks for failures in the background."""
FAILURE_SECONDS = 0.5
"""Seconds that this rank still waits in a step after it has learnt that another rank has failed."""


class Stops:
    """Watch for failures of other ranks while a loop is recorded. Without a recording, ranks do not tell each other of
    failures.

    ``clock`` returns seconds.
    """

    def __init__(self, clock: Callable[[], float]):
        self.clock = clock
        self.signal: StopSignal | None = None
        """The stop signal of the present recording; None without a recording."""
        self._listened = -LISTENING_SECONDS
        self._failure: tuple[StopSignal, float] | None = None
        """The signal by which this rank has learnt that another rank has failed, and the time of learning it."""

    def watch(self):
        """Raise Stopped if another rank has failed or has asked all ranks to stop; called between two steps."""
        if self.signal is not None:
            self.signal.watch()

    def stop(self, reason: str):
        """Raise EndAsked on this rank; called on all ranks after a checkpoint with which their loops end."""
        raise EndAsked(reason)

    def attend(self):
        """Receive failures of other ranks in the background, without end, also while this rank is in a call of MPI; a
        schedule."""
        yield Until(self._listen, "failures of other ranks")

    def _listen(self) -> bool:
        now = self.clock()
        if self.signal is not None and now - self._listened >= LISTENING_SECONDS:
            self._listened = now
            with suppress(Stopped, LostRank):
                self.signal.watch_failures()
        return False

    def repeat(self, rank: int):
        """Repeat an earlier failure to ``rank``, which another process has taken since."""
        if self.signal is not None:
            self.signal.repeat(rank)

    def tell_failure(self, rank: int):
        """Tell the other ranks that rank ``rank`` has failed and ends the job. Without this message they would go on,
        as after the death of its process."""
        if self.signal is not None and not self.signal.failed:
            self.signal.fail(f"rank {rank} has failed")

    def watch_in_step(self):
        """Raise Stopped while this rank waits in a step that can no longer end."""
        try:
            self.watch()
        except Stopped:
            if not self.signal.failed or self._waits_in_vain():
                raise

    def _waits_in_vain(self) -> bool:
        """Return whether this rank learnt over `FAILURE_SECONDS` ago that another rank failed, so that messages of the
        failed rank would have arrived.

        If a step needs only messages that are under way, it ends within this time. The rank then breaks off between two
        steps.
        """
        now = self.clock()
        if self._failure is None or self._failure[0] is not self.signal:
            self._failure = self.signal, now
        return now - self._failure[1] > FAILURE_SECONDS
