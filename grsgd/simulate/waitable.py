"""What a schedule waits for in simulated time: it is resumed when that is complete, never asked again and again."""

from grsgd.comm.backend import PROCESS_FAILURES


class Waitable:
    """A pollable for which one schedule can wait; that schedule is resumed when this is complete."""

    __slots__ = ("complete", "waiter", "failed")

    def __init__(self):
        self.complete = self.failed = False
        self.waiter = None

    def Test(self) -> bool:
        """Raises RuntimeError as an MPI library does where the process of a rank has died."""
        if self.failed:
            raise RuntimeError(PROCESS_FAILURES[0])
        return self.complete

    def fail(self, driver):
        """Raise an error from now on; ``driver`` is that of the rank that waits."""
        self.failed = True
        waiter, self.waiter = self.waiter, None
        driver.notify(waiter)

    def finish(self, driver):
        """Become complete; ``driver`` is that of the rank that waits."""
        self.complete = True
        waiter, self.waiter = self.waiter, None
        driver.notify(waiter)
