"""Compressors, which encode a vector of d values as a payload (array of bytes) that is shorter than the vector. The
sender encodes a vector as a payload, and the receivers decode the payload.

| name     | payload of d values                          | source                                             |
|----------|----------------------------------------------|----------------------------------------------------|
| none     | d values                                     |                                                    |
| top-k    | k values, k indices of 4 bytes               | Aji, Heafield 2017; Stich, Cordonnier, Jaggi 2018  |
| random-k | k values, 8 bytes of a seed of their places  | Stich, Cordonnier, Jaggi 2018                      |
| int8     | d bytes, a float32 per 1024 values           | QSGD: Alistarh, Grubic, Li, Tomioka, Vojnovic 2017 |
| int4     | d/2 bytes, a float32 per 1024 values         | QSGD                                               |
| sign     | d/8 bytes, a float32 per 1024 values         | Karimireddy, Rebjock, Stich, Jaggi 2019            |

The number k of values that top-k and random-k send is the option ``ratio`` times d, rounded, but at least 1. Vectors of
float32 and float64 on the CPU are compressed by compiled loops (`grsgd.comm.compression.loops`). Vectors of other
dtypes or on a GPU are compressed by torch on their own device, with the same results.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
from pydantic import BaseModel, Field, model_validator

from grsgd.lazy import LazyModule
from grsgd.models.flat import Flat
from grsgd.seeding import Purpose, generator

torch = LazyModule("torch")

BLOCK = 1024
"""Number of successive values in a block. The compressors int8, int4 and sign send one scale factor per block."""


Kind = Literal["none", "top-k", "random-k", "int8", "int4", "sign"]
RATIO = 0.01


class CompressionOptions(BaseModel):
    """Options of algorithms that compress the vectors that ranks send."""

    compression: Kind | None = Field(
        None, description="compression of sent vectors: the k largest values, k random values, or all values rounded"
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
        """Return True if the option ``compression`` chooses a compressor that changes the values that ranks send."""
        return self.compression not in (None, "none")


class RoundingOptions(BaseModel):
    """Options of algorithms that send the parameter vectors of whole models. An algorithm that sends whole models can
    round the values, but can leave no value out."""

    compression: Literal["none", "int8", "int4"] | None = Field(
        None, description="compression of sent models: rounded values"
    )

    @property
    def compresses(self) -> bool:
        """Return True if the option ``compression`` chooses a compressor that rounds the values that ranks send."""
        return self.compression not in (None, "none")


class Compressor:
    """Base class of compressors, which encode vectors of one length as payloads, and decode the payloads.

    Parameters
    ----------
    size
        Number of elements d of a vector.
    dtype
        Dtype of the elements: torch.float16, float32 or float64.
    device
        Device of vectors and payloads.
    """

    nbytes: int
    """Number of bytes of the payload of one vector. A receiver needs only the payload to decode the vector."""

    def __init__(self, size: int, dtype: torch.dtype, device: torch.device):
        self.size, self.dtype, self.device = size, dtype, device

    def payload(self) -> Flat:
        """Return newly allocated memory for a payload: uint8 of shape [``nbytes``]."""
        return Flat.zeros(self.nbytes, torch.uint8, self.device)

    def encode(self, x: torch.Tensor, payload: torch.Tensor, key: tuple[int, ...]):
        """Compress the vector ``x``, and write the result into ``payload``. ``key``: the integers (seed, rank, step)
        from which the random numbers of the compressor are derived."""
        raise NotImplementedError

    def encode_difference(
        self, x: torch.Tensor, y: torch.Tensor, payload: torch.Tensor, key: tuple[int, ...], scratch: torch.Tensor
    ):
        """Compress the vector ``x - y``, and write the result into ``payload``. ``key``: the integers (seed, rank,
        step) from which the random numbers of the compressor are derived.

        ``scratch`` is a vector of the length of ``x``, and may be ``x`` itself. The method overwrites ``scratch`` with
        meaningless values.
        """
        self.encode(torch.sub(x, y, out=scratch), payload, key)

    def decode(self, payload: torch.Tensor, out: torch.Tensor):
        """Set ``out`` to the vector that a receiver decodes from ``payload``."""
        raise NotImplementedError

    def add(self, payload: torch.Tensor, sums: list[tuple[float, torch.Tensor]], scratch: torch.Tensor):
        """Decode ``payload``, and add the vector, times each tensor's weight, to each tensor in ``sums``.
        ``sums``: pairs (weight, tensor).

        ``scratch`` has the length of the decoded vector. The method overwrites ``scratch`` with meaningless values.
        """
        self.decode(payload, scratch)
        for weight, tensor in sums:
            tensor.add_(scratch, alpha=weight)


class SomeValues(Compressor):
    """Base class of compressors that send some values of a vector, without rounding them. In the vector that a receiver
    decodes, the values that were not sent are 0."""

    def parts(self, payload: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the values in ``payload``, and the indices of these values in the vector."""
        raise NotImplementedError

    def decode(self, payload, out):
        values, places = self.parts(payload)
        out.zero_()
        out.index_copy_(0, places.long(), values)

    def add(self, payload, sums, scratch):
        values, places = self.parts(payload)
        if cpu := loops(scratch):
            for weight, tensor in sums:
                number = scratch.numpy().dtype.type(weight)
                cpu.add_at(places.numpy(), values.numpy(), number, tensor.numpy())
            return
        super().add(payload, sums, scratch)


