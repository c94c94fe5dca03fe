"""The communicators that the parts of a job have, each with messages of its own."""

from grsgd.comm.backend import MpiBackend
from grsgd.comm.communicator import Communicator
from grsgd.comm.elastic.membership import MembersBackend, Membership
from grsgd.comm.watchdog import within
from grsgd.job.timeline_file import TimelineFile


class Communicators:
    """The communicators of all ranks that a run makes out of ``backend``.

    Each is made, and all are freed, by all ranks at once.
    """

    def __init__(self, backend: MpiBackend):
        self.backend = backend
        self.membership: Membership | None = None
        """Which process holds which rank, where the run goes on without those that die."""
        self.timeline: TimelineFile | None = None
        """Records the messages of the training, if it is asked for."""
        self.copies: list[MpiBackend] = []

    def copy(self) -> MpiBackend:
        """Return a backend with messages of its own."""
        self.copies.append(self.backend.dup())
        return self.copies[-1]

    def communicator(self) -> Communicator:
        """Return a communicator of all ranks with messages of its own."""
        backend = self.copy()
        return Communicator(MembersBackend(backend, self.membership) if self.membership else backend)

    def of_training(self) -> Communicator:
        """Return one for the messages of the algorithm."""
        comm = self.communicator()
        return Communicator(self.timeline.recorded(comm.backend)) if self.timeline else comm

    def of_processes(self) -> Communicator:
        """Return one of all processes, spares among them."""
        return Communicator(self.copy())

    def free(self):
        """Free all: an MPI library has some thousands for all runs of a process."""
        with within(self.backend.timeout, "freeing communicators"):
            for backend in self.copies:
                backend.free()
