"""The mean of compressed vectors: payloads cannot be summed on the way, so all ranks get those of all."""

from __future__ import annotations

from grsgd.comm.allreduce.allgather import ring_allgather
from grsgd.comm.communicator import Communicator
from grsgd.comm.compression.compressors import Compressor, ErrorFeedback
from grsgd.lazy import LazyModule

torch = LazyModule("torch")


class CompressedMean:
    """Averages vectors of all ranks, one after the other, with error feedback::

        payload, e = encode(x + e)
        x = sum over ranks of decode(payload) / n

    Sends (n-1) payloads a rank, round a ring. The result is the same on all ranks, bit for bit.

    ``seed``: of what is random; ``e``: memory for what is left out, zeros.
    """

    def __init__(self, comm: Communicator, compressor: Compressor, seed: int, e: torch.Tensor | None = None):
        self.comm = comm
        self.feedback = ErrorFeedback(compressor, (seed, comm.rank), e)
        self.payloads = [compressor.payload() for _ in range(comm.size)]

    @property
    def e(self) -> torch.Tensor:
        """The sum of all that this rank has left out and not sent yet."""
        return self.feedback.e

    def average(self, x: torch.Tensor, number: int):
        """Schedule, on all ranks at once: set ``x``, the vector of this number, to the mean."""
        self.feedback.encode(x, self.payloads[self.comm.rank].tensor, number)
        yield from ring_allgather(self.comm, [payload.array for payload in self.payloads])
        x.zero_()
        for payload in self.payloads:
            self.feedback.compressor.decode(payload.tensor, self.feedback.decoded)
            x.add_(self.feedback.decoded, alpha=1 / self.comm.size)
