"""Compression of what is sent: a vector of the model's size becomes a payload of fewer bytes, and back.

| name     | payload of d values                          | source                                             |
|----------|----------------------------------------------|----------------------------------------------------|
| none     | d values                                     |                                                    |
| top-k    | k values, k indices of 4 bytes               | Aji, Heafield 2017; Stich, Cordonnier, Jaggi 2018  |
| random-k | k values, the 8 bytes that they are drawn by | Stich, Cordonnier, Jaggi 2018                      |
| int8     | d bytes, a float32 of each 1024              | QSGD: Alistarh, Grubic, Li, Tomioka, Vojnovic 2017 |
| int4     | d/2 bytes, a float32 of each 1024            | QSGD                                               |
| sign     | d/8 bytes, a float32 of each 1024            | Karimireddy, Rebjock, Stich, Jaggi 2019            |

k = ratio d, at least 1. All but the random numbers, which NumPy draws, is tensor arithmetic where the vectors lie, on
the CPU or a GPU.
"""

from __future__ import annotations

import math
from typing import Literal

import numpy as np
from pydantic import BaseModel, Field

from grsgd.lazy import LazyModule
from grsgd.models.flat import Flat
from grsgd.seeding import Purpose, generator

torch = LazyModule("torch")

BLOCK = 1024
"""Values with a scale of their own, where values are rounded."""


Kind = Literal["none", "top-k", "random-k", "int8", "int4", "sign"]
RATIO = 0.01


class CompressionOptions(BaseModel):
    """Options of algorithms that compress what they send."""

    compression: Kind | None = Field(
        None, description="of what is sent: the k largest values or k random ones, or all, rounded"
    )
    ratio: float | None = Field(
        None, gt=0, le=1, description=f"top-k, random-k: share of the values that is sent; {RATIO:g} by default"
    )

    @property
    def compresses(self) -> bool:
        """Whether less than all is sent, as far as the options say."""
        return self.compression not in (None, "none")


class Compressor:
    """Turns vectors of one length into payloads, and back.

    Parameters
    ----------
    size
        d, elements of a vector.
    dtype
        Of its elements: torch.float16, float32 or float64.
    device
        Where vectors and payloads lie.
    """

    nbytes: int
    """Of a payload, everything that is sent included."""

    def __init__(self, size: int, dtype: torch.dtype, device: torch.device):
        self.size, self.dtype, self.device = size, dtype, device

    def payload(self) -> Flat:
        """Return the memory of a payload, uint8 of ``nbytes``."""
        return Flat.zeros(self.nbytes, torch.uint8, self.device)

    def encode(self, x: torch.Tensor, payload: torch.Tensor, key: tuple[int, ...]):
        """Write what is to be sent of ``x`` into ``payload``; ``key``: (seed, rank, step), of what is random."""
        raise NotImplementedError

    def decode(self, payload: torch.Tensor, out: torch.Tensor):
        """Set ``out`` to what the receiver makes of a payload."""
        raise NotImplementedError


class Whole(Compressor):
    """All values as they are."""

    def __init__(self, size, dtype, device):
        super().__init__(size, dtype, device)
        self.nbytes = size * dtype.itemsize

    def encode(self, x, payload, key):
        payload.view(self.dtype).copy_(x)

    def decode(self, payload, out):
        out.copy_(payload.view(self.dtype))


