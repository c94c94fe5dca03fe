"""Evaluation of the models that simulated ranks have stored as snapshots during training. The messages of the
evaluation have a simulated clock of their own. While a snapshot is evaluated, the simulated clock of the training does
not advance."""

from collections.abc import Callable
from functools import cached_property

import simpy

from grsgd.simulator.driver import SimulatedDriver, run_all
from grsgd.simulator.fabric import MessageFabric
from grsgd.simulator.flows import Network
from grsgd.simulator.network import NetworkSpec
from grsgd.training.evaluation import Quality
from grsgd.training.run_evaluation import evaluate, evaluate_snapshots
from grsgd.training.saving import ModelFiles
from grsgd.training.snapshots import common_marks
from grsgd.training.trainer import Trainer, ignore


class SnapshotEvaluation:
    """Evaluation of the snapshots (models stored during training) of ``trainers``, one trainer per rank. ``models``
    stores the best of the evaluated models, and later writes this model to a file."""

    def __init__(self, trainers: list[Trainer], models: ModelFiles):
        self.trainers, self.models = trainers, models
        self.env = simpy.Environment()
        self.qualities: list[Quality] = []
        """Test results (losses and accuracies) of the snapshots that `of_new_snapshots` has evaluated so far."""
        self.marks_seen = 0
        """Number of marks (points of the run at which snapshots are due) that all ranks had passed at the last call of
        `of_new_snapshots`."""

    @cached_property
    def fabric(self) -> MessageFabric:
        """`MessageFabric` that carries the messages of evaluations between the ranks. The `MessageFabric` for
        evaluations is created when an evaluation first needs it."""
        ranks = range(len(self.trainers))
        network = Network(self.env, NetworkSpec(bandwidth="inf bit", latency="0 s"), len(ranks))
        return MessageFabric(network, [SimulatedDriver(self.env, rank) for rank in ranks])

    def of_new_snapshots(self) -> list[Quality]:
        """Return the test results of the snapshots that all ranks have taken since the previous call of this method.

        This method can be called during training, because it restores the ranks' models after the evaluation.
        """
        marks_seen = min(len(trainer.snapshots) for trainer in self.trainers)
        if marks_seen == self.marks_seen:
            return []
        self.marks_seen = marks_seen
        ranks = list(range(len(self.trainers)))
        flats = [flat for trainer in self.trainers for flat in (trainer.replica.params, trainer.replica.buffers)]
        present = [flat.tensor.clone() for flat in flats]
        new = self.of_snapshots(self.marks(ranks)[len(self.qualities) :], ranks)
        for flat, tensor in zip(flats, present, strict=True):
            flat.tensor.copy_(tensor)
        self.qualities += new
        return new

    def marks(self, ranks: list[int]) -> list[int]:
        """Return the marks (points of the run at which snapshots are due) at which every rank of ``ranks`` has a
        snapshot."""
        return common_marks([self.trainers[rank].snapshots.numbers for rank in ranks])

    def of_snapshots(self, marks: list[int], ranks: list[int]) -> list[Quality]:
        """Return the test results of the snapshots that ``ranks`` took at the points ``marks`` of the run. After the
        evaluation, each rank's replica of the model holds the last snapshot, averaged over the ranks."""
        return self._run(evaluate_snapshots, marks, ranks, ignore)

    def to_the_end(
        self, marks: list[int], ranks: list[int], on_each: Callable[[int], None]
    ) -> tuple[list[Quality], Quality]:
        """Return the test results of the snapshots taken at the points ``marks`` of the run, and the test result of the
        final model. After the evaluation, each rank's replica of the model holds the final model."""
        return self._run(evaluate, marks, ranks, on_each)

    def _run(self, schedule, marks: list[int], ranks: list[int], on_each):
        told = {ranks[0]: (on_each, self.models.evaluated)}
        comms = self.fabric.communicators()
        schedules = [
            schedule(self.trainers[rank], comms[rank].subset(ranks), marks, *told.get(rank, ())) for rank in ranks
        ]
        return run_all(self.env, [self.fabric.drivers[rank] for rank in ranks], schedules)[0]
