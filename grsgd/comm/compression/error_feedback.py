"""Error feedback, a method that adds the compression error of each vector to the next vector before the next vector is
compressed."""

from __future__ import annotations

import math

from grsgd.comm.compression.compressors import Compressor
from grsgd.lazy import LazyModule
from grsgd.models.flat import Flat

torch = LazyModule("torch")


def is_finite(x: torch.Tensor) -> bool:
    """Return True if all values of ``x`` are finite. For an empty tensor and for a tensor on the meta device, which has
    no values, return True."""
    # use the minimum and maximum of x, which are NaN if x contains a NaN
    return x.is_meta or not x.numel() or all(math.isfinite(end) for end in torch.aminmax(x))


class ErrorFeedback:
    """Compression of successive vectors x with error feedback. The compression error e of each vector is added to the
    next vector::

        p = x + e
        payload = encode(p)
        e = p - decode(payload)

    Values that are missing in one payload are sent in a later payload, so that algorithms with biased compressors
    converge. Source of error feedback: Seide, Fu, Droppo, Li, Yu 2014, 1-bit SGD. In the version of error feedback of
    Karimireddy, Rebjock, Stich, Jaggi 2019, x is the gradient times the learning rate.

    If a vector x has a value that is not finite, all values of its payload are NaN, and the compression error e stays
    unchanged.

    ``key``: the integers (seed, rank), from which the compressor's random numbers are derived. ``e``: memory for the
    compression error, which the caller has filled with zeros.
    """

    def __init__(self, compressor: Compressor, key: tuple[int, ...], e: torch.Tensor | None = None):
        self.compressor, self.key = compressor, key
        of = compressor.size, compressor.dtype, compressor.device
        self.e = Flat.zeros(*of).tensor if e is None else e
        self.decoded = Flat.zeros(*of).tensor
        """Vector that the receivers decode from the last encoded payload."""

    def encode(self, x: torch.Tensor, payload: torch.Tensor, number: int):
        """Compress the sum of ``x`` and the compression error ``e``, and write the result into ``payload``. ``number``:
        number of the vector ``x`` in the run, from which random numbers are derived."""
        if not is_finite(x):
            self.compressor.encode(torch.full_like(x, math.nan), payload, (*self.key, number))
            return
        self.e.add_(x)
        self.compressor.encode(self.e, payload, (*self.key, number))
        self.compressor.decode(payload, self.decoded)
        self.e.sub_(self.decoded)
