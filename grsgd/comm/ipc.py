"""Messages of arrays in GPU memory between ranks of one host: the receiver copies out of the sender's memory.

The sender's message says where the array lies, as a CUDA IPC handle; the receiver opens every handle once, copies, and
answers, whereupon the sender may write to the array again.
"""

from functools import partial

import numpy as np

from grsgd.comm.device import Piece, Transfer
from grsgd.comm.staged import HEADER, Staged, words

SHORT = 32 * 2**10
"""Up to so many bytes a message goes through host memory: one way instead of there and back."""
WHERE = slice(3, 13)
"""Of a header: whether it says where the content lies, the offset there, and the handle of 64 bytes."""


class Ipc(Staged):
    """`Staged`, but for longer messages to single ranks of this host.

    ``host``: an MPI group of this host's ranks, whose memory this one can open.
    """

    def __init__(self, mpi, memory, host):
        from mpi4py import MPI

        super().__init__(mpi, memory)
        everybody = mpi.Get_group()
        there = MPI.Group.Translate_ranks(everybody, range(everybody.size), host)
        self.near = {rank for rank, place in enumerate(there) if place != MPI.UNDEFINED}
        everybody.Free()

    def passing(self, nbytes, source):
        all_near = len(self.near) == self.mpi.Get_size()  # whoever it is that sends
        return min(nbytes, SHORT) if all_near or source in self.near else nbytes

    def _send(self, call, array, dest, tag):
        if array.nbytes <= SHORT or dest not in self.near:
            return super()._send(call, array, dest, tag)
        host = self.memory.borrow(HEADER)
        number, (handle, offset) = self.next_number(), self.memory.handle(array)
        words(host)[:3] = array.nbytes, number, self.mpi.Get_rank()
        words(host)[WHERE] = True, offset, *np.frombuffer(handle, np.int64)
        announcement = Piece(self.memory.computed(), partial(call, host, dest, tag))
        # Nothing else comes from there with this tag: between ranks of a host no message has more than one piece.
        answer = Piece(request=self.mpi.Irecv(np.empty(1, np.uint8), dest, self.tag_of(number)))
        return self.begin(array, [announcement, answer], partial(self.memory.give_back, host))

    def _arrived(self, transfer: Transfer, array, host, read):
        elsewhere, offset, *handle = words(host)[WHERE].tolist()
        if not elsewhere:
            return super()._arrived(transfer, array, host, read)
        nbytes, number, sender = words(host)[:3].tolist()
        self.check(nbytes, sender, array)

        def answer():
            transfer.add(Piece(request=self.mpi.Isend(np.zeros(1, np.uint8), sender, self.tag_of(number))))
            self.memory.give_back(host)

        transfer.afterwards = answer
        return self.memory.copy_near(array, nbytes, np.array(handle, np.int64).tobytes(), offset, read)
