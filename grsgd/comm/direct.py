"""Messages of arrays in GPU memory that the MPI library reads and writes itself."""

from functools import partial

from grsgd.comm.communicator import countable
from grsgd.comm.device import Piece, Transfer
from grsgd.comm.staged import Staged


class Direct(Staged):
    """One rank's end of a group of ranks whose MPI library knows GPU memory.

    Reductions are `Staged`: Open MPI has no non-blocking ones of GPU memory.
    """

    def Isend(self, array, dest, tag):
        return self._whole(self.mpi.Isend, array, dest, tag)

    def Issend(self, array, dest, tag):
        return self._whole(self.mpi.Issend, array, dest, tag)

    def Irecv(self, array, source, tag):
        return self._whole(self.mpi.Irecv, array, source, tag)

    def Ibcast(self, array, root):
        return self._whole(self.mpi.Ibcast, array, root)

    def _whole(self, call, array, *arguments) -> Transfer:
        return self.begin(array, [Piece(self.memory.computed(), partial(call, countable(array), *arguments))])
