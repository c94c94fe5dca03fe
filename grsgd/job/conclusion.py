"""How a run ends: its last evaluation, the files it leaves, and what is said of it."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import NamedTuple

from grsgd.comm.communicator import Communicator
from grsgd.errors import RunFileError
from grsgd.job.prepared import Prepared
from grsgd.job.rescue import save, save_with_models
from grsgd.runs.ending import TERMINATED
from grsgd.training.record import RankMeasurements, assemble, marks_of
from grsgd.training.run_evaluation import evaluate as evaluate_run
from grsgd.training.saving import ModelFiles


class RunEnd(NamedTuple):
    """Why a run ended, and the ranks that remained to its end, an mpi4py communicator; the lowest has saved it.

    checkpoint: the last one that is complete, if checkpoints were taken. survived: whether ranks could die; then all
    processes that live have come to the end.
    """

    reason: str
    remaining: object
    checkpoint: Path | None = None
    survived: bool = False


class SavedElsewhere(RunFileError):
    """The run, or a model of it, could not be written where it should be; else it has ended as ``end`` says."""

    def __init__(self, problem: str, end: RunEnd):
        super().__init__(problem)
        self.end = end


def evaluate(
    job: Prepared,
    records: list[RankMeasurements],
    attributes: dict,
    remaining,
    evaluation: Communicator,
    models: ModelFiles,
) -> str | None:
    """Write the run file on the lowest rank, without accuracies first: they may take long. It saves the models, too.
    Returns what could not be written where it should be."""
    out = job.rescue.out
    job.rescue.supersede()
    if remaining.rank == 0:
        try:
            save(out, assemble(records, attributes))
        except RunFileError as error:  # there is another attempt
            print(f"\ngrsgd: {error}", file=sys.stderr, flush=True)
    marks = marks_of(records, attributes["reason"])
    if attributes["reason"] == TERMINATED and "OMPI_COMM_WORLD_RANK" in os.environ:
        job.line.hide()  # Open MPI's launcher ends in a moment: a prompt will stand there
    job.line.doing(f"evaluating {len(marks)} snapshot{'s' * (len(marks) != 1)}")
    models = models if remaining.rank == 0 else ModelFiles()
    schedule = evaluate_run(job.trainer, evaluation, marks, job.line.counted, models.evaluated)
    qualities, final = job.driver.run(schedule)
    job.line.doing("saving")
    if remaining.rank == 0:
        try:
            save_with_models(out, assemble(records, attributes, qualities, final), models, job.trainer.replica.model)
        except RunFileError as error:  # the others need not know: all ranks have done what is to be done together
            return str(error)
    return None
