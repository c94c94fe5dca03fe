"""Base class of recovery. Recovery lets a run go on after the death of a process, or after the end of the whole job."""

from collections.abc import Callable
from pathlib import Path

import torch

from grsgd.algorithms.context import RankContext
from grsgd.algorithms.hooks import schedule_of
from grsgd.training.curve_file import CurveFile


def do_nothing(_):
    """Do nothing, for a run that does not go on from another run."""


class Recovery:
    """Recovery of one rank, whose methods its trainer calls. This base class recovers nothing; runs that use it end
    when a process dies.

    ``go_on`` is called with the trainer after the algorithm has started, before the first step. In a run from a
    checkpoint, it sets the rank's state to the state in the checkpoint.
    """

    has_trained = True
    """Whether this process has ever trained; a process that joins a run at its end has not."""
    has_share = True
    """Whether this rank's gradient is part of the mean gradient of the present step."""
    knows_the_end = True
    """Whether a rank that serves, and does not train, can conclude from the workers' stop that the run has ended."""
    last: Path | None = None
    """The last checkpoint that all ranks have written."""

    def __init__(self, go_on: Callable = do_nothing):
        self.go_on = go_on

    @property
    def position(self) -> int:
        """Number of steps before this rank's next step; the same on all ranks before a step in lockstep."""
        return self.trainer.totals.steps

    @property
    def samples(self) -> int:
        """Part of this rank in the number of samples of all ranks, which is the sum of all ranks' parts."""
        return self.trainer.totals.samples

    def context_of(self, context: RankContext) -> RankContext:
        """Return the context with which the algorithm is created. It replaces ``context``, the context of the
        trainer."""
        return context

    def attach(self, trainer):
        """Use ``trainer`` from now on; the trainer's constructor calls this method at its end. Raises ConfigError if
        ``trainer`` cannot be recovered."""
        self.trainer = trainer

    def take_over(self):
        """Get the state of the rank from other ranks, on a process that has just taken over the rank. This method is a
        schedule (a generator that yields the objects it waits for)."""
        yield from ()

    def started(self):
        """Record that the algorithm has started; the first step follows."""
        self.go_on(self.trainer)

    def begun(self):
        """Note that the algorithm has begun its activities in the background."""

    def watch(self):
        """Look for messages of other ranks and for signals. The trainer calls this method between steps and while this
        rank waits."""

    def whole(self, part: Callable):
        """Schedule that runs ``part()``, a hook or schedule, to its end; returns False if the others have ended their
        training meanwhile."""
        yield from schedule_of(part)
        return True

    def collected(self):
        """Record, in a user's own loop, that the replica has this rank's gradient of the step."""

    def put_back(self):
        """Give the replica the gradient that it had at the call of `collected`, if a death has interrupted the step.
        Only for a user's own loop."""

    def train(self):
        """Take all steps of this rank; a schedule."""
        yield from self.trainer.to_the_end()

    def before_step(self, step: int):
        """Return whether all ranks are to rest before step number ``step``; a schedule."""
        yield from ()
        return False

    def gradient(self, step: int):
        """Leave the gradient of step number ``step`` in the replica; a schedule."""
        yield from self.trainer.computing.gradient(step)

    def guarded(self, hook: Callable) -> Callable:
        """Return the hook that the trainer calls in place of ``hook``, a hook of the algorithm."""
        return hook

    def leave_steps(self):
        """Note that this rank takes no step before the next call of `at_rest`."""

    def at_rest(self, ended: bool):
        """Return whether training is over; a schedule, run while no message of the algorithm is under way.

        ``ended`` says whether this rank has taken its last step.
        """
        yield from ()
        return True

    def average(self):
        """Make all replicas equal to the final model, after the last step; a schedule."""
        yield from self.trainer.average()

    def ended(self):
        """Note that this rank has ended its training, regularly or after an error."""

    def model(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return this rank's parameters and buffers for averages over ranks. After training, return the values after
        this rank's last step."""
        return self.trainer.algorithm.snapshot()

    def go_on_from_checkpoint(
        self, folder: Path, samples: int, whole: list[tuple[str, str]], curve: CurveFile | None
    ):
        """Note the checkpoint from which the run goes on. ``folder`` is the folder of all checkpoints. ``samples`` is
        the number of samples of all ranks at the checkpoint. ``whole`` has two names for each whole checkpoint in
        ``folder`` that stays: its own folder, and the folder of its curve.

        ``curve`` is the checkpoint's curve if new snapshots can be appended to it, else None.
        """

    def gathered(self, narrow: Callable):
        """Exchange further messages in a group of ranks alone. ``narrow(comm)`` returns the communicator of the group
        that replaces ``comm``, a communicator of all ranks."""

    def regrouped(self, narrow: Callable, giver: int):
        """Go on in a new group of ranks, after a process has died or joined; a schedule, run on all ranks of the group.

        ``narrow`` is the argument of `gathered`. Rank ``giver`` of the group has trained before.
        """
        self.gathered(narrow)
        yield from ()

    def asks_for_checkpoint(self, reason: str) -> bool:
        """Ask all ranks to take a checkpoint and then to stop, for ``reason``. If ``reason`` is empty, the run goes on
        after the checkpoint. Return False if no checkpoints are taken."""
        return False

    def warnings(self) -> list[str]:
        """Return warnings about the recovery for the run file, one sentence each."""
        return []
