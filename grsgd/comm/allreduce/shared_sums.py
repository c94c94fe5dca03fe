"""Sums of arrays in memory that is shared by the ranks of a host. A rank waits for other ranks by polling numbers that
they write to the shared memory."""

from collections.abc import Sequence

import numpy as np

from coding.partition import part
from grsgd.comm.communicator import Communicator
from grsgd.comm.driver import available_cores
from grsgd.comm.shared_memory import FIELDS, SharedMemory

PIECE_BYTES = 1024 * 1024
"""Number of bytes of each of a rank's two buffers in shared memory. A rank's array is copied piece by piece through the
rank's two buffers."""
SCRATCH_BYTES = 4 * 1024
"""Number of bytes of sums that a rank computes at a time in scratch memory. Scratch memory of `SCRATCH_BYTES` bytes
fits into the innermost cache of a core."""
TRIES = 2000
"""Number of times that a rank, if each rank has a core of its own, checks the progress of the other ranks before the
rank's schedule yields. `TRIES` checks take about 4 us.

With more checks, waits would be shorter on an idle machine, but longer if other programs use the cores.
"""
COMPILED = (np.dtype("float32"), np.dtype("float64"))
ENTERED, DONE, PLACE = range(3)
"""Columns of the array of numbers in shared memory, which has one row per rank: ENTERED, DONE and PLACE.

ENTERED: number of the last phase of an all-reduce for which the rank has written its array to shared memory. DONE:
number of the last phase of an all-reduce in which the rank has summed its part of the arrays. PLACE: position of the
rank's array in shared memory, by which the ranks check that their arrays have equal positions.
"""
OUTSIDE = -1
VECTOR = 1 << 44
"""Factor by which the number of a shared memory is multiplied in the position of an array (column PLACE). The position
of an array is `VECTOR` times the number of its shared memory, plus the index of the array's first byte in the rank's
row."""


