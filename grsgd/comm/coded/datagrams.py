"""The datagrams in which packets are sent by IP multicast, and the checks by which ranks reject damaged and forged
datagrams.

A datagram consists of a header, a digest and one part of a packet. The header of a datagram names the run, the exchange
(``round``), the sender, the packet (``number``), and the part of the packet (``part``). The header of a datagram does
not name the receivers of the packet, because all ranks know the receivers of each packet. The digest of a datagram is
keyed with a secret that only the ranks of the run know. By the digest, ranks recognise datagrams that were cut short,
damaged, or sent by programs outside the run.
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
"""Total number of bytes of the header and the digest in each datagram."""
IP_BYTES = 28
"""Total number of bytes of the IPv4 header and the UDP header in front of each datagram."""


class Name(NamedTuple):
    """The four numbers by which ranks identify a datagram: number of the exchange, sending rank, number of the packet,
    and number of the part of the packet."""

    round: int
    sender: int
    number: int
    part: int


class Seal:
    """An object with the run's secret, which makes and checks the heads (header and digest) of the run's datagrams.
    ``run``: bytes in the header of each datagram that identify the run. ``key``: secret of the run, which is the key of
    the digests."""

    def __init__(self, run: bytes, key: bytes):
        self.run = run
        self._keyed = hashlib.blake2b(key=key, digest_size=DIGEST_BYTES)

    def head(self, name: Name, content) -> bytes:
        """Return the head (header and digest) of a datagram that has the numbers ``name`` and carries the part
        ``content`` of a packet."""
        header = HEADER.pack(MAGIC, self.run, *name)
        return header + self._digest(header, content)

    def name_of(self, datagram) -> Name | None:
        """Return the `Name` in the header of ``datagram``, or None if the datagram belongs to another run or program.
        `name_of` does not check the digest, so the datagram may be forged."""
        if len(datagram) < HEAD_BYTES:
            return None
        magic, run, *name = HEADER.unpack_from(datagram)
        return Name(*name) if (magic, run) == (MAGIC, self.run) else None

    def content_of(self, datagram):
        """Return a view of the part of a packet that ``datagram`` carries, or None if the digest of ``datagram`` is
        wrong."""
        header, digest = datagram[: HEADER.size], datagram[HEADER.size : HEAD_BYTES]
        content = datagram[HEAD_BYTES:]
        return content if hmac.compare_digest(self._digest(header, content), bytes(digest)) else None

    def _digest(self, header, content) -> bytes:
        keyed = self._keyed.copy()
        keyed.update(header)
        keyed.update(content)
        return keyed.digest()


class Parts:
    """The parts of one packet at its receiver, with a record of the parts that have arrived.

    ``content``: memory for the whole packet, into which received parts are written. ``size``: number of bytes of each
    part of the packet except the last part, which may be shorter.
    """

    def __init__(self, content: memoryview, size: int):
        self.content, self.size = content, size
        self.is_here = np.zeros(number_of_parts(len(content), size), bool)
        self.lacking = len(self.is_here)

    def lacks(self, part: int) -> bool:
        """Return True if part number ``part`` of the packet has not arrived yet. If the packet has no part number
        ``part``, return False."""
        return part < len(self.is_here) and not self.is_here[part]

    def put(self, part: int, received) -> bool:
        """Write ``received``, the bytes of part number ``part``, into the packet's memory. If the part has arrived
        before, or if ``received`` has a wrong length, return False and write nothing."""
        begin, end = self.span(part)
        if not self.lacks(part) or len(received) != end - begin:
            return False
        self.content[begin:end] = received
        self.is_here[part] = True
        self.lacking -= 1
        return True

    def span(self, part: int) -> tuple[int, int]:
        """Return the positions, in bytes from the begin of the packet, at which part number ``part`` begins and
        ends."""
        return part * self.size, min((part + 1) * self.size, len(self.content))

    @property
    def mask_bytes(self) -> int:
        """Return the number of bytes of a bit mask with one bit per part of the packet."""
        return -(-len(self.is_here) // 8)

    @property
    def lacking_mask(self) -> bytes:
        """Return a bit mask with one bit per part of the packet, which is 1 if the part has not arrived."""
        return np.packbits(~self.is_here).tobytes()

    def missing(self) -> list[int]:
        """Return the numbers of the parts of the packet that have not arrived."""
        return np.flatnonzero(~self.is_here).tolist()

    def cut(self, parts: list[int]) -> np.ndarray:
        """Return the contents of the parts with the numbers ``parts``, one after the other: uint8 of shape [bytes]."""
        pieces = [np.frombuffer(self.content[slice(*self.span(part))], np.uint8) for part in parts]
        return np.concatenate([np.zeros(0, np.uint8), *pieces])

    def bytes_of(self, parts: list[int]) -> int:
        """Return the total length in bytes of the parts with the numbers ``parts``."""
        return sum(end - begin for begin, end in map(self.span, parts))


def mask(parts: list[int], count: int) -> bytes:
    """Return a bit mask of ``count`` bits, as bytes: bit k is 1 if ``parts`` contains the number k."""
    is_one = np.zeros(count, bool)
    is_one[parts] = True
    return np.packbits(is_one).tobytes()


def unmasked(bits, count: int) -> list[int]:
    """Return the numbers k, from 0 to ``count`` - 1, of the parts whose bit k is 1 in the mask ``bits``."""
    return np.flatnonzero(np.unpackbits(np.frombuffer(bits, np.uint8), count=count)).tolist()


def number_of_parts(nbytes: int, size: int) -> int:
    """Return the number of parts into which a packet of ``nbytes`` bytes is divided. ``size``: number of bytes of each
    part of the packet except the last part."""
    return -(-nbytes // size)
