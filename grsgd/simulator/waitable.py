"""Base class of pollables (objects for which a schedule can wait) in simulated time. A complete pollable resumes the
schedule that waits for it, so that no schedule has to poll."""

from grsgd.comm.backend import PROCESS_FAILURES


class Waitable:
    """A pollable for which one schedule can wait. A complete pollable resumes the schedule that waits for it."""

    __slots__ = ("complete", "waiter", "failed")

    def __init__(self):
        self.complete = self.failed = False
        self.waiter = None

    def Test(self) -> bool:
        """Return whether the pollable is complete; raise RuntimeError, as MPI libraries do, if a process has died."""
        if self.failed:
            raise RuntimeError(PROCESS_FAILURES[0])
        return self.complete

    def fail(self, driver):
        """Let each later call of `Test` raise an error, and resume the schedule that waits. ``driver`` is the driver of
        the rank that waits."""
        self.failed = True
        waiter, self.waiter = self.waiter, None
        driver.notify(waiter)

    def finish(self, driver):
        """Set ``complete``, and resume the schedule that waits. ``driver`` is the driver of the rank that waits."""
        self.complete = True
        waiter, self.waiter = self.waiter, None
        driver.notify(waiter)
