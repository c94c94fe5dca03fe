"""Failures of other ranks in a recording, as a rank learns of them between two steps, and while it waits."""

from collections.abc import Callable

from grsgd.comm.stop_signal import Stopped, StopSignal

FAILURE_SECONDS = 0.5
"""How long a step of this rank goes on after another rank has failed."""


class Stops:
    """Tells this rank of failures while a loop is recorded; without a recording nothing tells of them.

    ``clock``: gives seconds.
    """

    def __init__(self, clock: Callable[[], float]):
        self.clock = clock
        self.signal: StopSignal | None = None
        """That of the recording."""
        self._failure: tuple[StopSignal, float] | None = None
        """The signal by which this rank has heard that another rank has failed, and when."""

    def watch(self):
        """Raise Stopped, between two steps, if another rank has failed or asked all to stop."""
        if self.signal is not None:
            self.signal.watch()

    def watch_in_step(self):
        """Raise Stopped while this rank waits in a step that cannot end any more."""
        try:
            self.watch()
        except Stopped:
            if not self.signal.failed or self._waits_in_vain():
                raise

    def _waits_in_vain(self) -> bool:
        """Return whether another rank has failed so long ago that its last messages would be here.

        Until then a step that can still end is ended, so all ranks break off between two steps.
        """
        now = self.clock()
        if self._failure is None or self._failure[0] is not self.signal:
            self._failure = self.signal, now
        return now - self._failure[1] > FAILURE_SECONDS
