"""Evaluation of the snapshots of a job that its launcher has killed: ``python -m grsgd.simulator.late_evaluation``.

`grsgd.job.handover` starts this process when the job receives a signal. All ranks of the run are simulated in this one
process, without further training. This process writes the same run file as the job would have written.
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
"""Largest number of seconds that this process waits for the end of the job. Until the job ends, the job can still
evaluate the snapshots itself."""


class Left(NamedTuple):
    """Data that a rank of an ended job has left. ``process`` is the operating system's number of the rank's process.
    ``snapshots`` and ``notes`` are descriptors of open files, with the rank's snapshots and with its latest
    measurements."""

    rank: int
    process: int
    snapshots: int
    notes: int


def main(task: int, ranks: list[Left]):
    """Wait until the processes of all ``ranks`` have ended. Then write the run file, unless the ranks have written this
    file. ``task`` is the descriptor of an open file that describes the run."""
    for rank in ranks:
        wait_for(rank.process)
    from grsgd.job.startup import importing

    with importing():
        from grsgd.job.handover import last_note

        notes = {rank.rank: last_note(rank.notes) for rank in ranks}
        notes = {rank: note for rank, note in notes.items() if note is not None and note.record.moments}
        if notes:
            # the pickle of the task is trusted, because a rank of the job has written the pickle
            task = pickle.loads(os.pread(task, os.fstat(task).st_size, 0))
            write(task, notes, {rank.rank: rank.snapshots for rank in ranks})


def wait_for(process: int):
    """Wait until process number ``process`` has ended, but at most `WAIT_SECONDS`."""
    try:
        handle = os.pidfd_open(process)
    except OSError:  # the process has ended
        return
    select.select([handle], [], [], WAIT_SECONDS)
    os.close(handle)


def write(task, notes: dict, snapshots: dict[int, int]):
    """Write the run file without accuracies, evaluate the snapshots, and write the run file with accuracies. Write the
    files of models that the user requested, too."""
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
    if is_wanted(out, attributes):  # false if a later run has written the run file meanwhile
        save_with_models(task.out, assemble(records, attributes, qualities, qualities[-1]), models, model)


def write_timeline(task, kept: list):
    """Write the timeline's file from ``kept``, the events that each rank has recorded. Write nothing if no rank has
    left events."""
    from grsgd.errors import RunFileError
    from grsgd.job.timeline_file import CLOCK
    from grsgd.runs.timeline import write

    if kept:
        with suppress(RunFileError):  # the job is over, so no program could report the error
            write(task.timeline, kept, CLOCK)


def is_wanted(out: Path, attributes: dict) -> bool:
    """Return whether the run file is missing, lacks accuracies, or belongs to an earlier run.

    Return False if the run file belongs to a later run, so that the caller does not overwrite the later run's file.
    """
    from grsgd.errors import RunFileError
    from grsgd.runs.metric import metric_in
    from grsgd.runs.run_file import load_run

    try:
        there = load_run(out).attributes
    except RunFileError:
        return out.parent.is_dir()  # a batch job may have moved the folder of the run file
    if there["started"] != attributes["started"]:
        return there["started"] < attributes["started"]
    return bool(np.isnan(there[metric_in(there).final]))


def evaluate(records: list, attributes: dict, files: dict[int, int], marks: list[int], models):
    """Return the qualities (results of tests) of the snapshots at ``marks``, and the last model
    averaged over the ranks. Call ``models`` for each averaged model.

    ``files`` has for each rank the descriptor of the file with its snapshots.
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
