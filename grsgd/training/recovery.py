"""Base class of recovery objects, with which a run continues after the death of a process, or after a restart of the
whole job."""

from collections.abc import Callable
from pathlib import Path

import torch

from grsgd.algorithms.context import RankContext
from grsgd.algorithms.hooks import schedule_of
from grsgd.training.curve_file import CurveFile


def do_nothing(_):
    """Do nothing. This function is the default for ``go_on`` in a run that does not continue an earlier run."""


class Recovery:
    """Recovery of one rank. The rank's trainer calls the methods of this class. The base class `Recovery` recovers
    nothing, so a run with this class ends when a process dies.

    ``go_on(trainer)`` is called after the algorithm has started, before the first step. In a run that continues from a
    checkpoint, ``go_on`` sets the rank's state to the state in the checkpoint.
    """

    has_trained = True
    """Whether this process has ever trained; False if the process has joined the run only at the end of training."""
    has_share = True
    """Whether this rank's gradient is part of the mean gradient of the present step."""
    knows_the_end = True
    """Whether a parameter server knows, when all workers have stopped, that the run has ended. ``knows_the_end`` is
    False if the workers may also have stopped for a checkpoint."""
    last: Path | None = None
    """Folder of the last whole checkpoint, which has the files of all ranks; None if there is no whole checkpoint."""

    def __init__(self, go_on: Callable = do_nothing):
        self.go_on = go_on

    @property
    def position(self) -> int:
        """Number of steps that this rank has taken. If all ranks take the same steps, ``position`` is the same on all
        ranks before a step."""
        return self.trainer.totals.steps

    @property
    def samples(self) -> int:
        """Number of samples that this rank adds to the sum over all ranks, which a checkpoint records."""
        return self.trainer.totals.samples

    def context_of(self, context: RankContext) -> RankContext:
        """Return the `RankContext` with which the trainer creates the algorithm. ``context`` is the trainer's own
        `RankContext`."""
        return context

    def attach(self, trainer):
        """Store ``trainer``, the trainer whose state this object recovers. The constructor of `Trainer` calls this
        method at its end. Raises ConfigError if the state of ``trainer`` cannot be recovered."""
        self.trainer = trainer

    def take_over(self):
        """Receive the rank's state from other ranks. A process that has just taken over the rank runs this schedule
        (generator)."""
        yield from ()

    def started(self):
        """Record that the algorithm has started. The trainer calls this method before its first step."""
        self.go_on(self.trainer)

    def begun(self):
        """Record that the algorithm has started its activities in the background."""

    def watch(self):
        """Receive messages of other ranks about recovery, and react to signals. The trainer calls this method between
        steps and while this rank waits."""

    def whole(self, part: Callable):
        """Run ``part()``, a hook of the algorithm or a schedule (generator), to its end. The method `whole` is itself a
        schedule that the rank's driver (event loop) runs. Returns False if the other ranks have ended their training
        during the run of ``part()``."""
        yield from schedule_of(part)
        return True

    def collected(self):
        """Record that the replica now has this rank's gradient of the present step. Only users' own training loops call
        this method."""

    def put_back(self):
        """Restore the gradient that the replica had at the call of `collected`, if a death has interrupted the step.
        Only users' own training loops call this method."""

    def train(self):
        """Take all steps of this rank. This method is a generator (schedule) that the rank's driver (event loop)
        runs."""
        yield from self.trainer.to_the_end()

    def before_step(self, step: int):
        """Return whether all ranks must pause before step number ``step``, for example for a checkpoint. This method is
        a generator (schedule) that the rank's driver (event loop) runs."""
        yield from ()
        return False

    def gradient(self, step: int):
        """Compute the gradient of step number ``step``, and store it in the replica. This method is a generator
        (schedule) that the rank's driver (event loop) runs."""
        yield from self.trainer.computing.gradient(step)

    def guarded(self, hook: Callable) -> Callable:
        """Return the function that the trainer calls instead of ``hook``, a hook of the algorithm."""
        return hook

    def leave_steps(self):
        """Record that this rank takes no step until the next call of `at_rest`."""

    def at_rest(self, ended: bool):
        """Return whether training is over. This method is a generator (schedule) that the rank's driver (event loop)
        runs. The trainer runs this method after its steps, when all ranks pause or training ends, while no message of
        the algorithm is under way.

        ``ended`` says whether this rank has taken its last step.
        """
        yield from ()
        return True

    def average(self):
        """Make all replicas equal to the final model, after the last step. This method is a generator (schedule) that
        the rank's driver (event loop) runs."""
        yield from self.trainer.average()

    def ended(self):
        """Record that this rank has ended its training, either regularly or after an error."""

    def model(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return this rank's parameters and buffers, for an average over ranks. If this rank has ended its training,
        return the parameters and buffers after its last step."""
        return self.trainer.algorithm.snapshot()

    def go_on_from_checkpoint(
        self, folder: Path, samples: int, whole: list[tuple[str, str]], curve: CurveFile | None
    ):
        """Record the checkpoint from which the run goes on. ``folder`` is the folder of all checkpoints. ``samples`` is
        the number of samples that all ranks had processed at the checkpoint. ``whole`` has two names for each whole
        checkpoint in ``folder``: the checkpoint's folder, and the folder of its snapshots.

        ``curve`` is the file of the rank's snapshots if new snapshots can be appended to the file, else None.
        """

    def gathered(self, narrow: Callable):
        """Exchange all following messages only with the ranks of a group. ``narrow(comm)`` returns the group's
        communicator that replaces ``comm``, a communicator of all ranks."""

    def regrouped(self, narrow: Callable, giver: int):
        """Continue in a new group of ranks, after a process has died or joined. All ranks of the new group run this
        schedule (generator) at once.

        ``narrow(comm)`` returns the group's communicator that replaces ``comm``, as in `gathered`. ``giver`` is the
        number of a rank in the group that was training before the group was formed.
        """
        self.gathered(narrow)
        yield from ()

    def asks_for_checkpoint(self, reason: str) -> bool:
        """Ask all ranks to take a checkpoint, and to stop after the checkpoint for ``reason``. If ``reason`` is empty,
        the run goes on after the checkpoint. Return False if this run takes no checkpoints."""
        return False

    def warnings(self) -> list[str]:
        """Return warnings about the recovery for the run file, one sentence each."""
        return []
