"""Communicators of the parts of a job, each with its own messages."""

from grsgd.comm.backend import MpiBackend
from grsgd.comm.communicator import Communicator
from grsgd.comm.elastic.membership import MembersBackend, Membership
from grsgd.comm.watchdog import within
from grsgd.job.timeline_file import TimelineFile


class Communicators:
    """Communicators of all ranks that a run makes from ``backend``.

    Each is made, and all are freed, by all ranks at once.
    """

    def __init__(self, backend: MpiBackend):
        self.backend = backend
        self.membership: Membership | None = None
        """Process of each rank, if the run goes on without processes that die."""
        self.timeline: TimelineFile | None = None
        """Recorder of the messages of training, if a timeline is asked for."""
        self.copies: list[MpiBackend] = []

    def copy(self) -> MpiBackend:
        """Return a backend with its own messages."""
        self.copies.append(self.backend.dup())
        return self.copies[-1]

    def communicator(self) -> Communicator:
        """Return a communicator of all ranks with its own messages."""
        backend = self.copy()
        return Communicator(MembersBackend(backend, self.membership) if self.membership else backend)

    def of_training(self) -> Communicator:
        """Return a communicator for the messages of the algorithm."""
        comm = self.communicator()
        return Communicator(self.timeline.recorded(comm.backend)) if self.timeline else comm

    def of_processes(self) -> Communicator:
        """Return a communicator of all processes, including spares."""
        return Communicator(self.copy())

    def free(self):
        """Free all communicators: an MPI library has some thousands for all runs of a process."""
        with within(self.backend.timeout, "freeing communicators"):
            for backend in self.copies:
                backend.free()
