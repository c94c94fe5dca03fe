"""A transport for arrays in GPU memory, for MPI libraries that can read and write GPU memory themselves."""

from collections.abc import Callable
from functools import partial

from grsgd.comm.backend import countable
from grsgd.comm.gpu.staged import Staged
from grsgd.comm.gpu.transport import Chunk, Transfer


class Direct(Staged):
    """A transport that passes arrays in GPU memory to the MPI library without copying them.

    All-reduces copy the arrays through host memory as in `Staged`, because Open MPI has no non-blocking reductions of
    GPU memory.
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
        # raise an error now if the array has too many elements, and not later when the message is sent
        countable(array)
        return self.begin(array, [Chunk(self.memory.record_event(), post)])
