"""All processes of a job whose loop goes on without processes that die: their communicators and their meetings."""

from collections.abc import Callable

from grsgd.comm.elastic.membership import Membership
from grsgd.comm.stop_signal import StopSignal
from grsgd.job.agreement import on_the_living
from grsgd.job.communicators import Communicators
from grsgd.job.told_deaths import ToldDeaths


class Lives:
    """Communicators of all processes of a job for a loop that goes on without processes that die; made on all at once.

    ``backend`` carries messages of all processes, of which the first ``ranks`` train.
    """

    def __init__(self, backend, ranks: int, clock):
        comms = Communicators(backend)
        self.membership = comms.membership = Membership(comms.of_processes(), ranks, clock)
        ToldDeaths(self.membership)
        self.states, self.world = comms.of_processes(), comms.copy().mpi
        self.comm, self.uncounted, self.checkpoints = (comms.communicator() for _ in range(3))
        self.signal = StopSignal(comms.communicator(), tolerant=True)
        """Signal by which a rank that fails ends the job, although the ranks go on after a death."""


GO_ON, END = "go on", "end"
"""Words of a rank at a meeting of all living processes: further meetings follow, or this one is the last."""


def meet(world, timeout: float, word: str | None = None, attempt: Callable | None = None):
    """Meet all living processes of ``world``, at most ``timeout`` seconds after the first of them.

    A rank has a ``word``: `GO_ON` or `END`. It calls ``attempt(mpi, made)``, if given, where ``mpi`` has the ranks
    alone, and returns the result (`on_the_living`). A spare has no word, and returns whether the ranks go on.
    """

    def once(living, made: list):
        words = living.allgather(word)
        mpi = living.Split(int(word is None), living.rank)
        made.append(mpi)
        if word is None:
            return GO_ON in words
        return None if attempt is None else attempt(mpi, made)

    return on_the_living(world, timeout, once)
