"""Communicators of a job, one for each purpose (training, evaluation, checkpoints), so that messages of different
purposes never mix."""

from grsgd.comm.backend import MpiBackend
from grsgd.comm.communicator import Communicator
from grsgd.comm.elastic.membership import MembersBackend, Membership
from grsgd.comm.watchdog import within
from grsgd.job.timeline_file import TimelineFile


class Communicators:
    """Communicators of all ranks, which a run creates by copying ``backend``.

    All ranks must create each communicator together, and must call `free` together.
    """

    def __init__(self, backend: MpiBackend):
        self.backend = backend
        self.membership: Membership | None = None
        """Record of the process that holds each rank, if the run can go on after the death of a process; else None."""
        self.timeline: TimelineFile | None = None
        """Timeline in which the messages of training are recorded, if the user has asked for a timeline; else None."""
        self.copies: list[MpiBackend] = []

    def copy(self) -> MpiBackend:
        """Return a copy of the MPI backend, whose messages do not mix with the messages of other copies."""
        self.copies.append(self.backend.dup())
        return self.copies[-1]

    def communicator(self) -> Communicator:
        """Return a communicator of all ranks, whose messages do not mix with the messages of other communicators."""
        backend = self.copy()
        return Communicator(MembersBackend(backend, self.membership) if self.membership else backend)

    def of_training(self) -> Communicator:
        """Return a communicator of all ranks for the algorithm's messages, which are recorded if the run has a
        timeline."""
        comm = self.communicator()
        return Communicator(self.timeline.recorded(comm.backend)) if self.timeline else comm

    def of_processes(self) -> Communicator:
        """Return a communicator of all processes, including spares."""
        return Communicator(self.copy())

    def free(self):
        """Free all communicators. The communicators are freed because an MPI library has only some thousands of
        communicators, and one process can make many runs."""
        with within(self.backend.timeout, "freeing communicators"):
            for backend in self.copies:
                backend.free()
