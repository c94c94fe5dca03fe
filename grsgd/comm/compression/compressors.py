"""Compression of what is sent: a vector of the model's size becomes a payload of fewer bytes, and back.

| name     | payload of d values                          | source                                             |
|----------|----------------------------------------------|----------------------------------------------------|
| none     | d values                                     |                                                    |
| top-k    | k values, k indices of 4 bytes               | Aji, Heafield 2017; Stich, Cordonnier, Jaggi 2018  |
| random-k | k values, the 8 bytes that they are drawn by | Stich, Cordonnier, Jaggi 2018                      |
| int8     | d bytes, a float32 of each 1024              | QSGD: Alistarh, Grubic, Li, Tomioka, Vojnovic 2017 |
| int4     | d/2 bytes, a float32 of each 1024            | QSGD                                               |
| sign     | d/8 bytes, a float32 of each 1024            | Karimireddy, Rebjock, Stich, Jaggi 2019            |

k = ratio d, at least 1. float32 and float64 on the CPU have compiled loops (`loops`, beside this file); the rest is
tensor arithmetic where the vectors lie, which finds the same.
"""

from __future__ import annotations

import math
from typing import Literal

import numpy as np
from pydantic import BaseModel, Field, model_validator

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

    @model_validator(mode="after")
    def ratio_of_something(self):
        asked_for = self.ratio is not None and type(self).model_fields["ratio"].default is None
        if asked_for and self.compression not in ("top-k", "random-k"):
            raise ValueError(f'ratio = {self.ratio:g}: needs compression = "top-k" or "random-k"')
        return self

    @property
    def compresses(self) -> bool:
        """Whether less than all is sent, as far as the options say."""
        return self.compression not in (None, "none")


