"""Error feedback: the compression error of each vector is added to the next vector."""

from __future__ import annotations

import math

from grsgd.comm.compression.compressors import Compressor
from grsgd.lazy import LazyModule
from grsgd.models.flat import Flat

torch = LazyModule("torch")


def is_finite(x: torch.Tensor) -> bool:
    """Return whether all values of ``x`` are finite; also True for an empty tensor and on the meta device."""
    # if x contains a NaN, its minimum and maximum are NaN
    return x.is_meta or not x.numel() or all(math.isfinite(end) for end in torch.aminmax(x))


class ErrorFeedback:
    """Compression of successive vectors. The compression error of each vector is added to the next vector::

        p = x + e
        payload = encode(p)
        e = p - decode(payload)

    So values that a payload leaves out are sent later, and algorithms with biased compressors converge. Source: Seide,
    Fu, Droppo, Li, Yu 2014, 1-bit SGD. In Karimireddy, Rebjock, Stich, Jaggi 2019, x includes the learning rate.

    If a vector is not finite, all its values are sent as NaN, and e stays unchanged.

    ``key``: (seed, rank), which random numbers depend on; ``e``: memory for the error, initially zeros.
    """

    def __init__(self, compressor: Compressor, key: tuple[int, ...], e: torch.Tensor | None = None):
        self.compressor, self.key = compressor, key
        of = compressor.size, compressor.dtype, compressor.device
        self.e = Flat.zeros(*of).tensor if e is None else e
        self.decoded = Flat.zeros(*of).tensor
        """The vector that receivers decode from the last payload."""

    def encode(self, x: torch.Tensor, payload: torch.Tensor, number: int):
        """Write the compressed sum of ``x`` and the earlier errors into ``payload``; ``number`` is the number of the
        vector ``x``."""
        if not is_finite(x):
            self.compressor.encode(torch.full_like(x, math.nan), payload, (*self.key, number))
            return
        self.e.add_(x)
        self.compressor.encode(self.e, payload, (*self.key, number))
        self.compressor.decode(payload, self.decoded)
        self.e.sub_(self.decoded)
