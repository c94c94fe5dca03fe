"""Conversation of rank 0 with all other ranks: rank 0 asks for facts and measurements, and the others answer."""

from collections.abc import Sequence
from typing import NamedTuple

from grsgd.comm.communicator import LostRank
from grsgd.comm.driver import MpiDriver, WaitTimeout
from grsgd.doctor import clocks, gpus, links
from grsgd.doctor.clocks import ClockOffset
from grsgd.doctor.links import MeasuredPair, PairRequest
from grsgd.doctor.post import Post

MAX_CLOCKS = 32
"""Largest number of hosts whose clocks are compared with the clock of rank 0."""
CLOCK_SECONDS = 3.0
"""Seconds in which a rank must tell its time."""


class TellTime(NamedTuple):
    """Request to tell the time of a host's clock."""


class TryGpu(NamedTuple):
    """Request to try the ways of sending GPU memory, on the GPU of the rank's number ``local_rank`` on its host."""

    local_rank: int
    library_seconds: float
    """Seconds that the trial of the MPI library may take."""


class Conversation:
    """One rank's side of the conversation.

    Parameters
    ----------
    comm
        A `grsgd.comm.communicator.Communicator` of all ranks.
    left
        Function that returns the seconds until the examination must end.
    """

    def __init__(self, comm, left):
        self.comm, self.left, self.post = comm, left, Post(comm)
        self.driver = MpiDriver(comm.rank, links.PAIR_SECONDS, "inline")

    # ---- ranks that answer

    def answer(self, facts):
        """Tell rank 0 the ``facts`` of this rank, and do all that rank 0 asks for, until the end. Raises SilentRank if
        rank 0 does not ask in time."""
        self.post.send(facts, 0)
        while (request := self.post.receive(0, self.left())) is not None:
            if isinstance(request, TellTime):
                clocks.answer(self.post, CLOCK_SECONDS)
            elif isinstance(request, TryGpu):
                self.try_gpu(request)
            elif self.comm.rank == request.ranks[0]:
                self.post.send(links.measure(self.driver, self.comm, request), 0)
            else:
                self.be_measured(request)
        self.post.send("farewell", 0)

    def be_measured(self, link: PairRequest):
        """Answer the messages of a measurement; an error is told by the other rank."""
        try:
            links.answer(self.driver, self.comm, link)
        except (WaitTimeout, LostRank):
            return

    def try_gpu(self, request: TryGpu) -> str:
        """Return the result of a trial of sending GPU memory. Collective."""
        try:
            return gpus.transfer(self.comm.backend.mpi, *request)
        except Exception as error:  # a library may raise any error, which is then the result
            return f"none: {error}"

    # ---- rank 0

    def gather(self, facts, seconds: float) -> list:
        """Return the facts of all ranks, on rank 0; None in place of a rank that has not told its facts in time."""
        found = self.post.receive_all(range(1, self.comm.size), min(seconds, self.left()))
        return [facts, *(found.get(rank) for rank in range(1, self.comm.size))]

    def offsets(self, hosts: Sequence[str]) -> list[ClockOffset]:
        """Return the clocks of other hosts, on rank 0; ``hosts`` has a text for the host of each rank. Raises
        SilentRank."""
        firsts = [hosts.index(host) for host in dict.fromkeys(hosts)][1 : MAX_CLOCKS + 1]
        found = []
        for rank in firsts:
            self.post.send(TellTime(), rank)
            found.append(clocks.offset(self.post, rank, CLOCK_SECONDS))
        return found

    def measured(self, link: PairRequest) -> MeasuredPair:
        """Return the measurement of a pair of ranks, on rank 0. Raises SilentRank."""
        first, second = link.ranks
        self.post.send(link, second)
        if first == 0:
            return links.measure(self.driver, self.comm, link)
        self.post.send(link, first)
        return self.post.receive(first, min(3 * links.PAIR_SECONDS, self.left()))

    def transfer(self, local_ranks: Sequence[int]) -> str:
        """Return the way in which GPU memory is sent, on rank 0; ``local_ranks`` are the ranks' numbers on their
        hosts."""
        requests = [TryGpu(local_rank, self.left() / 2) for local_rank in local_ranks]
        for rank in range(1, self.comm.size):
            self.post.send(requests[rank], rank)
        return self.try_gpu(requests[0])

    def end(self, seconds: float) -> list[int]:
        """Tell all ranks that the examination has ended, on rank 0; return the ranks that have not answered in time."""
        others = range(1, self.comm.size)
        for rank in others:
            self.post.send(None, rank)
        answered = self.post.receive_all(others, seconds)
        return [rank for rank in others if rank not in answered]
