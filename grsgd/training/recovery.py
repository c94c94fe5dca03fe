"""Part of recovery in training, by which a run outlives the end of a process, or of the whole job."""

from collections.abc import Callable
from pathlib import Path

import torch

from grsgd.algorithms.context import RankContext
from grsgd.training.curve_file import CurveFile


def do_nothing(_):
    """Do nothing, for a run that does not go on from another run."""


class Recovery:
    """Recovery of a rank's trainer; this base class does nothing, for runs that end when the first process dies.

    ``go_on`` is called with the trainer after the algorithm has started, before the first step. In a run from a
    checkpoint, it sets the rank's state to the state in the checkpoint.
    """

    has_trained = True
    """Whether this process has ever trained: a process that has joined a run may find it at its end."""
    has_share = True
    """Whether this rank's gradient has a share in the mean of the step under way."""
    knows_the_end = True
    """Whether a rank that serves, and does not train, knows that the run has ended when the workers stop."""
    last: Path | None = None
    """The last checkpoint that all ranks have written."""

    def __init__(self, go_on: Callable = do_nothing):
        self.go_on = go_on

    def context_of(self, context: RankContext) -> RankContext:
        """Return the context in which the algorithm is made."""
        return context

    def attach(self, trainer):
        """Take part in the training of ``trainer``, which is complete; raises ConfigError."""
        self.trainer = trainer

    def take_over(self):
        """Schedule, called on a process that has just taken over a rank, that gets the state of the rank from other
        ranks."""
        yield from ()

    def started(self):
        """Record that the algorithm has started; the first step follows."""
        self.go_on(self.trainer)

    def begun(self):
        """Record that the algorithm has begun its activities in the background."""

    def watch(self):
        """Look for messages of other ranks and for signals; also called while this rank waits."""

    def train(self):
        """Schedule that takes all steps of this rank."""
        yield from self.trainer.to_the_end()

    def before_step(self, step: int):
        """Schedule, called before step number ``step``, that returns whether all ranks are to rest in place of the
        step."""
        yield from ()
        return False

    def gradient(self, step: int):
        """Schedule that leaves the gradient of a step in the replica."""
        yield from self.trainer.computing.gradient(step)

    def guarded(self, hook: Callable) -> Callable:
        """Return the hook to call in place of ``hook``, a hook of the algorithm."""
        return hook

    def leave_steps(self):
        """Record that this rank takes no step before `at_rest`."""

    def at_rest(self, ended: bool):
        """Schedule, called while no message of the algorithm is under way, that returns whether training is over.

        ``ended`` says whether this rank has ended its training.
        """
        yield from ()
        return True

    def average(self):
        """Schedule, called after the last step, that makes all replicas equal to the final model."""
        yield from self.trainer.average()

    def ended(self):
        """Record that this rank has ended its training, also after an error."""

    def model(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the parameters and buffers of this rank; after training the final ones."""
        return self.trainer.algorithm.snapshot()

    def go_on_from_checkpoint(self, folder: Path, samples: int, names: tuple[str, str], curve: CurveFile | None):
        """Record the checkpoint from which the run goes on: its ``folder`` of checkpoints, the samples of all ranks in
        it, and the ``names`` of its own folder and of its curve's.

        ``curve`` is the checkpoint's curve, if new snapshots can be appended to it.
        """

    def asks_for_checkpoint(self, reason: str) -> bool:
        """Ask all ranks to take a checkpoint and then to stop, for ``reason``; return False if no checkpoints are
        taken."""
        return False

    def warnings(self) -> list[str]:
        """Return warnings about the recovery for the run file, one sentence each."""
        return []
