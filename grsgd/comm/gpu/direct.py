"""A transport for MPI libraries that can read and write arrays in GPU memory."""

from collections.abc import Callable
from functools import partial

from grsgd.comm.backend import countable
from grsgd.comm.gpu.staged import Staged
from grsgd.comm.gpu.transport import Chunk, Transfer


class Direct(Staged):
    """The transport that passes arrays in GPU memory to the MPI library.

    All-reduces are made through host memory as in `Staged`, because Open MPI has no non-blocking reductions of GPU
    memory.
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
        countable(array)  # raises an error for too many elements now, not later
        return self.begin(array, [Chunk(self.memory.record_event(), post)])
