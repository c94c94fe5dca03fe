"""Clocks of the hosts: their difference from the clock of rank 0."""

import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from grsgd.doctor.findings import Finding
from grsgd.doctor.post import Post

GROUP = "clocks"
ROUNDS = 10
MAX_OFFSET_SECONDS = 1.0
"""Difference of two clocks above which times of files and of batch systems mislead, and credentials may be refused."""


class ClockOffset(NamedTuple):
    """Difference of the clock of a rank's host from the clock of rank 0, in seconds. ``error`` seconds are half of the
    time in which it was measured."""

    rank: int
    seconds: float
    error: float


def offset(post: Post, rank: int, seconds: float, clock: Callable[[], float] = time.time) -> ClockOffset:
    """Return the difference of the clock of ``rank``, which runs `answer`; raises SilentRank after ``seconds``."""
    found = []
    for _ in range(ROUNDS):
        begin = clock()
        post.send(None, rank)
        theirs = post.receive(rank, seconds)
        end = clock()
        found.append(ClockOffset(rank, theirs - (begin + end) / 2, (end - begin) / 2))
    return min(found, key=lambda one: one.error)


def answer(post: Post, seconds: float, clock: Callable[[], float] = time.time):
    """Tell rank 0 the time `ROUNDS` times; raises SilentRank if rank 0 does not ask within ``seconds``."""
    for _ in range(ROUNDS):
        post.receive(0, seconds)
        post.send(clock(), 0)


def findings(offsets: Sequence[ClockOffset], hosts: int) -> list[Finding]:
    """Return the finding about the clocks of as many hosts as have an offset; ``hosts`` is the number of all hosts."""
    if not offsets:
        return [Finding(GROUP, "offsets", "one host has one clock" if hosts == 1 else "not measured")]
    far = max(offsets, key=lambda one: abs(one.seconds))
    checked = f", of {len(offsets) + 1} of {hosts} hosts" if len(offsets) + 1 < hosts else ""
    value = f"{1e3 * far.seconds:.3g} ms at most (rank {far.rank}, +-{1e3 * far.error:.2g} ms){checked}"
    remedy = ""
    if abs(far.seconds) > MAX_OFFSET_SECONDS:
        remedy = "let NTP or chrony set the clocks: files, logs and credentials of these hosts have wrong times"
    return [Finding(GROUP, "offsets", value, remedy)]
