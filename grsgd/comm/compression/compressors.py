"""Compressors, which encode a vector of d values as a payload of fewer bytes. The sender encodes a vector, and the
receivers decode the payload.

| name     | payload of d values                          | source                                             |
|----------|----------------------------------------------|----------------------------------------------------|
| none     | d values                                     |                                                    |
| top-k    | k values, k indices of 4 bytes               | Aji, Heafield 2017; Stich, Cordonnier, Jaggi 2018  |
| random-k | k values, 8 bytes of a seed of their places  | Stich, Cordonnier, Jaggi 2018                      |
| int8     | d bytes, a float32 per 1024 values           | QSGD: Alistarh, Grubic, Li, Tomioka, Vojnovic 2017 |
| int4     | d/2 bytes, a float32 per 1024 values         | QSGD                                               |
| sign     | d/8 bytes, a float32 per 1024 values         | Karimireddy, Rebjock, Stich, Jaggi 2019            |

The number k of sent values is the option ``ratio`` times d, rounded, but at least 1. Vectors of float32 and float64 on
the CPU have compiled loops (`grsgd.comm.compression.loops`). Other vectors are compressed by torch on their own device,
with the same results.
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
"""Number of consecutive values in a block. The compressors int8, int4 and sign send one scale (a factor) per block."""


Kind = Literal["none", "top-k", "random-k", "int8", "int4", "sign"]
RATIO = 0.01


class CompressionOptions(BaseModel):
    """Options of algorithms that compress the vectors that they send."""

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
        """Return whether the option ``compression`` chooses a compressor that changes values."""
        return self.compression not in (None, "none")


class RoundingOptions(BaseModel):
    """Options of algorithms that send whole models. An algorithm that sends whole models can round values, but can
    leave out no value."""

    compression: Literal["none", "int8", "int4"] | None = Field(
        None, description="compression of sent models: rounded values"
    )

    @property
    def compresses(self) -> bool:
        """Return whether the option ``compression`` chooses a compressor that rounds values."""
        return self.compression not in (None, "none")


class Compressor:
    """Base class of compressors: a conversion of vectors of one length into payloads, and back.

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
    """Number of bytes of a payload. The receiver needs only the payload to decode the vector."""

    def __init__(self, size: int, dtype: torch.dtype, device: torch.device):
        self.size, self.dtype, self.device = size, dtype, device

    def payload(self) -> Flat:
        """Return new memory for a payload: uint8 of shape [``nbytes``]."""
        return Flat.zeros(self.nbytes, torch.uint8, self.device)

    def encode(self, x: torch.Tensor, payload: torch.Tensor, key: tuple[int, ...]):
        """Write the compressed vector ``x`` into ``payload``. ``key``: (seed, rank, step), on which random numbers
        depend."""
        raise NotImplementedError

    def encode_difference(
        self, x: torch.Tensor, y: torch.Tensor, payload: torch.Tensor, key: tuple[int, ...], scratch: torch.Tensor
    ):
        """Write the compressed vector ``x - y`` into ``payload``. ``key``: (seed, rank, step), on which random numbers
        depend.

        ``scratch`` has the length of ``x``, and may be ``x`` itself. After the call, the content of ``scratch`` is
        undefined.
        """
        self.encode(torch.sub(x, y, out=scratch), payload, key)

    def decode(self, payload: torch.Tensor, out: torch.Tensor):
        """Set ``out`` to the vector that the receiver decodes from ``payload``."""
        raise NotImplementedError

    def add(self, payload: torch.Tensor, sums: list[tuple[float, torch.Tensor]], scratch: torch.Tensor):
        """Decode ``payload``, and add the vector to each tensor in ``sums``, multiplied by the tensor's weight.
        ``sums``: pairs (weight, tensor).

        ``scratch`` has the length of the vector. After the call, the content of ``scratch`` is undefined.
        """
        self.decode(payload, scratch)
        for weight, tensor in sums:
            tensor.add_(scratch, alpha=weight)


class SomeValues(Compressor):
    """Base class of compressors that send some values of a vector, unchanged. The receiver decodes a vector in which
    all other values are 0."""

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
    """Compressor that sends all values of a vector, unchanged."""

    def __init__(self, size, dtype, device):
        super().__init__(size, dtype, device)
        self.nbytes = size * dtype.itemsize

    def encode(self, x, payload, key):
        payload.view(self.dtype).copy_(x)

    def decode(self, payload, out):
        out.copy_(payload.view(self.dtype))