class Whole(Compressor):
    """Compressor that sends all values of a vector, without rounding them."""

    def __init__(self, size, dtype, device):
        super().__init__(size, dtype, device)
        self.nbytes = size * dtype.itemsize

    def encode(self, x, payload, key):
        payload.view(self.dtype).copy_(x)

    def decode(self, payload, out):
        out.copy_(payload.view(self.dtype))


class TopK(SomeValues):
    """Compressor that sends the k values of a vector with the largest magnitudes, and their indices. If k is the length
    of the vector, the receiver decodes the whole vector."""

    def __init__(self, size, dtype, device, ratio: float):
        super().__init__(size, dtype, device)
        if size > 2**31 - 1:
            raise ValueError(f"{size} values are too many for top-k, whose indices of 4 bytes reach {2**31 - 1}")
        self.k = min(size, max(1, round(ratio * size)))
        self.nbytes = (dtype.itemsize + 4) * self.k

    def parts(self, payload: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return views of ``payload``: the values, and the indices of these values in the vector. The payload begins
        with the array (values or indices) of wider elements, so that both arrays are aligned in memory."""
        if self.dtype.itemsize < 4:
            return payload[4 * self.k :].view(self.dtype), payload[: 4 * self.k].view(torch.int32)
        end = self.dtype.itemsize * self.k
        return payload[:end].view(self.dtype), payload[end:].view(torch.int32)

    def encode(self, x, payload, key):
        values, indices = self.parts(payload)
        if cpu := loops(x):
            cpu.largest(x.numpy(), None, self.k, values.numpy(), indices.numpy())
        else:
            indices.copy_(x.abs().topk(self.k, sorted=False).indices)
            values.copy_(x[indices.long()])

    def encode_difference(self, x, y, payload, key, scratch):
        values, indices = self.parts(payload)
        if cpu := loops(x):
            cpu.largest(x.numpy(), y.numpy(), self.k, values.numpy(), indices.numpy())
        else:
            super().encode_difference(x, y, payload, key, scratch)


class RandomK(SomeValues):
    """Compressor that sends the values of a vector at k random indices. Sender and receivers draw the same indices from
    one random seed, which is sent with the values.

    The vector is divided into k equal parts, and one index is drawn from each part. The boundaries of the parts are
    shifted at random, so that all indices are equally likely.
    """

    def __init__(self, size, dtype, device, ratio: float):
        super().__init__(size, dtype, device)
        self.k = min(size, max(1, round(ratio * size)))
        self.nbytes = self.k * dtype.itemsize + 8

    def encode(self, x, payload, key):
        seed = int(generator(Purpose.COMPRESSION, *key).integers(2**63))
        payload[:8].view(torch.int64).fill_(seed)
        payload[8:].view(self.dtype).copy_(x[self.places(payload)])

    def parts(self, payload):
        return payload[8:].view(self.dtype), self.places(payload)

    def places(self, payload) -> torch.Tensor:
        """Return the indices, in the vector, of the values that ``payload`` contains: int64 of shape [k]."""
        if payload.is_meta or not self.size:
            return torch.zeros(self.k, dtype=torch.int64, device=payload.device)
        random = generator(Purpose.COMPRESSION, int(payload[:8].view(torch.int64)))
        edges = np.arange(self.k + 1) * self.size // self.k
        places = edges[:-1] + (random.random(self.k) * np.diff(edges)).astype(np.int64) + random.integers(self.size)
        return torch.from_numpy(places % self.size).to(payload.device)


class InBlocks(Compressor):
    """Base class of compressors that send a code of a few bits per value, and a scale factor per block of values. The
    decoded value is a whole number that the code represents, times the scale factor of the value's block."""

    bits: int

    def __init__(self, size, dtype, device):
        super().__init__(size, dtype, device)
        self.blocks = -(-size // BLOCK)
        self.padded = self.blocks * BLOCK
        self.code_bytes = -(-size * self.bits // 8)
        self.nbytes = 4 * self.blocks + self.code_bytes

    def rows(self, x: torch.Tensor) -> torch.Tensor:
        """Return the values of the vector ``x``, padded with zeros at the end, in the shape [blocks, BLOCK]."""
        return torch.nn.functional.pad(x, (0, self.padded - self.size)).view(self.blocks, BLOCK)

    def scales(self, payload: torch.Tensor) -> torch.Tensor:
        """Return a view of the blocks' scale factors in ``payload``: float32 of shape [blocks]."""
        return payload[: 4 * self.blocks].view(torch.float32)

    def codes(self, payload: torch.Tensor) -> torch.Tensor:
        """Return a view of the packed codes of all values in ``payload``: uint8 of shape [code_bytes]."""
        return payload[4 * self.blocks :]

    def write(self, codes: torch.Tensor, payload: torch.Tensor):
        """Pack ``codes``, an array of uint8 numbers below 2**bits of shape [blocks, BLOCK], into ``payload``. Each byte
        of the payload contains its first code in its lowest bits."""
        each = 8 // self.bits
        shifts = torch.arange(each, device=codes.device, dtype=torch.uint8) * self.bits
        packed = (codes.view(-1, each) << shifts).sum(1, dtype=torch.uint8)
        self.codes(payload).copy_(packed[: self.code_bytes])

    def read(self, payload: torch.Tensor) -> torch.Tensor:
        """Return the codes of all values in ``payload``, unpacked: uint8 of shape [blocks, BLOCK]."""
        each = 8 // self.bits
        shifts = torch.arange(each, device=payload.device, dtype=torch.uint8) * self.bits
        codes = (self.codes(payload)[:, None] >> shifts) & (2**self.bits - 1)
        return torch.nn.functional.pad(codes.view(-1), (0, self.padded - codes.numel())).view(self.blocks, BLOCK)


class Rounded(InBlocks):
    """Base class of compressors that round each value to a whole number, from -L to L, times its block's scale factor.
    Values are rounded up or down at random, such that the expectation of a rounded value is the value itself."""

    def encode(self, x, payload, key):
        seed = int(generator(Purpose.COMPRESSION, *key).integers(2**32))
        if cpu := loops(x):
            places = self.scales(payload).numpy(), self.codes(payload).numpy()
            cpu.round_blocks(x.numpy(), BLOCK, self.bits, seed, *places)
            return
        rows, L = self.rows(x), 2 ** (self.bits - 1) - 1
        largest = rows.abs().amax(1).to(torch.float32)
        scales = largest / torch.full_like(largest, L)  # torch on a GPU computes `largest / L` as `largest * (1 / L)`
        self.scales(payload).copy_(scales)
        # If the scale factor of a block is NaN, infinite or 0, the codes of the block do not matter, because every
        # decoded value is then NaN, infinite or 0, whatever its code.
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
    """Compressor that sends the sign of every value of a vector, and the mean magnitude of every block of values. The
    decoded value is the value's sign times the mean magnitude of the value's block."""

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
    """Return the compressor that ``options`` choose, for vectors with the length, dtype and device of ``x``."""
    cls = COMPRESSORS[options.compression or "none"]
    ratio = {"ratio": options.ratio or RATIO} if cls in (TopK, RandomK) else {}
    if loops(x):  # compile the loops now, so that the first training step takes no longer than later steps
        warm_up(cls(2, x.dtype, x.device, **ratio))
    return cls(x.numel(), x.dtype, x.device, **ratio)


def payload_share(options: CompressionOptions) -> float:
    """Return the number of bytes of a long vector's payload, divided by the bytes of the float32 vector."""
    cls, size = COMPRESSORS[options.compression or "none"], 1000 * BLOCK
    ratio = {"ratio": options.ratio or RATIO} if cls in (TopK, RandomK) else {}
    return cls(size, torch.float32, torch.device("cpu"), **ratio).nbytes / (4 * size)


def warm_up(compressor: Compressor):
    """Encode and decode a vector of ones with ``compressor``, so that numba compiles the compressor's loops."""
    payload = compressor.payload().tensor
    x = torch.ones(compressor.size, dtype=compressor.dtype)
    compressor.encode(x, payload, (0,))
    compressor.encode_difference(x, x.clone(), payload, (0,), x.clone())
    compressor.add(payload, [(1.0, x)], x.clone())


def loops(x: torch.Tensor):
    """Return the module of compiled loops if these loops can process ``x``, that is, if ``x`` is a contiguous tensor of
    float32 or float64 on the CPU. If ``x`` is another tensor, return None."""
    if x.device.type != "cpu" or x.dtype not in (torch.float32, torch.float64) or not x.is_contiguous():
        return None
    from grsgd.comm.compression import loops as compression_cpu

    return compression_cpu


def uniform(size: int, device: torch.device, seed: int) -> torch.Tensor:
    """Return the random numbers of `loops.uniform` for ``size`` elements: float32 from 0 to 1, of shape [size]."""
    h = torch.arange(size, dtype=torch.int32, device=device).bitwise_xor_(signed(seed))
    h.bitwise_xor_(shifted(h, 16)).mul_(0x7FEB352D)
    h.bitwise_xor_(shifted(h, 15)).mul_(signed(0x846CA68B))
    h.bitwise_xor_(shifted(h, 16))
    return shifted(h, 8).to(torch.float32).mul_(2.0**-24)


def signed(bits: int) -> int:
    """Return the int32 number that has the same 32 bits as the unsigned number ``bits``."""
    return bits - 2**32 if bits >= 2**31 else bits


def shifted(h: torch.Tensor, by: int) -> torch.Tensor:
    """Return the int32 numbers ``h``, shifted to the right by ``by`` bits, with zeros as the highest bits."""
    return h.bitwise_right_shift(by).bitwise_and_(2 ** (32 - by) - 1)
