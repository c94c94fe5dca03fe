"""Handover of a rank's model snapshots and measurements to the evaluating process, which writes the run file if the
launcher kills the job."""

import os
import pickle
import subprocess
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from grsgd.mpi_environment import module, without_launcher
from grsgd.runs.timeline import FinishedTimeline
from grsgd.training.record import RankMeasurements

PROGRAM = "grsgd.simulator.late_evaluation"
"""Name of the module that the evaluating process runs. Only the evaluating process imports the module
`PROGRAM`; the ranks do not."""
LENGTH_BYTES = 8
"""Number of bytes that encode the length of a note (the measurements of a rank). The length of a note is written before
the note itself."""


class HandoverTask(NamedTuple):
    """Task of the evaluating process, which writes the run file of a job, with accuracies, unless the job itself has
    written the run file."""

    out: Path
    attributes: dict
    """Attributes of the run file, except the attributes about the end of the run."""
    models: tuple[Path | None, Path | None]
    """Paths of the files in which the final model and the best model are saved; None for a model that is not saved."""
    timeline: Path | None = None
    """Path of the timeline file, if the user has asked for a timeline; else None."""


class Note(NamedTuple):
    """Measurements of a rank at the time at which the rank learns that the run ends early."""

    reason: str
    wall_seconds: float
    record: RankMeasurements
    timeline: FinishedTimeline | None = None


class Files(NamedTuple):
    """File descriptors, in a rank's process, of the model snapshots and the notes (measurements) that the rank hands
    over."""

    snapshots: int
    notes: int


class Handover:
    """Handover of one rank's model snapshots and measurements to the evaluating process. A handover needs features of
    Linux, and does nothing on other systems.

    ``snapshots`` is the file descriptor of this rank's snapshots. In the method `exchange`, which all ranks call
    together, the rank receives the file descriptors of the other ranks.
    """

    def __init__(self, snapshots: int, task: HandoverTask):
        self._task = pickle.dumps(task)  # pickle the task here, because little time is left after a signal
        self._notes = os.memfd_create("grsgd-notes") if hasattr(os, "memfd_create") else -1
        self._files, self._processes = [Files(snapshots, self._notes)], []

    def exchange(self, mpi, processes: list[tuple[str, int]]):
        """Tell each rank the file descriptors of all ranks; to be called on all ranks. ``processes`` is the result of
        `grsgd.job.places.processes`, the host and PID of each rank."""
        self._files, self._processes = mpi.allgather(self._files[0]), processes

    def _left(self, gone: Collection[int]) -> list[int]:
        return [rank for rank in range(len(self._files)) if rank not in gone]

    def note(
        self, reason: str, wall_seconds: float, record: RankMeasurements, timeline: FinishedTimeline | None = None
    ):
        """Write this rank's measurements so far to its file of notes. The evaluating process reads the last complete
        note of each file."""
        content = pickle.dumps(Note(reason, wall_seconds, record, timeline))
        with suppress(OSError):
            os.write(self._notes, len(content).to_bytes(LENGTH_BYTES) + content)

    def close(self):
        """Close this rank's file of notes, because the job itself has written the run file."""
        if self._notes >= 0:
            os.close(self._notes)
            self._notes = -1

    def is_possible(self, rank: int, gone: Collection[int] = ()) -> bool:
        """Return whether a handover is possible. All ranks except ``gone`` must be on the host of this rank (number
        ``rank``), and this host must support files in memory."""
        hosts = {self._processes[other][0] for other in self._left(gone)}
        return self._notes >= 0 and hosts == {self._processes[rank][0]}

    def start(self, rank: int, gone: Collection[int] = ()) -> bool:
        """Start the evaluating process, which waits until all ranks except ``gone`` have ended; to be called on one
        rank. Return whether the evaluating process could be started.
        """
        if not self.is_possible(rank, gone):
            return False
        left, opened = self._left(gone), []
        try:
            task = os.memfd_create("grsgd-task")
            opened.append(task)
            os.write(task, self._task)
            arguments = [str(task)]
            for other in left:
                pid = self._processes[other][1]
                opened += [os.open(f"/proc/{pid}/fd/{file}", os.O_RDONLY) for file in self._files[other]]
                arguments.append(f"{other}:{pid}:{opened[-2]}:{opened[-1]}")
            subprocess.Popen(
                [*module(PROGRAM), *arguments],
                env=without_launcher(os.environ),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
                pass_fds=opened,
            )
            return True
        except (OSError, AttributeError):
            return False
        finally:
            for file in opened:
                os.close(file)


def last_note(file: int) -> Note | None:
    """Return the last complete note (measurements of a rank) in ``file``; None if the file has no complete note."""
    content, begin, last = os.pread(file, os.fstat(file).st_size, 0), 0, None
    while begin + LENGTH_BYTES <= len(content):
        length = int.from_bytes(content[begin : begin + LENGTH_BYTES])
        begin += LENGTH_BYTES + length
        if begin <= len(content):
            last = content[begin - length : begin]
    # pickle is safe, because a rank of this job has written the note
    return None if last is None else pickle.loads(last)
