"""Base class of recovery objects for runs that go on when processes die."""

import threading
from collections.abc import Callable
from pathlib import Path

import torch

from grsgd.comm.elastic.membership import Membership
from grsgd.training.curve_file import CurveFile
from grsgd.training.recovery import Recovery


class Surviving(Recovery):
    """Base class of the recovery objects `Regrouping` and `Succession`. Other processes can request this rank's model
    at any time, even after training.

    ``membership`` has the process of each rank. The object ``checkpoints`` takes the checkpoints of the run; by default
    no checkpoints are taken.
    """

    tells_all_of_its_end = False
    """Whether a process that has ended its training sends a message about its end to all other processes. If
    ``tells_all_of_its_end`` is False, only processes that ask are told that this process has ended its training."""

    def __init__(self, membership: Membership, checkpoints: Recovery | None = None):
        super().__init__()
        self.membership, self.checkpoints = membership, checkpoints or Recovery()
        self.changing = threading.Lock()
        """Lock that the training thread holds while it may change the model. The training thread releases the lock
        while it waits for messages."""
        self.longest_wait = 0.0
        """Longest time in seconds that this rank has waited for other ranks in a step."""
        self.last_wait = 0.0
        """Time in seconds that this rank has waited for other ranks in the last hook of the algorithm."""
        self._final: tuple[torch.Tensor, torch.Tensor] | None = None
        """Parameters and buffers of this rank after training, before the ranks' models are averaged; None during
        training."""

    def attach(self, trainer):
        super().attach(trainer)
        self.checkpoints.attach(trainer)

    @property
    def position(self) -> int:
        return self.trainer.progress.batches

    @property
    def samples(self) -> int:
        """`Trainer.reached`, the number of samples of all ranks, on the lowest rank of the algorithm's communicator; 0
        on other ranks. The ranks do not add up their own samples, because a dead process cannot send its number."""
        return self.trainer.reached if self.trainer.algorithm.comm.rank == 0 else 0

    @property
    def last(self):
        return self.checkpoints.last

    @property
    def knows_the_end(self) -> bool:
        return self.checkpoints.knows_the_end

    def started(self):
        self.checkpoints.started()

    def watch(self):
        self.checkpoints.watch()

    def before_step(self, step: int):
        return (yield from self.checkpoints.before_step(self.position))

    def leave_steps(self):
        self.checkpoints.leave_steps()

    def at_rest(self, ended: bool):
        return (yield from self.checkpoints.at_rest(ended))

    def go_on_from_checkpoint(
        self, folder: Path, samples: int, whole: list[tuple[str, str]], curve: CurveFile | None
    ):
        self.checkpoints.go_on_from_checkpoint(folder, samples, whole, curve)

    def asks_for_checkpoint(self, reason: str) -> bool:
        return self.checkpoints.asks_for_checkpoint(reason)

    def warnings(self) -> list[str]:
        return self.checkpoints.warnings()

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
        """Do nothing. `grsgd.job.survivors` averages the models after training, because processes can die during the
        averaging. This schedule (generator) yields nothing."""
        yield from ()

    def ended(self):
        self._final = tuple(tensor.clone() for tensor in self.trainer.algorithm.snapshot())
        self.membership.finish(to_all=self.tells_all_of_its_end)

    def model(self) -> tuple[torch.Tensor, torch.Tensor]:
        return self._final if self._final is not None else super().model()


def locked(hook: Callable, lock: threading.Lock):
    """Run ``hook``, and hold ``lock`` while the hook computes, but not while the hook waits. This function is a
    generator (schedule) that the rank's driver (event loop) runs."""
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
        except Exception as caught:  # the error is raised again inside the hook, so that it can clean up
            error = caught
