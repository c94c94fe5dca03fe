"""Evaluates the snapshots of a job that its launcher has killed: ``python -m grsgd.simulator.late_evaluation``.

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
"""Largest number of seconds that this process waits for the end of the job. Until its end the job can evaluate the
snapshots itself."""


class Left(NamedTuple):
    """Data that a rank of an ended job has left: the number of the rank's process, and the descriptors of two open
    files. One file has the rank's snapshots, the other its notes."""

    rank: int
    process: int
    snapshots: int
    notes: int


def main(task: int, ranks: list[Left]):
    """Wait for the end of the ranks, then write the run file, unless the ranks have written it."""
    for rank in ranks:
        wait_for(rank.process)
    from grsgd.job.startup import importing

    with importing():
        from grsgd.job.handover import last_note

        notes = {rank.rank: last_note(rank.notes) for rank in ranks}
        notes = {rank: note for rank, note in notes.items() if note is not None and note.record.moments}
        if notes:
            # the pickle is trusted, because a rank of the job has written it
            task = pickle.loads(os.pread(task, os.fstat(task).st_size, 0))
            write(task, notes, {rank.rank: rank.snapshots for rank in ranks})


def wait_for(process: int):
    """Wait until a process has ended, or for `WAIT_SECONDS`."""
    try:
        handle = os.pidfd_open(process)
    except OSError:  # the process has ended
        return
    select.select([handle], [], [], WAIT_SECONDS)
    os.close(handle)


def write(task, notes: dict, snapshots: dict[int, int]):
    """Write the run file, first without accuracies and then with them, and the requested files of models."""
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
    if is_wanted(out, attributes):  # false if a later run has written the file meanwhile
        save_with_models(task.out, assemble(records, attributes, qualities, qualities[-1]), models, model)


def write_timeline(task, kept: list):
    """Write the timeline, if it was requested and any rank has left its part."""
    from grsgd.errors import RunFileError
    from grsgd.job.timeline_file import CLOCK
    from grsgd.runs.timeline import write

    if kept:
        with suppress(RunFileError):  # the job is over, so no program could report the error
            write(task.timeline, kept, CLOCK)


def is_wanted(out: Path, attributes: dict) -> bool:
    """Return whether the run file is missing, lacks accuracies, or belongs to an earlier run.

    The file of a later run is not overwritten.
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
    """Return the qualities of the snapshots at ``marks``, and the last averaged model. Call ``models`` for each
    averaged model.

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