class RoundingOptions(BaseModel):
    """Options of algorithms that send models, of which no value can be left out."""

    compression: Literal["none", "int8", "int4"] | None = Field(
        None, description="of the models that are sent: rounded values"
    )

    @property
    def compresses(self) -> bool:
        """Whether values are rounded."""
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
        self.k = min(size, max(1, round(ratio * size)))
        self.nbytes = (dtype.itemsize + 4) * self.k

    def parts(self, payload: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return where the values and their indices lie: the wider ones first, so that both are aligned."""
        if self.dtype.itemsize < 4:
            return payload[4 * self.k :].view(self.dtype), payload[: 4 * self.k].view(torch.int32)
        end = self.dtype.itemsize * self.k
        return payload[:end].view(self.dtype), payload[end:].view(torch.int32)

    def encode(self, x, payload, key):
        values, indices = self.parts(payload)
        if cpu := loops(x):
            cpu.largest(x.numpy(), self.k, values.numpy(), indices.numpy())
        else:
            indices.copy_(x.abs().topk(self.k, sorted=False).indices)
            values.copy_(x[indices.long()])

    def decode(self, payload, out):
        values, indices = self.parts(payload)
        out.zero_()
        out.index_copy_(0, indices.long(), values)


class RandomK(Compressor):
    """k values, at places that sender and receiver draw alike: one in each of k equal parts of the vector, whose edges
    are shifted at random, so that all places are equally likely."""

    def __init__(self, size, dtype, device, ratio: float):
        super().__init__(size, dtype, device)
        self.k = min(size, max(1, round(ratio * size)))
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
        if payload.is_meta or not self.size:
            return torch.zeros(self.k, dtype=torch.int64, device=payload.device)
        random = generator(Purpose.COMPRESSION, int(payload[:8].view(torch.int64)))
        edges = np.arange(self.k + 1) * self.size // self.k
        places = edges[:-1] + (random.random(self.k) * np.diff(edges)).astype(np.int64) + random.integers(self.size)
        return torch.from_numpy(places % self.size).to(payload.device)


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

    def codes(self, payload: torch.Tensor) -> torch.Tensor:
        """The place of the codes."""
        return payload[4 * self.blocks :]

    def write(self, codes: torch.Tensor, payload: torch.Tensor):
        """Pack codes, uint8 below 2**bits of shape [blocks, BLOCK], the first of a byte in its lowest bits."""
        each = 8 // self.bits
        shifts = torch.arange(each, device=codes.device, dtype=torch.uint8) * self.bits
        packed = (codes.view(-1, each) << shifts).sum(1, dtype=torch.uint8)
        self.codes(payload).copy_(packed[: self.code_bytes])

    def read(self, payload: torch.Tensor) -> torch.Tensor:
        """Return the codes of a payload."""
        each = 8 // self.bits
        shifts = torch.arange(each, device=payload.device, dtype=torch.uint8) * self.bits
        codes = (self.codes(payload)[:, None] >> shifts) & (2**self.bits - 1)
        return torch.nn.functional.pad(codes.view(-1), (0, self.padded - codes.numel())).view(self.blocks, BLOCK)


class Rounded(InBlocks):
    """Whole multiples of a scale, -L to L, rounded up or down at random so that the mean is x."""

    def encode(self, x, payload, key):
        seed = int(generator(Purpose.COMPRESSION, *key).integers(2**32))
        if cpu := loops(x):
            places = self.scales(payload).numpy(), self.codes(payload).numpy()
            cpu.round_blocks(x.numpy(), BLOCK, self.bits, seed, *places)
            return
        rows, L = self.rows(x), 2 ** (self.bits - 1) - 1
        largest = rows.abs().amax(1).to(torch.float32)
        scales = largest / torch.full_like(largest, L)  # on a GPU, torch multiplies by 1 / L if it is a number
        self.scales(payload).copy_(scales)
        # Of a scale that is no number, infinite or 0, the codes do not matter: what comes out is not, or is 0.
        inverses = torch.where(scales > 0, scales, 1).to(torch.float64).reciprocal().to(x.dtype)
        multiples = torch.nan_to_num(rows * inverses[:, None])
        up = uniform(self.padded, x.device, seed).view_as(rows)
        codes = (multiples + up).floor().clamp(-L, L) + L
        self.write(codes.to(torch.uint8), payload)

    def decode(self, payload, out):
        if cpu := loops(out):
            expand = cpu.expand_bytes if self.bits == 8 else cpu.expand_halves
            expand(self.codes(payload).numpy(), BLOCK, self.scales(payload).numpy(), out.numpy())
            return
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
        if cpu := loops(x):
            cpu.signs(x.numpy(), BLOCK, self.scales(payload).numpy(), self.codes(payload).numpy())
            return
        rows = self.rows(x)
        counts = torch.full((self.blocks,), float(BLOCK), device=x.device)
        counts[-1] -= self.padded - self.size
        self.scales(payload).copy_(rows.abs().sum(1) / counts)
        self.write((rows >= 0).to(torch.uint8), payload)

    def decode(self, payload, out):
        if cpu := loops(out):
            cpu.expand_signs(self.codes(payload).numpy(), BLOCK, self.scales(payload).numpy(), out.numpy())
            return
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


def make_compressor(options: CompressionOptions, x: torch.Tensor) -> Compressor:
    """Return the compressor of these options for vectors like ``x``."""
    cls = COMPRESSORS[options.compression or "none"]
    ratio = {"ratio": options.ratio or RATIO} if cls in (TopK, RandomK) else {}
    if loops(x):  # which are compiled now, and not in the first step
        warm_up(cls(2, x.dtype, x.device, **ratio))
    return cls(x.numel(), x.dtype, x.device, **ratio)


def warm_up(compressor: Compressor):
    """Encode and decode a few values."""
    payload = compressor.payload().tensor
    x = torch.ones(compressor.size, dtype=compressor.dtype)
    compressor.encode(x, payload, (0,))
    compressor.decode(payload, x)


def loops(x: torch.Tensor):
    """Return the compiled loops for vectors like ``x``; None if there are none."""
    if x.device.type != "cpu" or x.dtype not in (torch.float32, torch.float64) or not x.is_contiguous():
        return None
    from grsgd.comm.compression import loops as compression_cpu

    return compression_cpu


def uniform(size: int, device: torch.device, seed: int) -> torch.Tensor:
    """Return random numbers from 0 to 1, float32 of shape [size]: the numbers that `uniform` of the loops makes."""
    h = torch.arange(size, dtype=torch.int32, device=device).bitwise_xor_(signed(seed))
    h.bitwise_xor_(shifted(h, 16)).mul_(0x7FEB352D)
    h.bitwise_xor_(shifted(h, 15)).mul_(signed(0x846CA68B))
    h.bitwise_xor_(shifted(h, 16))
    return shifted(h, 8).to(torch.float32).mul_(2.0**-24)


def signed(bits: int) -> int:
    """Return the number of int32 with these 32 bits."""
    return bits - 2**32 if bits >= 2**31 else bits


def shifted(h: torch.Tensor, by: int) -> torch.Tensor:
    """Return the bits of int32 shifted to the right, with zeros coming in."""
    return h.bitwise_right_shift(by).bitwise_and_(2 ** (32 - by) - 1)


def is_finite(x: torch.Tensor) -> bool:
    """Whether all values are numbers; without content they are."""
    return x.is_meta or not x.numel() or all(math.isfinite(end) for end in torch.aminmax(x))  # a NaN is both ends


class ErrorFeedback:
    """Compresses vectors one after the other, and adds what each has left out to the next one::

        p = x + e
        payload = encode(p)
        e = p - decode(payload)

    So nothing is lost for ever, and biased compressors converge. Source: Seide, Fu, Droppo, Li, Yu 2014, 1-bit SGD;
    in Karimireddy, Rebjock, Stich, Jaggi 2019 the learning rate is part of what is compressed.

    Of a vector that is not finite all values are sent as NaN, and e stays as it is.

    ``key``: (seed, rank), of what is random; ``e``: memory for what is left out, zeros.
    """

    def __init__(self, compressor: Compressor, key: tuple[int, ...], e: torch.Tensor | None = None):
        self.compressor, self.key = compressor, key
        of = {"dtype": compressor.dtype, "device": compressor.device}
        self.e = torch.zeros(compressor.size, **of) if e is None else e
        self.decoded = torch.zeros_like(self.e)
        """The vector that receivers make of the last payload."""

    def encode(self, x: torch.Tensor, payload: torch.Tensor, number: int):
        """Write what is to be sent of ``x``, the vector of this number, and of what is left of earlier ones."""
        if not is_finite(x):
            self.compressor.encode(torch.full_like(x, math.nan), payload, (*self.key, number))
            return
        self.e.add_(x)
        self.compressor.encode(self.e, payload, (*self.key, number))
        self.compressor.decode(payload, self.decoded)
        self.e.sub_(self.decoded)
