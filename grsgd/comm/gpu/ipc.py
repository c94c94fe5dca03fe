"""A transport by which ranks of one host copy arrays from each other's GPU memory, by CUDA IPC (inter-process
communication).

The sender's message contains a CUDA IPC handle of the GPU memory in which the array lies. The receiver opens each IPC
handle only once, copies the array, and then sends an answer to the sender. When the sender has received the answer, it
may write to the array again.
"""

from functools import partial

import numpy as np

from grsgd.comm.backend import MpiBackend
from grsgd.comm.gpu.staged import HEADER_BYTES, Staged, header_fields
from grsgd.comm.gpu.transport import Chunk, Transfer

SHORT_BYTES = 32 * 2**10
"""Largest size in bytes of a message between ranks of one host that is sent through host memory instead of by CUDA IPC.
Unlike a message by CUDA IPC, a message through host memory needs no answer of the receiver."""
IPC_FIELDS = slice(3, 13)
"""Position in a message's header of the fields for CUDA IPC. The fields say whether to copy the content by IPC, the
offset of the content in the sender's GPU memory, and the IPC handle of this memory (64 bytes)."""


class Ipc(Staged):
    """A transport like `Staged`, except that messages of more than `SHORT_BYTES` bytes between two ranks of one host
    are copied by the receiver from the sender's GPU memory.

    ``host``: an MPI group of the ranks on this host, whose GPU memory this rank can open.
    """

    def __init__(self, backend: MpiBackend, memory, host):
        from mpi4py import MPI

        super().__init__(backend, memory)
        everyone = backend.mpi.Get_group()
        on_host = MPI.Group.Translate_ranks(everyone, range(everyone.size), host)
        self.same_host_ranks = {rank for rank, number in enumerate(on_host) if number != MPI.UNDEFINED}
        everyone.Free()

    def staged_bytes(self, nbytes, source):
        # if all ranks are on one host, any source is on this host
        one_host = len(self.same_host_ranks) == self.backend.size
        return min(nbytes, SHORT_BYTES) if one_host or source in self.same_host_ranks else nbytes

    def _send(self, send, array, dest, tag):
        if array.nbytes <= SHORT_BYTES or dest not in self.same_host_ranks:
            return super()._send(send, array, dest, tag)
        host = self.memory.borrow(HEADER_BYTES)
        number, (handle, offset) = self.next_number(), self.memory.handle(array)
        header_fields(host)[:3] = array.nbytes, number, self.backend.rank
        header_fields(host)[IPC_FIELDS] = True, offset, *np.frombuffer(handle, np.int64)
        announcement = Chunk(self.memory.record_event(), partial(send, host, dest, tag))
        # No other message from `dest` has the answer's tag, because messages between ranks of one host have one chunk.
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
