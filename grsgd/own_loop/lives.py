"""Communicators and meetings of all processes of a job whose loop goes on after the death of a process."""

from collections.abc import Callable

from grsgd.comm.elastic.membership import Membership
from grsgd.comm.stop_signal import StopSignal
from grsgd.job.agreement import on_the_living
from grsgd.job.communicators import Communicators
from grsgd.job.told_deaths import ToldDeaths


class Lives:
    """Communicators of all processes of a job, for a loop that goes on after the death of a process. All processes must
    make this object at once.

    ``backend`` carries the messages of all processes. The first ``ranks`` processes train, and the others are spares.
    """

    def __init__(self, backend, ranks: int, clock):
        comms = Communicators(backend)
        self.membership = comms.membership = Membership(comms.of_processes(), ranks, clock)
        ToldDeaths(self.membership)
        self.states, self.world = comms.of_processes(), comms.copy().mpi
        self.comm, self.uncounted, self.checkpoints = (comms.communicator() for _ in range(3))
        self.signal = StopSignal(comms.communicator(), tolerant=True)
        """Signal with which a rank that fails with an error ends the job. A death does not end the job."""


GO_ON, END = "go on", "end"
"""Words that a rank says at a meeting of all living processes: "go on" if further meetings follow, "end" at the last
meeting."""


def meet(world, timeout: float, word: str | None = None, attempt: Callable | None = None):
    """Meet all living processes of ``world``, and wait for them at most ``timeout`` seconds after the first process has
    come.

    A rank gives a ``word``, which is `GO_ON` or `END`. If ``attempt`` is given, a rank calls ``attempt(mpi, made)`` and
    returns the result (`on_the_living`). The communicator ``mpi`` has only the ranks. A spare gives no word. For a
    spare, the result is whether any rank said `GO_ON`.
    """

    def once(living, made: list):
        words = living.allgather(word)
        mpi = living.Split(int(word is None), living.rank)
        made.append(mpi)
        if word is None:
            return GO_ON in words
        return None if attempt is None else attempt(mpi, made)

    return on_the_living(world, timeout, once)
