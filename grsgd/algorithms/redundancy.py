"""Choice of the redundancy with ``r = "auto"``: the r with the shortest predicted step. The prediction uses short
measurements of computing, coding and sending.

A schedule is a generator that yields each object it waits for.
"""

from collections.abc import Callable
from functools import partial
from math import comb
from typing import NamedTuple

import numpy as np
from tabulate import tabulate

from coding import codec_seconds
from coding.codec_seconds import NOT_CODED, CodecSeconds
from coding.predicted_step import Computing, PacketSeconds, StepParts, predicted_step
from coding.time_model import paper_step_seconds
from grsgd.algorithms.before_run import Load
from grsgd.algorithms.packet_trial import PacketTrial
from grsgd.algorithms.trial import VIRTUAL, from_each_rank, times
from grsgd.comm.allreduce import broadcast
from grsgd.comm.coded.multicast import Unicast
from grsgd.comm.pollables import Compute

MAX_PACKETS = 10_000
"""Largest number of packets per step that a rank may send. Redundancies that need more than `MAX_PACKETS` packets per
rank and step are not considered."""
SMALL_SHARE, SMALL_SAMPLES = 1 / 8, 2
"""Size of the small block with which the trial measures the fixed time per block: `SMALL_SHARE` of a rank's samples,
but at least `SMALL_SAMPLES` samples."""


class Measured(NamedTuple):
    """Times of computing, coding and sending that a trial has measured. ``codec`` has the coding times for each
    redundancy, and is empty if coding takes no time."""

    computing: Computing
    codec: dict[int, CodecSeconds]
    packets: PacketSeconds


def allowed_redundancies(scheme: str, n: int, batch: int) -> list[int]:
    """Return the values of the redundancy ``r`` that are possible if all ranks share a batch of ``batch`` samples, and
    that need at most `MAX_PACKETS` packets."""
    return [
        r
        for r in range(1, n + 1)
        if scheme.startswith("grouped") or (comb(n, r) <= batch and comb(n - 1, r) <= MAX_PACKETS)
    ]


def measure(scheme: str, allowed: list[int], transport: Unicast, driver, load: Load, length: int, empty: Callable):
    """Generator, called on all ranks at once, that measures computing, coding and sending. Returns a `Measured`, which
    is equal on all ranks.

    ``transport`` must be of the same class as the run's transport, and its method `open` must not have been called.
    ``length`` is the number of elements of a gradient. ``empty(size, dtype)`` returns a new array of ``size`` elements.
    """
    computing = yield from measure_computing(transport.comm, driver, load)
    codec = {}
    if driver.progress_mode != VIRTUAL:
        for r in allowed:
            codec[r] = yield from slowest_codec(transport.comm, codec_seconds.measure(scheme, r, length, empty))
    packets = yield from PacketTrial(transport, driver, length, empty).measure()
    return Measured(computing, codec, packets)


def measure_computing(comm, driver, load: Load):
    """Generator, called on all ranks at once, that returns the `Computing` times of all ranks without redundancy.

    In simulated time a block takes no fixed time, so the fixed time per block is not measured.
    """
    share = load.batch // comm.size

    def compute(work, samples):
        yield Compute(work, samples / share)

    gradients = yield from times(partial(compute, load.gradient(share), share), comm, driver)
    per_block, small = np.zeros(comm.size), max(SMALL_SAMPLES, int(SMALL_SHARE * share))
    if driver.progress_mode != VIRTUAL and small < share:
        smaller = yield from times(partial(compute, load.gradient(small), small), comm, driver)
        whole, part = np.median(gradients, axis=0), np.median(smaller, axis=0)
        # assumption: computing a block takes a fixed time per block plus a time per sample
        per_block = np.clip((part * share - whole * small) / (share - small), 0, whole)
    return Computing(gradients, per_block, load.slowdown, load.delays)


def slowest_codec(comm, mine: CodecSeconds):
    """Generator, called on all ranks at once, that returns, for each coding time in ``mine``, the largest value of any
    rank."""
    table = np.zeros((comm.size, len(mine)))
    table[comm.rank] = mine
    found = yield from from_each_rank(comm, table.reshape(-1))
    return CodecSeconds(*found.reshape(table.shape).max(0).tolist())


def decided_by_one(comm, r: int):
    """Generator, called on all ranks at once, that returns the redundancy that rank 0 has chosen, so that all ranks use
    the same redundancy. Another rank's choice ``r`` may differ from rank 0's if its processor rounds differently."""
    chosen = np.array([float(r)])
    if comm.size > 1:
        yield from broadcast(comm, chosen)
    return int(chosen[0])


def choose(scheme: str, n: int, allowed: list[int], length: int, measured: Measured) -> tuple[int, str]:
    """Return the redundancy in ``allowed`` with the shortest predicted step, and a text with the reason for the choice.
    ``n`` is the number of ranks, and ``length`` the number of elements of a gradient."""

    def predicted(r: int) -> StepParts:
        codec = measured.codec.get(r, NOT_CODED)
        return predicted_step(scheme, n, r, length, measured.computing, codec, measured.packets)

    steps = {r: predicted(r) for r in allowed}
    best = min(steps, key=lambda r: sum(steps[r]))
    plain = predicted(1)
    paper = min(allowed, key=lambda r: paper_step_seconds(r, plain.computing, plain.sending))
    return best, (
        f"r = {best}: measured {in_words(n, length, plain, measured.packets)}\n"
        f"{table(steps, with_coding=bool(measured.codec))}\n"
        f"the paper's model, T = r Tcalc + Tcomm / r, would choose r = {paper}"
    )


def in_words(n: int, length: int, plain: StepParts, packets: PacketSeconds) -> str:
    """Return the measured times of computing and sending as text, for one line of the reason for a redundancy."""
    found = f"{in_ms(plain.computing)} ms for a gradient, {in_ms(plain.waiting)} ms more on the slowest rank"
    if n == 1:
        return found
    nbytes = 4 * length
    found += f"; all ranks at once, {in_ms(packets.exchange.to(1))} ms for a short message"
    found += f", {in_ms(nbytes * packets.byte.to(1))} ms to send a gradient to one rank"
    return found if n == 2 else f"{found}, {in_ms(nbytes * packets.byte.to(n - 1))} ms to send a gradient to all others"


def table(steps: dict[int, StepParts], with_coding: bool) -> str:
    """Return a text table of the predicted milliseconds of each part of a step, with one column per redundancy."""
    rows = {
        "predicted ms a step": lambda parts: sum(parts),
        "computing": lambda parts: parts.computing,
        "waiting for the slowest": lambda parts: parts.waiting,
        "adding up and coding": lambda parts: parts.coding,
        "sending": lambda parts: parts.sending,
    }
    if not with_coding:
        del rows["adding up and coding"]
    return tabulate(
        [[name, *(in_ms(seconds(parts)) for parts in steps.values())] for name, seconds in rows.items()],
        ["r", *map(str, steps)],
        tablefmt="plain",
        disable_numparse=True,
    )


def in_ms(seconds: float) -> str:
    """Return ``seconds`` as text in milliseconds, rounded to whole nanoseconds and to three significant digits."""
    return f"{1e3 * round(seconds, 9):.3g}"