class TopK(SomeValues):
    """Compressor that sends the k values of the largest magnitude and their indices. If k = d, the receiver decodes the
    whole vector."""

    def __init__(self, size, dtype, device, ratio: float):
        super().__init__(size, dtype, device)
        if size > 2**31 - 1:
            raise ValueError(f"{size} values are too many for top-k, whose indices of 4 bytes reach {2**31 - 1}")
        self.k = min(size, max(1, round(ratio * size)))
        self.nbytes = (dtype.itemsize + 4) * self.k

    def parts(self, payload: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return views of the values in ``payload`` and of the indices of these values. The payload begins with the
        wider of the two dtypes, so that values and indices are aligned."""
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
    """Compressor that sends the values at k random indices. Sender and receiver draw the same indices from one seed,
    which is sent with the values.

    The vector is divided into k equal parts, and one index is drawn from each part. The boundaries of the parts are
    shifted at random, so all indices are equally likely.
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
        """Return the indices in the vector of the values in ``payload``: int64 of shape [k]."""
        if payload.is_meta or not self.size:
            return torch.zeros(self.k, dtype=torch.int64, device=payload.device)
        random = generator(Purpose.COMPRESSION, int(payload[:8].view(torch.int64)))
        edges = np.arange(self.k + 1) * self.size // self.k
        places = edges[:-1] + (random.random(self.k) * np.diff(edges)).astype(np.int64) + random.integers(self.size)
        return torch.from_numpy(places % self.size).to(payload.device)


class InBlocks(Compressor):
    """Base class of compressors that send a code of a few bits per value, and a scale (a factor) per block of values.
    The decoded value is a whole number, given by the code, times the scale of the value's block."""

    bits: int

    def __init__(self, size, dtype, device):
        super().__init__(size, dtype, device)
        self.blocks = -(-size // BLOCK)
        self.padded = self.blocks * BLOCK
        self.code_bytes = -(-size * self.bits // 8)
        self.nbytes = 4 * self.blocks + self.code_bytes

    def rows(self, x: torch.Tensor) -> torch.Tensor:
        """Return the values of ``x`` in the shape [blocks, BLOCK], padded with zeros at the end."""
        return torch.nn.functional.pad(x, (0, self.padded - self.size)).view(self.blocks, BLOCK)

    def scales(self, payload: torch.Tensor) -> torch.Tensor:
        """Return a view of the scales in ``payload``: float32 of shape [blocks]."""
        return payload[: 4 * self.blocks].view(torch.float32)

    def codes(self, payload: torch.Tensor) -> torch.Tensor:
        """Return a view of the packed codes in ``payload``: uint8 of shape [code_bytes]."""
        return payload[4 * self.blocks :]

    def write(self, codes: torch.Tensor, payload: torch.Tensor):
        """Pack ``codes``, uint8 below 2**bits of shape [blocks, BLOCK], into ``payload``. The first code in a byte is
        in the lowest bits of the byte."""
        each = 8 // self.bits
        shifts = torch.arange(each, device=codes.device, dtype=torch.uint8) * self.bits
        packed = (codes.view(-1, each) << shifts).sum(1, dtype=torch.uint8)
        self.codes(payload).copy_(packed[: self.code_bytes])

    def read(self, payload: torch.Tensor) -> torch.Tensor:
        """Return the unpacked codes in ``payload``: uint8 of shape [blocks, BLOCK]."""
        each = 8 // self.bits
        shifts = torch.arange(each, device=payload.device, dtype=torch.uint8) * self.bits
        codes = (self.codes(payload)[:, None] >> shifts) & (2**self.bits - 1)
        return torch.nn.functional.pad(codes.view(-1), (0, self.padded - codes.numel())).view(self.blocks, BLOCK)


class Rounded(InBlocks):
    """Base class of compressors that round each value to a multiple, from -L to L, of the scale of the value's block.
    Values are rounded up or down at random, such that the expectation of the rounded value is the value."""

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
        # If the scale of a block is NaN, infinite or 0, the codes of the block do not matter, because every decoded
        # value is not finite, or 0.
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
    """Compressor that sends the sign of every value, and the mean magnitude of every block of values. The decoded value
    is the sign times the mean magnitude of the value's block."""

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
    if loops(x):  # compile the loops now, and not in the first training step
        warm_up(cls(2, x.dtype, x.device, **ratio))
    return cls(x.numel(), x.dtype, x.device, **ratio)


def payload_share(options: CompressionOptions) -> float:
    """Return the size in bytes of a long vector's payload, as a share of the vector's size in float32."""
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
    """Return the module of compiled loops if the loops can process ``x``, a contiguous tensor of float32 or float64 on
    the CPU. Return None for other tensors."""
    if x.device.type != "cpu" or x.dtype not in (torch.float32, torch.float64) or not x.is_contiguous():
        return None
    from grsgd.comm.compression import loops as compression_cpu

    return compression_cpu


def uniform(size: int, device: torch.device, seed: int) -> torch.Tensor:
    """Return random numbers from 0 to 1 (float32 of shape [size]) that equal the results of `loops.uniform`."""
    h = torch.arange(size, dtype=torch.int32, device=device).bitwise_xor_(signed(seed))
    h.bitwise_xor_(shifted(h, 16)).mul_(0x7FEB352D)
    h.bitwise_xor_(shifted(h, 15)).mul_(signed(0x846CA68B))
    h.bitwise_xor_(shifted(h, 16))
    return shifted(h, 8).to(torch.float32).mul_(2.0**-24)


def signed(bits: int) -> int:
    """Return the int32 number that has the same 32 bits as the unsigned number ``bits``."""
    return bits - 2**32 if bits >= 2**31 else bits


def shifted(h: torch.Tensor, by: int) -> torch.Tensor:
    """Return ``h`` (int32) with the bits of each number shifted to the right by ``by`` bits, and zeros shifted in."""
    return h.bitwise_right_shift(by).bitwise_and_(2 ** (32 - by) - 1)
