"""A pollable of simulated time: a schedule is resumed when the pollable is complete, without being polled again."""

from grsgd.comm.backend import PROCESS_FAILURES


class Waitable:
    """A pollable for which one schedule can wait; the schedule is resumed when the pollable is complete."""

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
        """Raise an error at each `Test` from now on; ``driver`` is the driver of the rank that waits."""
        self.failed = True
        waiter, self.waiter = self.waiter, None
        driver.notify(waiter)

    def finish(self, driver):
        """Become complete; ``driver`` is the driver of the rank that waits."""
        self.complete = True
        waiter, self.waiter = self.waiter, None
        driver.notify(waiter)
