"""Base class of pollables (objects for which a schedule can wait) that belong to simulated time. When a pollable
becomes complete, it resumes the schedule that waits for it, so that no schedule has to poll."""

from grsgd.comm.backend import PROCESS_FAILURES


class Waitable:
    """A pollable (object for which a schedule can wait) in simulated time. When the pollable becomes complete, it
    resumes the one schedule that waits for it."""

    __slots__ = ("complete", "waiter", "failed")

    def __init__(self):
        self.complete = self.failed = False
        self.waiter = None

    def Test(self) -> bool:
        """Return True if the pollable is complete. Raise RuntimeError, as MPI libraries do, if a process on which the
        pollable depends has died."""
        if self.failed:
            raise RuntimeError(PROCESS_FAILURES[0])
        return self.complete

    def fail(self, driver):
        """Let all later calls of `Test` raise an error, and resume the schedule that waits for this pollable.
        ``driver`` is the driver of the rank on which the schedule waits."""
        self.failed = True
        waiter, self.waiter = self.waiter, None
        driver.notify(waiter)

    def finish(self, driver):
        """Set ``complete`` to True, and resume the schedule that waits for this pollable. ``driver`` is the driver of
        the rank on which the schedule waits."""
        self.complete = True
        waiter, self.waiter = self.waiter, None
        driver.notify(waiter)
