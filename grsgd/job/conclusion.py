"""End of a run: evaluation of its snapshots and final model, and writing of its run file and model files."""

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
    """End of a run: ``reason`` says why the run ended, and ``remaining`` is an mpi4py communicator of the ranks that
    remained to the end. Rank 0 of ``remaining`` has saved the run.

    ``checkpoint`` is the last complete checkpoint of the run; None if no checkpoint was taken. ``survived`` says
    whether the run could survive the death of processes. If ``survived`` is True, all living processes have reached the
    end of the run.
    """

    reason: str
    remaining: object
    checkpoint: Path | None = None
    survived: bool = False


class SavedElsewhere(RunFileError):
    """Error of a run whose run file or model file could not be written to the path which the user gave. The attribute
    ``end`` is the `RunEnd` of the run."""

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
    """Evaluate the snapshots and the final model, and write the run file and the models on the lowest remaining rank. A
    run file without accuracies is written first, because the evaluation can take long. Return an error message if the
    run file or a model file could not be written, else None."""
    out = job.rescue.out
    job.rescue.supersede()
    if remaining.rank == 0:
        try:
            save(out, assemble(records, attributes))
        except RunFileError as error:  # go on, because the run file is written again after the evaluation
            print(f"\ngrsgd: {error}", file=sys.stderr, flush=True)
    marks = marks_of(records, attributes["reason"])
    if attributes["reason"] == TERMINATED and "OMPI_COMM_WORLD_RANK" in os.environ:
        job.line.hide()  # hide the line, because Open MPI's launcher is about to end and the shell's prompt will appear
    job.line.doing(f"evaluating {len(marks)} snapshot{'s' * (len(marks) != 1)}")
    models = models if remaining.rank == 0 else ModelFiles()
    schedule = evaluate_run(job.trainer, evaluation, marks, job.line.counted, models.evaluated)
    qualities, final = job.driver.run(schedule)
    job.line.doing("saving")
    if remaining.rank == 0:
        try:
            save_with_models(out, assemble(records, attributes, qualities, final), models, job.trainer.replica.model)
        except RunFileError as error:  # only this rank reports the error, because all other ranks have done their work
            return str(error)
    return None