class TopK(Compressor):
    """The k values of the largest magnitude; nothing is lost where k = d."""

    def __init__(self, size, dtype, device, ratio: float):
        super().__init__(size, dtype, device)
        if size > 2**31 - 1:
            raise ValueError(f"{size} values: indices of 4 bytes reach {2**31 - 1}")
        self.k = max(1, round(ratio * size))
        self.nbytes = (dtype.itemsize + 4) * self.k

    def parts(self, payload: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return where the values and their indices lie: the wider ones first, so that both are aligned."""
        if self.dtype.itemsize < 4:
            return payload[4 * self.k :].view(self.dtype), payload[: 4 * self.k].view(torch.int32)
        end = self.dtype.itemsize * self.k
        return payload[:end].view(self.dtype), payload[end:].view(torch.int32)

    def encode(self, x, payload, key):
        values, indices = self.parts(payload)
        indices.copy_(x.abs().topk(self.k, sorted=False).indices)
        values.copy_(x[indices.long()])

    def decode(self, payload, out):
        values, indices = self.parts(payload)
        out.zero_()
        out.index_copy_(0, indices.long(), values)


class RandomK(Compressor):
    """k values, at places that sender and receiver draw alike."""

    def __init__(self, size, dtype, device, ratio: float):
        super().__init__(size, dtype, device)
        self.k = max(1, round(ratio * size))
        self.nbytes = self.k * dtype.itemsize + 8

    def encode(self, x, payload, key):
        seed = int(generator(Purpose.COMPRESSION, *key).integers(2**63))
        payload[:8].view(torch.int64).fill_(seed)
        payload[8:].view(self.dtype).copy_(x[self.places(payload)])

    def decode(self, payload, out):
        out.zero_()
        out.index_copy_(0, self.places(payload), payload[8:].view(self.dtype))

    def places(self, payload) -> torch.Tensor:
        """Return where the values of a payload lie, int64 of shape [k]."""
        if payload.is_meta:
            return torch.zeros(self.k, dtype=torch.int64, device=payload.device)
        random = generator(Purpose.COMPRESSION, int(payload[:8].view(torch.int64)))
        return torch.from_numpy(random.choice(self.size, self.k, replace=False, shuffle=False)).to(payload.device)


class InBlocks(Compressor):
    """Every value as a few bits, times the scale of its block."""

    bits: int

    def __init__(self, size, dtype, device):
        super().__init__(size, dtype, device)
        self.blocks = -(-size // BLOCK)
        self.padded = self.blocks * BLOCK
        self.code_bytes = -(-size * self.bits // 8)
        self.nbytes = 4 * self.blocks + self.code_bytes

    def rows(self, x: torch.Tensor) -> torch.Tensor:
        """Return the values as [blocks, BLOCK], with zeros behind them."""
        return torch.nn.functional.pad(x, (0, self.padded - self.size)).view(self.blocks, BLOCK)

    def scales(self, payload: torch.Tensor) -> torch.Tensor:
        """The place of the scales, float32 of shape [blocks]."""
        return payload[: 4 * self.blocks].view(torch.float32)

    def write(self, codes: torch.Tensor, payload: torch.Tensor):
        """Pack codes, uint8 below 2**bits of shape [blocks, BLOCK], the first of a byte in its lowest bits."""
        each = 8 // self.bits
        shifts = torch.arange(each, device=codes.device, dtype=torch.uint8) * self.bits
        packed = (codes.view(-1, each) << shifts).sum(1, dtype=torch.uint8)
        payload[4 * self.blocks :].copy_(packed[: self.code_bytes])

    def read(self, payload: torch.Tensor) -> torch.Tensor:
        """Return the codes of a payload."""
        each = 8 // self.bits
        shifts = torch.arange(each, device=payload.device, dtype=torch.uint8) * self.bits
        codes = (payload[4 * self.blocks :, None] >> shifts) & (2**self.bits - 1)
        return torch.nn.functional.pad(codes.view(-1), (0, self.padded - codes.numel())).view(self.blocks, BLOCK)


class Rounded(InBlocks):
    """Whole multiples of a scale, -L to L, rounded up or down at random so that the mean is x."""

    def encode(self, x, payload, key):
        rows, L = self.rows(x), 2 ** (self.bits - 1) - 1
        scales = (rows.abs().amax(1) / L).to(torch.float32)
        self.scales(payload).copy_(scales)
        # Of a scale that is no number, infinite or 0, the codes do not matter: what comes out is not, or is 0.
        multiples = torch.nan_to_num(rows / torch.where(scales > 0, scales, 1)[:, None])
        up = uniform(self.padded, x.device, key).view_as(rows)
        codes = (multiples + up).floor().clamp(-L, L) + L
        self.write(codes.to(torch.uint8), payload)

    def decode(self, payload, out):
        L = 2 ** (self.bits - 1) - 1
        values = (self.read(payload).to(out.dtype) - L) * self.scales(payload)[:, None].to(out.dtype)
        out.copy_(values.view(-1)[: self.size])


class Int8(Rounded):
    bits = 8


class Int4(Rounded):
    bits = 4


class Sign(InBlocks):
    """The sign of every value, times the mean magnitude of its block."""

    bits = 1

    def encode(self, x, payload, key):
        rows = self.rows(x)
        counts = torch.full((self.blocks,), float(BLOCK), device=x.device)
        counts[-1] -= self.padded - self.size
        self.scales(payload).copy_(rows.abs().sum(1) / counts)
        self.write((rows >= 0).to(torch.uint8), payload)

    def decode(self, payload, out):
        values = (2 * self.read(payload).to(out.dtype) - 1) * self.scales(payload)[:, None].to(out.dtype)
        out.copy_(values.view(-1)[: self.size])


COMPRESSORS: dict[str, type[Compressor]] = {
    "none": Whole,
    "top-k": TopK,
    "random-k": RandomK,
    "int8": Int8,
    "int4": Int4,
    "sign": Sign,
}


def make_compressor(options: CompressionOptions, x: Flat) -> Compressor:
    """Return the compressor of these options for vectors like ``x``."""
    cls = COMPRESSORS[options.compression or "none"]
    ratio = {"ratio": options.ratio or RATIO} if cls in (TopK, RandomK) else {}
    return cls(x.tensor.numel(), x.tensor.dtype, x.tensor.device, **ratio)


def uniform(size: int, device: torch.device, key: tuple[int, ...]) -> torch.Tensor:
    """Return random numbers from 0 to 1, float32."""
    if device.type == "meta":
        return torch.zeros(size, device=device)
    return torch.from_numpy(generator(Purpose.COMPRESSION, *key).random(size, np.float32)).to(device)


def is_finite(x: torch.Tensor) -> bool:
    """Whether all values are numbers; without content they are."""
    return x.is_meta or bool(torch.isfinite(x).all())


class ErrorFeedback:
    """Compresses vectors one after the other, and adds what each has left out to the next one::

        p = x + e
        payload = encode(p)
        e = p - decode(payload)

    So nothing is lost for ever, and biased compressors converge. Source: Seide, Fu, Droppo, Li, Yu 2014, 1-bit SGD;
    in Karimireddy, Rebjock, Stich, Jaggi 2019 the learning rate is part of what is compressed.

    Of a vector that is not finite all values are sent as NaN, and e stays as it is.

    ``key``: (seed, rank), of what is random.
    """

    def __init__(self, compressor: Compressor, key: tuple[int, ...]):
        self.compressor, self.key = compressor, key
        self.e = torch.zeros(compressor.size, dtype=compressor.dtype, device=compressor.device)
        self.decoded = torch.zeros_like(self.e)
        """What the receivers make of the last payload."""

    def encode(self, x: torch.Tensor, payload: torch.Tensor, number: int):
        """Write what is to be sent of ``x``, the vector of this number, and of what is left of earlier ones."""
        if not is_finite(x):
            self.compressor.encode(torch.full_like(x, math.nan), payload, (*self.key, number))
            return
        self.e.add_(x)
        self.compressor.encode(self.e, payload, (*self.key, number))
        self.compressor.decode(payload, self.decoded)
        self.e.sub_(self.decoded)
