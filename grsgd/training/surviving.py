"""Recovery of a run that goes on without the processes that die."""

import threading
from collections.abc import Callable

import torch

from grsgd.comm.elastic.membership import Membership
from grsgd.training.recovery import Recovery


class Surviving(Recovery):
    """The part that both kinds of survival share: a model that others may ask for at any time, also in the end.

    ``membership``: which process holds which rank.
    """

    tells_all_of_its_end = False
    """Whether a process that has ended its training tells all others, and not only those that ask."""

    def __init__(self, membership: Membership):
        super().__init__()
        self.membership = membership
        self.changing = threading.Lock()
        """Held while the thread that trains changes the model, and not while it waits."""
        self.longest_wait = 0.0
        """Seconds of the longest wait for others in a step."""
        self.last_wait = 0.0
        """Seconds of the wait for others in the last hook."""
        self._final: tuple[torch.Tensor, torch.Tensor] | None = None
        """After training: the model, before all are averaged."""

    def guarded(self, hook: Callable) -> Callable:
        def schedule():
            driver = self.trainer.driver
            waited = driver.wait_seconds
            try:
                yield from locked(hook, self.changing)
            finally:
                self.last_wait = driver.wait_seconds - waited
                self.longest_wait = max(self.longest_wait, self.last_wait)

        return schedule

    def average(self):
        """Schedule: average nothing, for processes may die meanwhile; `grsgd.job.survivors` does."""
        yield from ()

    def ended(self):
        self._final = tuple(tensor.clone() for tensor in self.trainer.algorithm.snapshot())
        self.membership.finish(to_all=self.tells_all_of_its_end)

    def model(self) -> tuple[torch.Tensor, torch.Tensor]:
        return self._final if self._final is not None else super().model()


def locked(hook: Callable, lock: threading.Lock):
    """Schedule: a hook, with ``lock`` held while it does something, and not while it waits."""
    with lock:
        schedule = hook()
    error = None
    while schedule is not None:
        try:
            with lock:
                pending = next(schedule) if error is None else schedule.throw(error)
        except StopIteration:
            return
        error = None
        try:
            yield pending
        except Exception as caught:  # fails where the hook waits, so that it can clean up
            error = caught
