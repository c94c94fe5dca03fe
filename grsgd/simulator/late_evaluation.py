"""Evaluation of snapshots (models stored during training) after the launcher has killed the job: ``python -m
grsgd.simulator.late_evaluation``.

When a rank of the job receives a signal, `grsgd.job.handover` starts this program as a separate process. This process
simulates all ranks of the run, and evaluates their snapshots without training. This process writes the same run file as
the job would have written.
"""

import os
import pickle
import select
import sys
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import numpy as np

WAIT_SECONDS = 3600.0
"""Largest number of seconds that this process waits for the end of a process of the job. The job can evaluate its
snapshots itself as long as its processes run."""


class Left(NamedTuple):
    """Number and open files of one rank of a job that has ended. ``process`` is the id of the rank's process in the
    operating system. ``snapshots`` and ``notes`` are file descriptors of the rank's snapshots and of its latest
    measurements."""

    rank: int
    process: int
    snapshots: int
    notes: int


def main(task: int, ranks: list[Left]):
    """Wait until the processes of all ``ranks`` of the job have ended. When all ranks' processes have ended, write the
    run file, unless the job has written it. ``task`` is the descriptor of an open file that describes the run as a
    pickle."""
    for rank in ranks:
        wait_for(rank.process)
    from grsgd.job.startup import importing

    with importing():
        from grsgd.job.handover import last_note

        notes = {rank.rank: last_note(rank.notes) for rank in ranks}
        notes = {rank: note for rank, note in notes.items() if note is not None and note.record.moments}
        if notes:
            # the pickle can be trusted, because a rank of the job has written it
            task = pickle.loads(os.pread(task, os.fstat(task).st_size, 0))
            write(task, notes, {rank.rank: rank.snapshots for rank in ranks})


def wait_for(process: int):
    """Wait until the process with the id ``process`` has ended, but at most `WAIT_SECONDS`."""
    try:
        handle = os.pidfd_open(process)
    except OSError:  # the process has ended
        return
    select.select([handle], [], [], WAIT_SECONDS)
    os.close(handle)


def write(task, notes: dict, snapshots: dict[int, int]):
    """Write the run file without accuracies, evaluate the snapshots, and write the run file again with accuracies.
    The function also writes the files of trained models that the user has requested."""
    from grsgd.job.rescue import path_of, save, save_with_models
    from grsgd.runs.ending import end_attributes
    from grsgd.training.record import RankMeasurements, assemble, marks_of
    from grsgd.training.saving import ModelFiles

    first = notes[min(notes)]
    ranks = task.attributes["ranks"]
    attributes = task.attributes | end_attributes(first.reason) | {"wall_seconds": first.wall_seconds}
    records = [notes[rank].record if rank in notes else RankMeasurements.of_nothing() for rank in range(ranks)]
    out = path_of(task.out, first.reason)
    if not is_wanted(out, attributes):
        return
    write_timeline(task, [note.timeline for note in notes.values() if note.timeline is not None])
    if not out.exists():
        save(task.out, assemble(records, attributes))
    models = ModelFiles(*task.models)
    qualities, model = evaluate(records, attributes, snapshots, marks_of(records, first.reason), models)
    if is_wanted(out, attributes):  # not true if a later run has written the run file during the evaluation
        save_with_models(task.out, assemble(records, attributes, qualities, qualities[-1]), models, model)


def write_timeline(task, kept: list):
    """Write the timeline's file from ``kept``, the events that the ranks of the ended job have recorded. Write nothing
    if ``kept`` is empty."""
    from grsgd.errors import RunFileError
    from grsgd.job.timeline_file import CLOCK
    from grsgd.runs.timeline import write

    if kept:
        with suppress(RunFileError):  # no program could report the error, because the job is over
            write(task.timeline, kept, CLOCK)


def is_wanted(out: Path, attributes: dict) -> bool:
    """Return True if the run file is missing, lacks accuracies, or belongs to an earlier run.

    Return False if the run file belongs to a later run, because this process must not overwrite it.
    """
    from grsgd.errors import RunFileError
    from grsgd.runs.metric import metric_in
    from grsgd.runs.run_file import load_run

    try:
        there = load_run(out).attributes
    except RunFileError:
        return out.parent.is_dir()  # if the folder is missing, a batch job may have moved the run file elsewhere
    if there["started"] != attributes["started"]:
        return there["started"] < attributes["started"]
    return bool(np.isnan(there[metric_in(there).final]))


def evaluate(records: list, attributes: dict, files: dict[int, int], marks: list[int], models):
    """Return the test results of the snapshots taken at the points ``marks`` of the run, and the last snapshot,
    averaged over the ranks. ``models`` stores the best of the averaged models.

    ``files`` has, for each rank, the file descriptor of the rank's snapshots.
    """
    import tomllib

    from grsgd import config
    from grsgd.simulator.network import network
    from grsgd.simulator.simulation import Simulation
    from grsgd.training.snapshots import Snapshots

    content = tomllib.loads(attributes["config"]) | {"device": "cpu"}
    simulation = Simulation(config.parse(content), attributes["ranks"], network(), "constant:0.01", models=models)
    simulation.run(trainer.broadcast_initial_model() for trainer in simulation.trainers)
    left = [rank for rank, record in enumerate(records) if record.moments]
    for rank in left:
        trainer, record = simulation.trainers[rank], records[rank]
        file = os.fdopen(files[rank], "rb")
        trainer.snapshots = Snapshots.kept(trainer.replica, file, record.numbers, record.weights)
    qualities = simulation.evaluation.of_snapshots(marks, left)
    return qualities, simulation.trainers[left[0]].replica.model


if __name__ == "__main__":
    main(int(sys.argv[1]), [Left(*map(int, text.split(":"))) for text in sys.argv[2:]])
