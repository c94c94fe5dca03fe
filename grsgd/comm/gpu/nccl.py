"""A transport that uses NCCL for long messages of arrays in GPU memory and for all-reduces.

NCCL messages have no tags, so the sender and the receiver of a message must call NCCL in the same order. Therefore the
sender announces each NCCL message by an MPI message, which has the tag of the NCCL message. The receiver answers the
announcement with a turn, which is the position of the message among all NCCL messages from this sender. After the
answer, the sender and the receiver call NCCL in the order of the turns.
"""

import atexit
import queue
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import cache, partial

import numpy as np

from grsgd.comm.backend import MpiBackend
from grsgd.comm.driver import WaitTimeout
from grsgd.comm.gpu.ipc import SHORT_BYTES
from grsgd.comm.gpu.memory import GpuEvent
from grsgd.comm.gpu.staged import HEADER_BYTES, Staged, header_fields
from grsgd.comm.gpu.transport import Chunk, Transfer

IDENTIFIER_BYTES = 128
"""Number of bytes of the identifier by which two ranks make an NCCL communicator. In the announcement of an NCCL
message, the identifier of the NCCL communicator follows the header."""
MAX_PEERS = 16
"""Largest number of other ranks to which one rank sends messages by NCCL. This number is limited because each NCCL
communicator needs GPU memory and takes time to make."""
TYPES = {
    "f2": "NCCL_FLOAT16",
    "f4": "NCCL_FLOAT32",
    "f8": "NCCL_FLOAT64",
    "i1": "NCCL_INT8",
    "i4": "NCCL_INT32",
    "i8": "NCCL_INT64",
    "u1": "NCCL_UINT8",
    "u4": "NCCL_UINT32",
    "u8": "NCCL_UINT64",
}
"""CuPy's names of NCCL's data types, by the kind and size in bytes of an array's elements. All-reduces of arrays with
other data types are made through host memory."""


