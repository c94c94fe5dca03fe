"""The mean of compressed vectors: payloads cannot be summed on the way, so all ranks receive the payloads of all
ranks.

A schedule is a generator that yields each object it waits for.
"""

from __future__ import annotations

from grsgd.comm.allreduce.allgather import ring_allgather
from grsgd.comm.communicator import Communicator
from grsgd.comm.compression.compressors import Compressor
from grsgd.comm.compression.error_feedback import ErrorFeedback
from grsgd.lazy import LazyModule

torch = LazyModule("torch")


class CompressedMean:
    """Repeated averaging with error feedback: each of the n ranks has one vector x, and each call averages x over all
    ranks::

        payload, e = encode(x + e)
        x = sum over ranks of decode(payload) / n

    Each rank sends n-1 payloads, round a ring. The result is the same on all ranks, bit for bit.

    ``seed``: seed of random numbers. ``e``: memory for the error, initially zeros.
    """

    def __init__(self, comm: Communicator, compressor: Compressor, seed: int, e: torch.Tensor | None = None):
        self.comm = comm
        self.feedback = ErrorFeedback(compressor, (seed, comm.rank), e)
        self.payloads = [compressor.payload() for _ in range(comm.size)]

    @property
    def e(self) -> torch.Tensor:
        """Return the compression error of this rank, which is added to the next vector (error feedback)."""
        return self.feedback.e

    def average(self, x: torch.Tensor, number: int):
        """Schedule, called on all ranks at once, that sets ``x`` to the mean; ``number`` is the number of the vector
        ``x``."""
        self.feedback.encode(x, self.payloads[self.comm.rank].tensor, number)
        yield from ring_allgather(self.comm, [payload.array for payload in self.payloads])
        x.zero_()
        for payload in self.payloads:
            self.feedback.compressor.decode(payload.tensor, self.feedback.decoded)
            x.add_(self.feedback.decoded, alpha=1 / self.comm.size)
