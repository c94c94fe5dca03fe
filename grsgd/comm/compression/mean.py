"""The mean of compressed vectors over all ranks. The payloads of compressed vectors cannot be added, so each rank
receives the payloads of all ranks and decodes them.

A schedule is a generator that yields each object (such as a request of a message) for which the schedule waits.
"""

from __future__ import annotations

from grsgd.comm.allreduce.allgather import ring_allgather
from grsgd.comm.communicator import Communicator
from grsgd.comm.compression.compressors import Compressor
from grsgd.comm.compression.error_feedback import ErrorFeedback
from grsgd.lazy import LazyModule

torch = LazyModule("torch")


class CompressedMean:
    """Repeated averaging of compressed vectors with error feedback. Each of the n ranks has a vector x, and each call
    of `average` averages x over all ranks::

        payload, e = encode(x + e)
        x = sum over ranks of decode(payload) / n

    The payloads are sent round a ring of the ranks: each rank sends n-1 payloads to its successor. All ranks compute a
    mean with the same bits.

    ``seed``: seed from which the compressor's random numbers are derived. ``e``: memory for the compression error,
    which the caller has filled with zeros.
    """

    def __init__(self, comm: Communicator, compressor: Compressor, seed: int, e: torch.Tensor | None = None):
        self.comm = comm
        self.feedback = ErrorFeedback(compressor, (seed, comm.rank), e)
        self.payloads = [compressor.payload() for _ in range(comm.size)]

    @property
    def e(self) -> torch.Tensor:
        """Return this rank's compression error of the last vector, which is added to the next vector."""
        return self.feedback.e

    def average(self, x: torch.Tensor, number: int):
        """Generator (schedule), run on all ranks at once, that sets ``x`` to the mean of ``x`` over all ranks.
        ``number``: number of the vector in the run, counted from 0, from which random numbers are derived."""
        self.feedback.encode(x, self.payloads[self.comm.rank].tensor, number)
        yield from ring_allgather(self.comm, [payload.array for payload in self.payloads])
        x.zero_()
        for payload in self.payloads:
            self.feedback.compressor.decode(payload.tensor, self.feedback.decoded)
            x.add_(self.feedback.decoded, alpha=1 / self.comm.size)
