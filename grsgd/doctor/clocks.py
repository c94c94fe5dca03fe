"""Measurement of the differences between the hosts' clocks and the clock of rank 0, for ``grsgd doctor``."""

import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from grsgd.doctor.findings import Finding
from grsgd.doctor.post import Post

GROUP = "clocks"
ROUNDS = 10
MAX_OFFSET_SECONDS = 1.0
"""Difference of two clocks, in seconds, above which times of files and batch systems are misleading, and credentials
may be refused."""


class ClockOffset(NamedTuple):
    """Difference between the clock of a rank's host and the clock of rank 0, in ``seconds``. ``error`` is half of the
    seconds that the measurement took."""

    rank: int
    seconds: float
    error: float


def offset(post: Post, rank: int, seconds: float, clock: Callable[[], float] = time.time) -> ClockOffset:
    """Return the difference between the clock of ``rank``, which runs `answer`, and this rank's clock. Raises
    SilentRank if ``rank`` does not answer within ``seconds``."""
    found = []
    for _ in range(ROUNDS):
        begin = clock()
        post.send(None, rank)
        theirs = post.receive(rank, seconds)
        end = clock()
        found.append(ClockOffset(rank, theirs - (begin + end) / 2, (end - begin) / 2))
    return min(found, key=lambda one: one.error)


def answer(post: Post, seconds: float, clock: Callable[[], float] = time.time):
    """Send the time of this rank's clock to rank 0, `ROUNDS` times. Raises SilentRank if rank 0 does not ask within
    ``seconds``."""
    for _ in range(ROUNDS):
        post.receive(0, seconds)
        post.send(clock(), 0)


def findings(offsets: Sequence[ClockOffset], hosts: int) -> list[Finding]:
    """Return the finding about the clock differences ``offsets`` between hosts of a job. ``hosts`` is the number of all
    hosts of the job."""
    if not offsets:
        return [Finding(GROUP, "offsets", "one host has one clock" if hosts == 1 else "not measured")]
    far = max(offsets, key=lambda one: abs(one.seconds))
    checked = f", of {len(offsets) + 1} of {hosts} hosts" if len(offsets) + 1 < hosts else ""
    value = f"{1e3 * far.seconds:.3g} ms at most (rank {far.rank}, +-{1e3 * far.error:.2g} ms){checked}"
    remedy = ""
    if abs(far.seconds) > MAX_OFFSET_SECONDS:
        remedy = "let NTP or chrony set the clocks: files, logs and credentials of these hosts have wrong times"
    return [Finding(GROUP, "offsets", value, remedy)]
