"""Conversation of rank 0 with all other ranks, in which rank 0 asks for facts and measurements, and the other ranks
answer."""

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
"""Seconds in which a rank must send the time of its clock to rank 0."""


class TellTime(NamedTuple):
    """Request of rank 0 to another rank to send the time of its host's clock."""


class TryGpu(NamedTuple):
    """Request of rank 0 to another rank to take part in a measurement of all ways of sending GPU memory. ``local_rank``
    is the number, on its host, of the rank that gets this request; the number determines the rank's GPU."""

    local_rank: int
    library_seconds: float
    """Seconds that the measurement of the MPI library's own way of sending GPU memory may take."""


class Conversation:
    """One rank's part in the conversation of rank 0 with the other ranks.

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

    # ---- methods of the ranks that answer

    def answer(self, facts):
        """Send the ``facts`` of this rank to rank 0, and answer all requests of rank 0 until the end of the
        examination. Raises SilentRank if no request arrives in time."""
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
        """Answer the messages by which the first rank of the pair ``link`` measures the link to this rank. An error on
        this rank is ignored, because the measuring rank reports the error."""
        try:
            links.answer(self.driver, self.comm, link)
        except (WaitTimeout, LostRank):
            return

    def try_gpu(self, request: TryGpu) -> str:
        """Measure all ways of sending GPU memory, and return the result as text; to be called on all ranks."""
        try:
            return gpus.transfer(self.comm.backend.mpi, *request)
        except Exception as error:  # the text of any exception of a library is returned as the result
            return f"none: {error}"

    # ---- methods of rank 0

    def gather(self, facts, seconds: float) -> list:
        """Return the list of the facts of all ranks; to be called on rank 0. The returned list has None for each rank
        whose facts have not arrived within ``seconds``."""
        found = self.post.receive_all(range(1, self.comm.size), min(seconds, self.left()))
        return [facts, *(found.get(rank) for rank in range(1, self.comm.size))]

    def offsets(self, hosts: Sequence[str]) -> list[ClockOffset]:
        """Return the difference of each other host's clock from the clock of rank 0; to be called on rank 0. ``hosts``
        has one text per rank, which identifies the rank's host. Raises SilentRank if a rank does not answer in time."""
        firsts = [hosts.index(host) for host in dict.fromkeys(hosts)][1 : MAX_CLOCKS + 1]
        found = []
        for rank in firsts:
            self.post.send(TellTime(), rank)
            found.append(clocks.offset(self.post, rank, CLOCK_SECONDS))
        return found

    def measured(self, link: PairRequest) -> MeasuredPair:
        """Return the latency and bandwidth measured between the ranks in ``link``; to be called on rank 0. Raises
        SilentRank if the pair does not answer in time."""
        first, second = link.ranks
        self.post.send(link, second)
        if first == 0:
            return links.measure(self.driver, self.comm, link)
        self.post.send(link, first)
        return self.post.receive(first, min(3 * links.PAIR_SECONDS, self.left()))

    def transfer(self, local_ranks: Sequence[int]) -> str:
        """Make all ranks measure the ways of sending GPU memory, and return the result as text; to be called on rank 0.
        ``local_ranks`` has each rank's number on its host."""
        requests = [TryGpu(local_rank, self.left() / 2) for local_rank in local_ranks]
        for rank in range(1, self.comm.size):
            self.post.send(requests[rank], rank)
        return self.try_gpu(requests[0])

    def end(self, seconds: float) -> list[int]:
        """Tell all ranks that the examination has ended; to be called on rank 0. Return the ranks that have not
        confirmed the end within ``seconds``."""
        others = range(1, self.comm.size)
        for rank in others:
            self.post.send(None, rank)
        answered = self.post.receive_all(others, seconds)
        return [rank for rank in others if rank not in answered]
