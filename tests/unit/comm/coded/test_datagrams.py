"""Datagrams of coded packets: what is wrong with one is detected, and nothing of it is taken."""

import numpy as np
import pytest

from grsgd.comm.coded.datagrams import (
    HEAD_BYTES,
    HEADER,
    KEY_BYTES,
    RUN_BYTES,
    Name,
    Parts,
    Seal,
    mask,
    number_of_parts,
    unmasked,
)
from grsgd.comm.coded.losses import lost_parts
from grsgd.comm.coded.pacing import MAX_SECONDS, Pace

RUN, KEY = bytes(range(RUN_BYTES)), bytes(range(KEY_BYTES))
NAME = Name(round=7, sender=300, number=123456, part=70000)


def datagram(seal: Seal, name: Name = NAME, content: bytes = b"content") -> bytes:
    return seal.head(name, content) + content


def read(seal: Seal, received: bytes) -> tuple[Name, bytes] | None:
    """What a receiver takes a datagram for; None if it is not taken."""
    view = memoryview(received)
    name = seal.name_of(view)
    if name is None or (content := seal.content_of(view)) is None:
        return None
    return name, bytes(content)


def test_a_datagram_says_what_it_carries():
    sent = datagram(Seal(RUN, KEY))
    assert read(Seal(RUN, KEY), sent) == (NAME, b"content")
    assert sent[:4] == b"GRM1" and sent[4:12] == RUN and len(sent) == HEAD_BYTES + 7
    assert sent[12:26] == bytes.fromhex("00000007 012c 0001e240 00011170"), "big-endian, without gaps"
    assert read(Seal(RUN, KEY), datagram(Seal(RUN, KEY), content=b"")) == (NAME, b"")


