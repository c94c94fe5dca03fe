"""Simulates one all-reduce, for its simulated seconds and the bytes on the cables of the network."""

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
"""Seconds that are added to each step of a rank in runs with steps, about the cost of a message at both ends."""


def size_text(nbytes: int) -> str:
    return f"{nbytes // MIB} MiB" if nbytes >= MIB else f"{nbytes // KIB} KiB"


class AllreduceRun(NamedTuple):
    """An all-reduce of ``nbytes`` bytes on a network of `SETTINGS`, which all ranks begin at the same time.

    Ranks take no time except for messages, and ``step_seconds`` after each wait for messages.
    """

    setting: str
    contender: str
    nbytes: int
    step_seconds: float = 0.0


class AllreduceNumbers(NamedTuple):
    """The measured numbers of one all-reduce.

    seconds: time until the last rank has the sum. sent: bytes that all ranks send. over_global: bytes over all cables
    that join groups of ranks. busiest: bytes over the busiest direction of a cable that joins groups of ranks.
    ``over_global`` and ``busiest`` are 0 if no cable of the network joins groups.
    """

    seconds: float
    sent: int
    over_global: int
    busiest: int


def points(settings: Iterable[str]) -> list[AllreduceRun]:
    """Return all runs on the networks ``settings``.

    Runs with the most ranks come first, because they take longest.
    """
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
    """Generator for a driver: all-reduces an array of ``nbytes`` bytes, one part with each of ``schedules``."""
    parts = chunks(ShapeOnlyArray(nbytes // 4, np.float32), len(schedules))
    running = [schedule(comm, part, tag) for tag, (schedule, part) in enumerate(zip(schedules, parts, strict=True))]
    # the times of an all-reduce that does not run in the background may be calculated instead of simulated
    if len(running) == 1:
        yield from running[0]
    else:
        yield [driver.start(schedule) for schedule in running]


def with_steps_of(seconds: float, schedule: Callable) -> Callable:
    """Return a function like ``schedule`` after each of whose waits for messages a rank takes ``seconds``."""

    def longer(comm, x, tag):
        for pending in schedule(comm, x, tag):
            yield pending
            yield Delay(seconds)

    return longer
