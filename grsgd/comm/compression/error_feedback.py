"""Error feedback, a method that adds the compression error of each vector to the next vector before compression."""

from __future__ import annotations

import math

from grsgd.comm.compression.compressors import Compressor
from grsgd.lazy import LazyModule
from grsgd.models.flat import Flat

torch = LazyModule("torch")


def is_finite(x: torch.Tensor) -> bool:
    """Return whether all values of ``x`` are finite. Return True for an empty tensor and for a tensor on the meta
    device."""
    # if x contains a NaN, the minimum and maximum of x are NaN
    return x.is_meta or not x.numel() or all(math.isfinite(end) for end in torch.aminmax(x))


class ErrorFeedback:
    """Compression of successive vectors x with error feedback. The compression error e of each vector is added to the
    next vector::

        p = x + e
        payload = encode(p)
        e = p - decode(payload)

    Values that one payload leaves out are sent in a later payload, so that algorithms with biased compressors
    converge. Source: Seide, Fu, Droppo, Li, Yu 2014, 1-bit SGD. In the version of Karimireddy, Rebjock, Stich, Jaggi
    2019, x is the gradient times the learning rate.

    If a vector has a value that is not finite, all values of the payload are NaN, and e stays unchanged.

    ``key``: (seed, rank), on which the compressor's random numbers depend. ``e``: memory for the compression error,
    initially zeros.
    """

    def __init__(self, compressor: Compressor, key: tuple[int, ...], e: torch.Tensor | None = None):
        self.compressor, self.key = compressor, key
        of = compressor.size, compressor.dtype, compressor.device
        self.e = Flat.zeros(*of).tensor if e is None else e
        self.decoded = Flat.zeros(*of).tensor
        """Vector that the receivers decode from the last payload."""

    def encode(self, x: torch.Tensor, payload: torch.Tensor, number: int):
        """Write the compressed sum of ``x`` and the compression error ``e`` into ``payload``. ``number``: number of the
        vector ``x``, on which random numbers depend."""
        if not is_finite(x):
            self.compressor.encode(torch.full_like(x, math.nan), payload, (*self.key, number))
            return
        self.e.add_(x)
        self.compressor.encode(self.e, payload, (*self.key, number))
        self.compressor.decode(payload, self.decoded)
        self.e.sub_(self.decoded)