def test_every_single_change_is_noticed():
    """Of each bit, of the length, of the run and of the key."""
    seal = Seal(RUN, KEY)
    sent = datagram(seal)
    for bit in range(8 * len(sent)):
        changed = bytearray(sent)
        changed[bit // 8] ^= 1 << bit % 8
        assert read(seal, bytes(changed)) is None, bit
    for length in range(len(sent)):
        assert read(seal, sent[:length]) is None, length
    assert read(seal, sent + b"\0") is None
    assert read(Seal(RUN, KEY[::-1]), sent) is None
    assert read(Seal(RUN[::-1], KEY), sent) is None
    assert read(seal, b"") is None


class Hostile:
    """A network that loses, repeats, reorders, cuts off and damages datagrams, and makes up some."""

    def __init__(self, random: np.random.Generator, others: Seal):
        self.random, self.others = random, others
        self.altered = 0

    def carry(self, sent: list[bytes]) -> list[bytes]:
        random, carried = self.random, []
        for one in sent:
            fate = random.integers(8)
            if fate == 0:
                continue
            carried.append(one)
            if fate == 1:
                carried.append(one)
            if fate in (2, 3):
                carried.append(one[: random.integers(len(one))] if fate == 2 else damaged(one, random))
                self.altered += 1
            if fate == 4:  # by somebody who has heard it all, but for the key
                name = Seal(RUN, KEY).name_of(memoryview(one))
                content = random.bytes(len(one) - HEAD_BYTES)
                carried.append(self.others.head(name, content) + content)
                self.altered += 1
        return [carried[k] for k in random.permutation(len(carried))]


def damaged(one: bytes, random: np.random.Generator) -> bytes:
    changed = bytearray(one)
    changed[random.integers(len(one))] ^= random.integers(1, 256)
    return bytes(changed)


def test_ten_thousand_datagrams_of_a_hostile_network():
    """Whatever happens to them, the parts that are taken are those that were sent, and the rest is known to lack."""
    random = np.random.default_rng(0)
    seal, hostile = Seal(RUN, KEY), Hostile(random, Seal(RUN, KEY[::-1]))
    total, size, rejected = 0, 40, 0
    while total < 10_000:
        content = random.bytes(int(random.integers(1, 4000)))
        sender = Parts(memoryview(bytearray(content)), size)
        count = number_of_parts(len(content), size)
        names = [Name(1, 2, 3, part) for part in range(count)]
        spans = [sender.span(part) for part in range(count)]
        sent = [datagram(seal, name, content[begin:end]) for name, (begin, end) in zip(names, spans, strict=True)]
        total += count
        there = bytearray(len(content))
        parts = Parts(memoryview(there), size)
        for one in hostile.carry(sent):
            taken = read(seal, one)
            if taken is None:
                rejected += 1
                continue
            before = parts.lacking
            assert parts.put(taken[0].part, taken[1]) == (parts.lacking == before - 1)
        for part, (begin, end) in enumerate(spans):
            expected = content[begin:end] if parts.is_here[part] else bytes(end - begin)
            assert bytes(there[begin:end]) == expected
        missing = parts.missing()
        assert len(missing) == parts.lacking and missing == np.flatnonzero(~parts.is_here).tolist()
        assert unmasked(parts.lacking_mask, count) == missing == unmasked(mask(missing, count), count)
        repair = sender.cut(missing)
        assert repair.nbytes == parts.bytes_of(missing)
        assert repair.tobytes() == b"".join(content[slice(*sender.span(part))] for part in missing)
        assert all(parts.put(part, content[slice(*sender.span(part))]) for part in missing)
        assert bytes(there) == content and not parts.lacking and parts.missing() == []
    assert rejected == hostile.altered > 2000, "all that was altered, and nothing else, is rejected"


@pytest.mark.parametrize("nbytes, count", [(0, 0), (1, 1), (40, 1), (41, 2), (80, 2), (81, 3)])
def test_parts_of_a_packet(nbytes, count):
    parts = Parts(memoryview(bytearray(nbytes)), 40)
    assert number_of_parts(nbytes, 40) == parts.lacking == len(parts.missing()) == count
    spans = [parts.span(part) for part in range(count)]
    assert [begin for begin, _ in spans] == [40 * part for part in range(count)]
    assert sum(end - begin for begin, end in spans) == nbytes
    if count:
        begin, end = spans[-1]
        assert not parts.put(count - 1, b"x" * (end - begin + 1)), "too long"
        assert not parts.put(count - 1, b"x" * (end - begin - 1)), "too short"
        assert not parts.put(count, b"x" * (end - begin)), "behind the last one"
        assert parts.put(count - 1, b"x" * (end - begin)) and not parts.put(count - 1, b"y" * (end - begin))
        assert bytes(parts.content[begin:end]) == b"x" * (end - begin)


@pytest.mark.parametrize("count", [0, 1, 7, 8, 9, 64])
def test_a_bit_for_each_part(count):
    for parts in ([], list(range(count)), list(range(0, count, 3))):
        bits = mask(parts, count)
        assert len(bits) == -(-count // 8) and unmasked(bits, count) == parts


@pytest.mark.parametrize("share, burst", [(0.01, 1), (0.05, 1), (0.2, 1), (0.05, 4), (0.2, 10)])
def test_losses_have_the_share_and_the_length_that_were_asked_for(share, burst):
    lost = lost_parts(share, burst, 100_000, np.random.default_rng(1))
    bursts = np.count_nonzero(lost[1:] & ~lost[:-1])
    assert lost.mean() == pytest.approx(share, rel=0.1)
    # Where each is lost by itself, two of them in a row are no burst that was asked for.
    assert lost.sum() / bursts == pytest.approx(burst if burst > 1 else 1, rel=0.1, abs=share * 1.3)


def test_a_first_datagram_is_as_likely_to_be_lost_as_others():
    """Packets of one datagram, too, have the share."""
    lost = [lost_parts(0.2, 5.0, 1, np.random.default_rng(seed))[0] for seed in range(5000)]
    assert np.mean(lost) == pytest.approx(0.2, rel=0.1)
    assert lost_parts(0.2, 5.0, 0, np.random.default_rng(0)).shape == (0,)


def test_a_pace_is_kept_and_caught_up_on_a_little():
    now = 0.0
    pace = Pace(1000.0, 5, lambda: now)
    sent = 0
    for step in range(1, 10_001):
        now = step / 1000
        while pace.allows():
            pace.spend(5)
            sent += 5
    assert sent == pytest.approx(1000 * now, abs=10)
    now += 10.0  # the rank was kept from sending
    burst = 0
    while pace.allows():
        pace.spend(5)
        burst += 5
    assert burst <= 1000 * MAX_SECONDS + 10
    slow = Pace(1.0, 9000, lambda: now)
    now += 18_000
    assert slow.allows()


def test_the_header_has_the_size_that_is_counted():
    assert HEADER.size == 26 and HEAD_BYTES == 42
