"""Messages of arrays in GPU memory that the MPI library reads and writes itself."""

from collections.abc import Callable
from functools import partial

from grsgd.comm.backend import countable
from grsgd.comm.gpu.staged import Staged
from grsgd.comm.gpu.transport import Chunk, Transfer


class Direct(Staged):
    """The transport for an MPI library that can read and write GPU memory.

    All-reduces go through host memory as in `Staged`, because Open MPI has no non-blocking reductions of GPU memory.
    """

    def Isend(self, array, dest, tag):
        return self._whole(array, partial(self.backend.Isend, array, dest, tag))

    def Issend(self, array, dest, tag):
        return self._whole(array, partial(self.backend.Issend, array, dest, tag))

    def Irecv(self, array, source, tag):
        return self._whole(array, partial(self.backend.Irecv, array, source, tag))

    def Ibcast(self, array, root):
        return self._whole(array, partial(self.backend.Ibcast, array, root))

    def _whole(self, array, post: Callable) -> Transfer:
        countable(array)  # an error is raised here, not later when MPI gets the array
        return self.begin(array, [Chunk(self.memory.record_event(), post)])
