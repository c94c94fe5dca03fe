"""The datagrams that a packet is cut into to travel by IP multicast, and what tells those that are wrong.

A datagram has a header, a digest and a part of a packet. The header names the part: the run, the exchange (``round``),
the sender, the packet (``number``, which for all ranks stands for its group, by the plan) and the part's place in it.
The digest is keyed with a secret that only the ranks of the run know. So what was cut short, damaged or made up by
others is told from what a rank of this run has sent.
"""

import hashlib
import hmac
import struct
from typing import NamedTuple

import numpy as np

HEADER = struct.Struct("!4s8sIHII")
MAGIC = b"GRM1"
RUN_BYTES, KEY_BYTES, DIGEST_BYTES = 8, 32, 16
HEAD_BYTES = HEADER.size + DIGEST_BYTES
"""Header and digest of a datagram."""
IP_BYTES = 28
"""Headers of IPv4 and UDP."""


class Name(NamedTuple):
    """The name of a datagram: of an exchange, of a sender's packet, the part with this number."""

    round: int
    sender: int
    number: int
    part: int


class Seal:
    """Makes and checks the heads of the datagrams of one run. ``run``: tells it from others; ``key``: its secret."""

    def __init__(self, run: bytes, key: bytes):
        self.run = run
        self._keyed = hashlib.blake2b(key=key, digest_size=DIGEST_BYTES)

    def head(self, name: Name, content) -> bytes:
        """Return the head of the datagram that carries ``content``."""
        header = HEADER.pack(MAGIC, self.run, *name)
        return header + self._digest(header, content)

    def name_of(self, datagram) -> Name | None:
        """Return what a datagram says it carries; None for one of another run or program. It may be forged."""
        if len(datagram) < HEAD_BYTES:
            return None
        magic, run, *name = HEADER.unpack_from(datagram)
        return Name(*name) if (magic, run) == (MAGIC, self.run) else None

    def content_of(self, datagram):
        """Return the part of a packet that a datagram carries, a view; None if its digest is wrong."""
        header, digest = datagram[: HEADER.size], datagram[HEADER.size : HEAD_BYTES]
        content = datagram[HEAD_BYTES:]
        return content if hmac.compare_digest(self._digest(header, content), bytes(digest)) else None

    def _digest(self, header, content) -> bytes:
        keyed = self._keyed.copy()
        keyed.update(header)
        keyed.update(content)
        return keyed.digest()


class Parts:
    """The parts of a packet that a receiver has, and those that it lacks.

    ``content``: bytes that the parts are written into; ``size``: of each part but the last.
    """

    def __init__(self, content: memoryview, size: int):
        self.content, self.size = content, size
        self.is_here = np.zeros(number_of_parts(len(content), size), bool)
        self.lacking = len(self.is_here)

    def lacks(self, part: int) -> bool:
        """Return whether a part of the packet is lacking; False for a number that no part of it has."""
        return part < len(self.is_here) and not self.is_here[part]

    def put(self, part: int, received) -> bool:
        """Take in a part; returns whether it was lacking. What cannot be a part of the packet is not taken."""
        begin, end = self.span(part)
        if not self.lacks(part) or len(received) != end - begin:
            return False
        self.content[begin:end] = received
        self.is_here[part] = True
        self.lacking -= 1
        return True

    def span(self, part: int) -> tuple[int, int]:
        """Return where a part begins and ends."""
        return part * self.size, min((part + 1) * self.size, len(self.content))

    @property
    def mask_bytes(self) -> int:
        """How many bytes a bit for each part takes."""
        return -(-len(self.is_here) // 8)

    @property
    def lacking_mask(self) -> bytes:
        """A bit for each part: whether it is lacking."""
        return np.packbits(~self.is_here).tobytes()

    def missing(self) -> list[int]:
        """Return the numbers of the parts that are lacking."""
        return np.flatnonzero(~self.is_here).tolist()

    def cut(self, parts: list[int]) -> np.ndarray:
        """Return the content of some parts, one after the other, as bytes."""
        pieces = [np.frombuffer(self.content[slice(*self.span(part))], np.uint8) for part in parts]
        return np.concatenate([np.zeros(0, np.uint8), *pieces])

    def bytes_of(self, parts: list[int]) -> int:
        """Return the length of some parts together."""
        return sum(end - begin for begin, end in map(self.span, parts))


def mask(parts: list[int], count: int) -> bytes:
    """Return a bit for each of so many parts: whether it is one of these."""
    is_one = np.zeros(count, bool)
    is_one[parts] = True
    return np.packbits(is_one).tobytes()


def unmasked(bits, count: int) -> list[int]:
    """Return the parts, of so many, whose bits are set."""
    return np.flatnonzero(np.unpackbits(np.frombuffer(bits, np.uint8), count=count)).tolist()


def number_of_parts(nbytes: int, size: int) -> int:
    """Return how many parts a packet of so many bytes has."""
    return -(-nbytes // size)