class Nccl(Staged):
    """A transport like `Staged`, except that NCCL makes all-reduces, and carries messages of more than `SHORT_BYTES`
    bytes to at most `MAX_PEERS` other ranks.

    ``library``: a `CupyNccl`, or, in tests, an object with the same methods.
    """

    def __init__(self, backend: MpiBackend, memory, library):
        super().__init__(backend, memory)
        self.library = library
        self._to: dict[int, tuple[NcclConnection, np.ndarray]] = {}
        self._from: dict[int, NcclConnection] = {}
        self._all: NcclConnection | None = None
        self._identifier = np.zeros(IDENTIFIER_BYTES, np.uint8)
        self._told = None
        self._sums = 0

    def abort(self):
        self.library.abort()

    def tag_of(self, number):
        return self.tags + 2 * (number % (self.tags // 2))

    def answer_tag(self, number: int) -> int:
        """Return the tag of the receiver's answer to message number ``number``. No chunk of a message has this tag,
        because this rank may send an answer and the chunks of a message with the same number to the same rank."""
        return self.tag_of(number) + 1

    def _connection(self, size: int, identifier: np.ndarray, rank: int) -> "NcclConnection":
        return NcclConnection(partial(self.library.join, size, identifier, rank), self.backend.timeout)

    def _connects(self, dest: int) -> bool:
        """Return True if long messages to rank ``dest`` are sent by NCCL. If rank ``dest`` has no NCCL connection yet
        and may have one, make the connection."""
        if dest not in self._to:
            if dest == self.backend.rank or len(self._to) == MAX_PEERS:
                return False
            identifier = self.library.identifier()
            self._to[dest] = self._connection(2, identifier, 0), identifier
        return True

    def _send(self, send, array, dest, tag):
        with self.lock:
            if array.nbytes <= SHORT_BYTES or not self._connects(dest):
                return super()._send(send, array, dest, tag)
            connection, identifier = self._to[dest]
            computed, number = self.memory.record_event(), self.next_number()
            host, turn = self.memory.borrow(HEADER_BYTES + IDENTIFIER_BYTES), np.empty(1, np.int64)
            header_fields(host)[:4] = array.nbytes, number, self.backend.rank, True
            host[HEADER_BYTES:] = identifier

            def after_answer():
                self.memory.give_back(host)
                transfer.add(Chunk(request=connection.call(int(turn[0]), "send", array, array.nbytes, computed)))

            transfer = Transfer(self, array)
            transfer.on_complete = after_answer
            transfer.add(Chunk(post=partial(send, host, dest, tag)))
            transfer.add(Chunk(request=self.backend.Irecv(turn, dest, self.answer_tag(number))))
            self.advance()
        return transfer

    def _first_received(self, transfer: Transfer, array, host, read):
        nbytes, number, sender, by_nccl = header_fields(host)[:4].tolist()
        if not by_nccl:
            return super()._first_received(transfer, array, host, read)
        self.check(nbytes, sender, array)
        if sender not in self._from:
            identifier = host[HEADER_BYTES : HEADER_BYTES + IDENTIFIER_BYTES].copy()
            self._from[sender] = self._connection(2, identifier, 1)
        connection = self._from[sender]
        turn = connection.next_turn()
        answer = self.backend.Isend(np.array([turn], np.int64), sender, self.answer_tag(number))
        transfer.add(Chunk(request=answer))
        transfer.add(Chunk(request=connection.call(turn, "receive", array, nbytes, read)))
        return None

    def Iallreduce(self, array):
        if not array.size or f"{array.dtype.kind}{array.dtype.itemsize}" not in TYPES:
            return super().Iallreduce(array)
        computed = self.memory.record_event()
        with self.lock:
            turn, self._sums = self._sums, self._sums + 1

            def when_told():
                if self._all is None:
                    self._all = self._connection(self.backend.size, self._identifier, self.backend.rank)
                transfer.add(Chunk(request=self._all.call(turn, "sum", array, array.nbytes, computed)))

            transfer = Transfer(self, array)
            transfer.on_complete = when_told
            # broadcast after all earlier collectives, because all ranks must call the collectives in one order
            transfer.add(Chunk(post=self._tell))
            self.advance()
        return transfer

    def _tell(self):
        """Return the request of the broadcast that sends the identifier of the NCCL communicator of all ranks. Rank 0
        makes the identifier that it broadcasts."""
        if self._told is None:
            if self.backend.rank == 0:
                self._identifier[:] = self.library.identifier()
            self._told = self.backend.Ibcast(self._identifier, 0)
        return self._told


class NcclConnection:
    """An NCCL communicator, and a thread that calls NCCL on this communicator. The thread is necessary because a call
    of NCCL may block until the other ranks make the matching call.

    Parameters
    ----------
    join
        Function that makes the NCCL communicator together with the other ranks, and returns a `NcclLink`.
    timeout
        Seconds that a call of NCCL may take. If a call of NCCL takes longer than ``timeout``, the NCCL communicator is
        aborted.
    """

    def __init__(self, join: Callable, timeout: float):
        self.timeout = timeout
        self.link = None
        self.error: Exception | None = None
        self._turns = 0
        self._begun = 0
        self._early: dict[int, tuple[NcclCall, tuple]] = {}
        self._queue: queue.SimpleQueue = queue.SimpleQueue()
        threading.Thread(target=self._work, args=(join,), name="grsgd-nccl", daemon=True).start()

    def next_turn(self) -> int:
        """Return the turn of the next NCCL message: its position, counted from 0, among the messages of this
        connection. The receiving rank calls `next_turn` to determine the order in which sender and receiver call
        NCCL."""
        self._turns += 1
        return self._turns - 1

    def call(self, turn: int, *words) -> "NcclCall":
        """Let the connection's thread call ``link.call(*words)``, after all calls with lower turns. Return the request
        of this call of NCCL."""
        call = NcclCall(self)
        self._early[turn] = call, words
        while self._begun in self._early:
            self._queue.put(self._early.pop(self._begun))
            self._begun += 1
        return call

    def _work(self, join: Callable):
        try:
            self.link = join()
            while self.error is None:
                call, words = self._queue.get()
                call.event = self.link.call(*words)
            self._abort()  # abort, because the other ranks joined only after the time-out
        except Exception as error:
            self.error = self.error or error

    def check(self, begin: float):
        """Raise RuntimeError if NCCL has failed, or WaitTimeout if a call that was requested at the time ``begin``
        takes too long. Before raising one of these errors, abort the NCCL communicator."""
        try:
            if self.error is None and self.link is not None:
                self.link.check()
        except Exception as error:
            self.error = error
        if self.error is not None:
            self._abort()
            raise RuntimeError(f"NCCL has failed: {self.error}")
        if time.monotonic() - begin > self.timeout:
            self.error = WaitTimeout(f"NCCL has not ended a call in {self.timeout:g} s: NCCL's communicator is aborted")
            self._abort()
            raise self.error

    def _abort(self):
        if self.link is not None:
            self.link.abort()


class NcclCall:
    """A request of a call of NCCL, with the methods of an MPI request."""

    def __init__(self, connection: NcclConnection):
        self.connection = connection
        self.begin = time.monotonic()
        self.event = None

    def Test(self) -> bool:
        """Return True if the GPU has finished the call of NCCL. Raises the errors of `NcclConnection.check`."""
        if self.event is not None and self.event.done:
            return True
        self.connection.check(self.begin)
        return False

    def Cancel(self):
        """Do nothing, because the sender has already begun to send the message, so that this rank must receive it."""


class CupyNccl:
    """Interface to the NCCL functions of CuPy, on the GPU that is CuPy's current device when they are first called."""

    def __init__(self):
        self.links: list[NcclLink] = []
        self.is_aborted = False

    def gpu(self) -> str:
        """Return a text that identifies this rank's GPU among the GPUs of its host. If CuPy has no NCCL, the method
        raises an error, which may have any type."""
        nccl, device = _cupy_nccl()
        nccl.get_version()
        return device.pci_bus_id

    def identifier(self) -> np.ndarray:
        """Return the identifier of a new NCCL communicator, which all ranks of this communicator must pass to
        `join`."""
        nccl, _ = _cupy_nccl()
        made = nccl.get_unique_id()  # CuPy returns bytes, or in older versions signed numbers
        return np.frombuffer(made, np.uint8) if isinstance(made, bytes) else np.array(made, np.int8).view(np.uint8)

    def join(self, size: int, identifier: np.ndarray, rank: int) -> "NcclLink":
        """Make the NCCL communicator with the given ``identifier``, together with its other ranks. `join` blocks until
        all ``size`` ranks of the communicator have called it."""
        nccl, device = _cupy_nccl()
        device.use()  # set the device in this thread, because each thread has its own current device
        try:
            communicator = nccl.NcclCommunicator(size, identifier.tobytes(), rank)
        except TypeError:  # older versions of CuPy take a tuple of signed numbers
            communicator = nccl.NcclCommunicator(size, tuple(identifier.view(np.int8).tolist()), rank)
        link = NcclLink(nccl, communicator, rank)
        self.links.append(link)
        if self.is_aborted:
            link.abort()
        return link

    def abort(self):
        """Abort all NCCL communicators that this object has made, so that the GPU no longer waits for other ranks."""
        self.is_aborted = True
        for link in self.links:
            link.abort()


@cache
def _cupy_nccl():
    import cupy
    from cupy.cuda import nccl

    return nccl, cupy.cuda.Device()


class NcclLink:
    """An NCCL communicator of CuPy, and the CUDA stream in which its calls run."""

    def __init__(self, nccl, communicator, rank: int):
        import cupy

        self.nccl, self.communicator, self.rank = nccl, communicator, rank
        self.runtime, self.stream = cupy.cuda.runtime, cupy.cuda.Stream(non_blocking=True)
        self.is_aborted = False
        atexit.register(self.abort)  # abort the communicator at exit, because destroying it would wait for other ranks

    def call(self, what: str, array, nbytes: int, after: GpuEvent) -> GpuEvent:
        """Let the GPU send, receive or sum ``array`` when the event ``after`` is reached. Return an event that is
        reached when the GPU has sent, received or summed the array.

        ``what``: "send", "receive" or "sum". ``nbytes``: length in bytes of the message that is sent or received.
        """
        self.runtime.streamWaitEvent(self.stream.ptr, after.event.ptr)
        place, stream, nccl = array.data.ptr, self.stream.ptr, self.nccl
        if what == "sum":
            kind = getattr(nccl, TYPES[f"{array.dtype.kind}{array.dtype.itemsize}"])
            self.communicator.allReduce(place, place, array.size, kind, nccl.NCCL_SUM, stream)
        else:
            move = self.communicator.send if what == "send" else self.communicator.recv
            move(place, nbytes, nccl.NCCL_UINT8, 1 - self.rank, stream)
        return GpuEvent(stream)

    def check(self):
        """If a call of NCCL has failed on the GPU, raise its error."""
        if not self.is_aborted:
            self.communicator.check_async_error()

    def abort(self):
        """Abort the NCCL communicator, including its calls that are under way."""
        if not self.is_aborted:
            self.is_aborted = True
            with suppress(Exception):
                self.communicator.abort()
