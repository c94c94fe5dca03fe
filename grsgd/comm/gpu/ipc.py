"""Messages of arrays in GPU memory between ranks of one host: the receiver copies out of the sender's memory.

The sender's message says where the array lies, as a CUDA IPC handle; the receiver opens every handle once, copies, and
answers, whereupon the sender may write to the array again.
"""

from functools import partial

import numpy as np

from grsgd.comm.backend import MpiBackend
from grsgd.comm.gpu.staged import HEADER_BYTES, Staged, header_fields
from grsgd.comm.gpu.transport import Chunk, Transfer

SHORT_BYTES = 32 * 2**10
"""Up to so many bytes a message goes through host memory: one message instead of one there and one back."""
IPC_FIELDS = slice(3, 13)
"""Of a header: whether the content is to be copied by IPC, the offset where it lies, and the handle of 64 bytes."""


class Ipc(Staged):
    """`Staged`, but for longer messages to single ranks of this host.

    ``host``: an MPI group of this host's ranks, whose memory this one can open.
    """

    def __init__(self, backend: MpiBackend, memory, host):
        from mpi4py import MPI

        super().__init__(backend, memory)
        everyone = backend.mpi.Get_group()
        on_host = MPI.Group.Translate_ranks(everyone, range(everyone.size), host)
        self.same_host_ranks = {rank for rank, number in enumerate(on_host) if number != MPI.UNDEFINED}
        everyone.Free()

    def staged_bytes(self, nbytes, source):
        one_host = len(self.same_host_ranks) == self.backend.size  # true of any source then
        return min(nbytes, SHORT_BYTES) if one_host or source in self.same_host_ranks else nbytes

    def _send(self, send, array, dest, tag):
        if array.nbytes <= SHORT_BYTES or dest not in self.same_host_ranks:
            return super()._send(send, array, dest, tag)
        host = self.memory.borrow(HEADER_BYTES)
        number, (handle, offset) = self.next_number(), self.memory.handle(array)
        header_fields(host)[:3] = array.nbytes, number, self.backend.rank
        header_fields(host)[IPC_FIELDS] = True, offset, *np.frombuffer(handle, np.int64)
        announcement = Chunk(self.memory.record_event(), partial(send, host, dest, tag))
        # Nothing else comes from there with this tag: between ranks of a host no message has more than one chunk.
        answer = Chunk(request=self.backend.Irecv(np.empty(1, np.uint8), dest, self.tag_of(number)))
        return self.begin(array, [announcement, answer], partial(self.memory.give_back, host))

    def _first_received(self, transfer: Transfer, array, host, read):
        uses_ipc, offset, *handle = header_fields(host)[IPC_FIELDS].tolist()
        if not uses_ipc:
            return super()._first_received(transfer, array, host, read)
        nbytes, number, sender = header_fields(host)[:3].tolist()
        self.check(nbytes, sender, array)

        def answer():
            transfer.add(Chunk(request=self.backend.Isend(np.zeros(1, np.uint8), sender, self.tag_of(number))))
            self.memory.give_back(host)

        transfer.on_complete = answer
        return self.memory.copy_from_process(array, nbytes, np.array(handle, np.int64).tobytes(), offset, read)