class Buffers:
    """Two buffers per rank in shared memory, through which all-reduces copy arrays. A rank fills one buffer while other
    ranks read the other buffer.

    Parameters
    ----------
    comm
        Communicator of the ranks that share the memory.
    memory
        Memory that the ranks share, with 2 ``piece_bytes`` bytes per rank.
    piece_bytes
        Length of a buffer in bytes.
    owners
        Number of ranks that each sum one part of the arrays. The ``owners`` ranks with the lowest numbers each sum a
        part of the arrays. By default every rank sums a part of the arrays.

    An all-reduce consists of numbered phases, one phase per piece of the array. A buffer that is written in phase p is
    written again in phase p + 2. A rank enters phase p + 1 only after it has read the buffers that were written in
    phase p. Before phase p + 2, each rank waits until all ranks have entered phase p + 1. In phase p + 2, therefore, no
    rank still reads the arrays that were written into the buffers in phase p.
    """

    def __init__(
        self, comm: Communicator, memory: SharedMemory, piece_bytes: int = PIECE_BYTES, owners: int | None = None
    ):
        from grsgd.comm.allreduce import shared_cpu

        self.rank, self.ranks, self.members, self.memory = comm.rank, comm.size, comm.members, memory
        self.piece_bytes, self.owners = piece_bytes, owners or comm.size
        self.phase = 0
        self.tries = TRIES if comm.size <= available_cores() else 1
        self.loops = shared_cpu
        self._scratch: dict = {}

    def sum_short(self, x, scale: float):
        """Generator (schedule) that sets the short array ``x`` to ``scale`` times the sum of ``x`` over all ranks.
        Every rank computes the sums of all elements of ``x``."""
        scale = x.dtype.type(scale)
        if x.dtype not in COMPILED:
            rows, begin = self._fill(x)
            self._publish(ENTERED)
            yield from Reached(self, ENTERED).wait()
            sum_rows(rows, begin, begin + x.size, scale, x)
            return
        rows, begin = self._next_buffer(x)
        flags, add = self.memory.flags, self.loops.sum_rows
        if not self.loops.sum_soon(flags, self.rank, ENTERED, self.phase, rows, begin, scale, x, self.tries):
            yield Reached(self, ENTERED)
            add(rows, begin, begin + x.size, scale, x)

    def sum_long(self, x, scale: float, vectors: Sequence[SharedMemory], beyond=None):
        """Generator (schedule) that sets the array x to ``scale`` times the sum of x over all ranks. Each of the first
        `owners` ranks sums one part of x.

        If x lies in one of ``vectors``, which are shared memory for whole arrays, x is summed in place. If x lies
        outside ``vectors``, x is copied through the buffers, piece by piece.

        ``beyond(part)``: a schedule that changes the sum of an owner's part, for example by adding the sums of other
        hosts, before the sum is copied to the other ranks. ``beyond`` is called for each piece of ``piece_bytes``
        bytes, even if x is summed in place.
        """
        place, memory = OUTSIDE, None
        for number, vector in enumerate(vectors):
            if (found := vector.place_of(x)) is not None:
                place, memory = number * VECTOR + found, vector
                begin = found // x.itemsize
        # other ranks read PLACE only after this rank has published the phase
        self.memory.flags[self.rank, PLACE] = place
        if memory is not None:
            self.phase += 1
            self._publish(ENTERED)
            yield from Reached(self, ENTERED).wait()
            self._check_places(place)
            size = x.size if beyond is None else self.piece_bytes // x.itemsize
            for first in range(0, x.size, size):
                piece = min(size, x.size - first)
                yield from self._replace_part(memory.rows(x.dtype), begin + first, piece, scale, beyond)
            self._publish(DONE)
            yield from Reached(self, DONE).wait()
            return
        size = self.piece_bytes // x.itemsize
        pieces = [x[begin : begin + size] for begin in range(0, x.size, size)]
        rows, begin = self._fill(pieces[0])
        self._publish(ENTERED)
        for piece, following in zip(pieces, [*pieces[1:], None], strict=True):
            yield from Reached(self, ENTERED).wait()
            if piece is pieces[0]:
                self._check_places(place)
            yield from self._replace_part(rows, begin, piece.size, scale, beyond)
            self._publish(DONE)
            finished, source = Reached(self, DONE), rows[self.rank, begin : begin + piece.size]
            if following is not None:
                rows, begin = self._fill(following)
                self._publish(ENTERED)
            yield from finished.wait()
            piece[:] = source

    def _fill(self, piece) -> tuple[np.ndarray, int]:
        """Begin the next phase of an all-reduce, and copy ``piece`` into this rank's buffer. Return the memory of all
        ranks (one row per rank), and the index in a row at which the buffer of this phase begins."""
        rows, begin = self._next_buffer(piece)
        rows[self.rank, begin : begin + piece.size] = piece
        return rows, begin

    def _next_buffer(self, piece) -> tuple[np.ndarray, int]:
        """Begin the next phase of an all-reduce. Return the memory of all ranks (one row per rank), and the index in a
        row at which the buffer of this phase begins."""
        self.phase += 1
        return self.memory.rows(piece.dtype), self.phase % 2 * (self.piece_bytes // piece.itemsize)

    def _publish(self, column: int):
        self.loops.publish(self.memory.flags, self.rank, column, self.phase)

    def _check_places(self, place: int):
        """Raise RuntimeError if ``place``, the position of this rank's array in shared memory, differs from the
        position of another rank's array.

        Call this method when all ranks have entered the phase of the all-reduce, so that all ranks read the same
        positions and raise the same error.
        """
        places = self.memory.flags[:, PLACE].tolist()
        if any(other != place for other in places):
            raise RuntimeError(f"an all-reduce of arrays that lie in different places of shared memory: {places}")

    def _replace_part(self, rows: np.ndarray, begin: int, size: int, scale: float, beyond):
        """Generator (schedule) that computes the sum over all ranks of this rank's part of a piece, and writes the sum
        into the rows of all ranks."""
        if self.rank >= self.owners:
            return
        first, last = (begin + end for end in part(self.rank, self.owners, size))
        dtype = rows.dtype
        if dtype not in self._scratch:
            self._scratch[dtype] = np.empty(SCRATCH_BYTES // dtype.itemsize, dtype)
        replace = self.loops.replace_rows if dtype in COMPILED else replace_rows
        replace(rows, first, last, dtype.type(scale), self._scratch[dtype])
        if beyond is not None:
            mine = rows[self.rank, first:last]
            yield from beyond(mine)
            for rank in range(self.ranks):
                if rank != self.rank:
                    rows[rank, first:last] = mine


class Reached:
    """A pollable whose ``Test()`` returns True when all ranks have reached a phase, according to ``column`` (ENTERED or
    DONE) of the shared memory."""

    __slots__ = ("buffers", "column", "phase")

    def __init__(self, buffers: Buffers, column: int):
        self.buffers, self.column, self.phase = buffers, column, buffers.phase

    def Test(self) -> bool:
        return self.buffers.loops.reached(self.buffers.memory.flags, self.column, self.phase)

    def wait(self):
        """Generator (schedule) that waits until ``Test()`` of this pollable returns True. If no other rank needs this
        rank's core, the schedule calls ``Test()`` up to `TRIES` times before it yields."""
        buffers = self.buffers
        if not buffers.loops.reached_soon(buffers.memory.flags, self.column, self.phase, buffers.tries):
            yield self

    def __str__(self):
        flags = self.buffers.memory.flags[:, self.column].tolist()
        late = [str(rank) for rank, number in zip(self.buffers.members, flags, strict=True) if number < self.phase]
        what = "begun" if self.column == ENTERED else "added up their part of"
        return f"ranks {', '.join(late)}, which have not {what} an all-reduce through shared memory"


def load_loops(dtype):
    """Load the compiled loops (`shared_cpu`) that sum arrays of ``dtype``. The first call of this function on a machine
    compiles the loops, which takes seconds."""
    from grsgd.comm.allreduce import shared_cpu

    rows, flags = np.zeros((2, FIELDS), dtype), np.zeros((2, FIELDS), np.int64)
    shared_cpu.publish(flags, 0, ENTERED, 1)
    shared_cpu.reached(flags, ENTERED, 1)
    if rows.dtype in COMPILED:
        one = rows.dtype.type(1)
        shared_cpu.sum_rows(rows, 0, FIELDS, one, rows[0].copy())
        shared_cpu.sum_soon(flags, 0, ENTERED, 2, rows, 0, one, rows[0].copy(), 1)
        shared_cpu.replace_rows(rows, 0, FIELDS, rows.dtype.type(1), rows[0].copy())


def sum_rows(rows, begin: int, end: int, scale, total):
    """Set ``total`` to ``scale`` times the sum over all ``rows`` of their elements ``begin`` to ``end``, for dtypes
    without compiled loops."""
    np.add(rows[0, begin:end], rows[1, begin:end], out=total)
    for row in rows[2:]:
        total += row[begin:end]
    if scale != 1:
        total *= scale


def replace_rows(rows, begin: int, end: int, scale, scratch):
    """Replace the elements ``begin`` to ``end`` of every row by ``scale`` times the sum of these elements over all
    ``rows``, for dtypes without compiled loops."""
    for start in range(begin, end, scratch.size):
        stop = min(start + scratch.size, end)
        total = scratch[: stop - start]
        sum_rows(rows, start, stop, scale, total)
        rows[:, start:stop] = total
