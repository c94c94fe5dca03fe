"""Random damage to the content of a file, like damage by disks, by copying, or by strangers."""

import numpy as np

SECTOR = 512


def damaged(content: bytes, seed: int) -> bytes:
    """Return ``content`` with one or two random changes, which are the same for equal seeds. The result differs from
    ``content``."""
    random = np.random.default_rng(seed)
    while True:
        found = bytes(content)
        for _ in range(random.integers(1, 3)):
            found = WAYS[random.integers(len(WAYS))](found, random)
        if found != content:
            return found


def _with_other_bytes(content: bytes, random) -> bytes:
    changed = bytearray(content)
    for at in random.integers(len(changed), size=random.choice([1, 2, 20])) if changed else ():
        changed[at] = random.integers(256)
    return bytes(changed)


def _with_a_flipped_bit(content: bytes, random) -> bytes:
    changed = bytearray(content)
    if changed:
        changed[random.integers(len(changed))] ^= 1 << int(random.integers(8))
    return bytes(changed)


def _cut_off(content: bytes, random) -> bytes:
    return content[: random.integers(len(content) + 1)]


def _with_a_sector_of_zeros(content: bytes, random) -> bytes:
    begin = SECTOR * int(random.integers(1 + len(content) // SECTOR))
    return content[:begin] + bytes(len(content[begin : begin + SECTOR])) + content[begin + SECTOR :]


def _with_more_at_its_end(content: bytes, random) -> bytes:
    return content + random.bytes(int(random.choice([1, 100, SECTOR])))


def _with_a_part_moved(content: bytes, random) -> bytes:
    begin, length, to = (int(number) for number in random.integers(len(content) + 1, size=3))
    part = content[begin : begin + length]
    return content[:to] + part + content[to + len(part) :]


WAYS = [
    _with_other_bytes,
    _with_a_flipped_bit,
    _cut_off,
    _with_a_sector_of_zeros,
    _with_more_at_its_end,
    _with_a_part_moved,
]
