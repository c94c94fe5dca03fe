"""Simulation of one all-reduce: its simulated seconds, and the bytes on the network's cables."""

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import numpy as np

from experiments.swing.contenders import ALL_PORTS, contenders
from experiments.swing.networks import SETTINGS
from grsgd.comm.allreduce.pieces import chunks
from grsgd.comm.pollables import Delay
from grsgd.models.shape_only import ShapeOnlyArray
from grsgd.simulator.fast_ring.allreduces import AllreduceTimes
from grsgd.testing.simulated import Ranks

KIB, MIB = 2**10, 2**20
SIZES = (4 * KIB, 64 * KIB, MIB, 16 * MIB, 64 * MIB)
STEP_SECONDS = 1e-6
"""Seconds added to each step of a rank, in runs with steps: about the cost of a message at its sender and receiver."""


def size_text(nbytes: int) -> str:
    return f"{nbytes // MIB} MiB" if nbytes >= MIB else f"{nbytes // KIB} KiB"


class AllreduceRun(NamedTuple):
    """An all-reduce of ``nbytes`` bytes on one of `SETTINGS`, which all ranks begin at once.

    The ranks do nothing else, except that a rank takes ``step_seconds`` whenever it has waited for messages.
    """

    setting: str
    contender: str
    nbytes: int
    step_seconds: float = 0.0


class AllreduceNumbers(NamedTuple):
    """The numbers of one all-reduce.

    seconds: time until the last rank has its sum. sent: bytes that all ranks send. over_global: bytes over all cables
    that join groups. busiest: bytes over the busiest direction of such a cable. ``over_global`` and ``busiest`` are 0
    if no cable joins groups.
    """

    seconds: float
    sent: int
    over_global: int
    busiest: int


def points(settings: Iterable[str]) -> list[AllreduceRun]:
    """Return all runs on these settings; runs with the most ranks come first, because they take longest."""
    found = []
    for title in sorted(settings, key=lambda title: -SETTINGS[title].ranks):
        names = contenders(SETTINGS[title].ranks, SETTINGS[title].shape)
        found += [AllreduceRun(title, name, nbytes) for name in names for nbytes in SIZES]
        of_all_ports = [name for name in names if name in ALL_PORTS]
        found += [AllreduceRun(title, name, nbytes, STEP_SECONDS) for name in of_all_ports for nbytes in SIZES]
    return found


def measure(point: AllreduceRun) -> AllreduceNumbers:
    setting = SETTINGS[point.setting]
    ranks = Ranks(setting.ranks, setting.spec)
    ranks.fabric.allreduces = None if point.step_seconds else AllreduceTimes(ranks.fabric)
    schedules = [
        with_steps_of(point.step_seconds, schedule) if point.step_seconds else schedule
        for schedule in contenders(setting.ranks, setting.shape)[point.contender]
    ]
    ends = zip(ranks.comms, ranks.drivers, strict=True)
    ranks.finish([side_by_side(schedules, comm, driver, point.nbytes) for comm, driver in ends])
    carried = [nbytes for cable, nbytes in ranks.network.bytes_of_cables().items() if setting.is_global(cable)]
    sent = sum(int(comm.traffic.sent.sum()) for comm in ranks.comms)
    return AllreduceNumbers(ranks.env.now, sent, sum(carried), max(carried, default=0))


def side_by_side(schedules: Sequence[Callable], comm, driver, nbytes: int):
    """Run a schedule that all-reduces an array of ``nbytes`` bytes, one part of it with each of ``schedules``."""
    parts = chunks(ShapeOnlyArray(nbytes // 4, np.float32), len(schedules))
    running = [schedule(comm, part, tag) for tag, (schedule, part) in enumerate(zip(schedules, parts, strict=True))]
    if len(running) == 1:  # a schedule in the foreground may have its times calculated instead of simulated
        yield from running[0]
    else:
        yield [driver.start(schedule) for schedule in running]


def with_steps_of(seconds: float, schedule: Callable) -> Callable:
    """Return a schedule like ``schedule`` in which a rank takes ``seconds`` after each wait for messages."""

    def longer(comm, x, tag):
        for pending in schedule(comm, x, tag):
            yield pending
            yield Delay(seconds)

    return longer
