"""``r = "auto"``: the redundancy that a short measurement of computing and communicating says is the fastest."""

import statistics
from collections.abc import Callable
from math import comb
from typing import NamedTuple

import numpy as np
from tabulate import tabulate

from coding.time_model import paper_step_seconds, step_seconds
from grsgd.comm.allreduce import halving_doubling_allreduce
from grsgd.comm.communicator import Communicator
from grsgd.comm.pollables import Compute

REPEATS = 7
WARM_UP = 2
MAX_PACKETS = 10_000
"""A redundancy with which a rank would send more packets a step is left out."""


class Costs(NamedTuple):
    """The results of a short measurement, all in seconds."""

    computing: float
    """A gradient without redundancy."""
    alone: float
    """One M between two ranks, while the others are silent."""
    together: float
    """One M from every rank to the next at once."""
    multicast: float
    """One M from one rank to all others."""
    per_packet: float
    """An empty message."""


def allowed_redundancies(scheme: str, n: int, batch: int) -> list[int]:
    """Return what ``r`` may be with a common batch of so many samples, without more packets than `MAX_PACKETS`."""
    return [
        r
        for r in range(1, n + 1)
        if scheme.startswith("grouped") or (comb(n, r) <= batch and comb(n - 1, r) <= MAX_PACKETS)
    ]


def measure(comm: Communicator, driver, M, gradient: Callable[[], object]):
    """Schedule, on all ranks at once: measure the `Costs`; ``gradient()`` computes one, and ``M`` is as large."""
    n, rank = comm.size, comm.rank
    with comm.borrow(M, M.size) as incoming, comm.borrow(M, 1) as element:

        def compute():
            yield Compute(gradient)

        def alone():
            if n > 1 and rank == 0:
                yield comm.Isend(M, 1)
            elif rank == 1:
                yield comm.Irecv(incoming, 0)

        def shift(content, room):
            yield comm.Isend(content, (rank + 1) % n), comm.Irecv(room, (rank - 1) % n)

        def multicast():
            yield comm.Ibcast(M if rank == 0 else incoming, 0)

        actions = [
            compute,
            alone,
            lambda: shift(M, incoming),
            multicast,
            lambda: shift(element, incoming),
        ]
        seconds = []
        for action in actions:
            if n == 1 and action is not compute:
                seconds.append(0.0)
                continue
            seconds.append((yield from time(action, comm, driver)))
    return Costs(*seconds)


def time(action, comm: Communicator, driver):
    """Schedule, on all ranks at once: return the median of the seconds until the last rank has done ``action``."""
    seconds = []
    for _ in range(WARM_UP + REPEATS):
        if comm.size > 1:
            yield from halving_doubling_allreduce(comm, np.zeros(1))  # a barrier
        begin = driver.clock()
        yield from action()
        each = np.zeros(comm.size)
        each[comm.rank] = driver.clock() - begin
        if comm.size > 1:
            yield from halving_doubling_allreduce(comm, each)
        seconds.append(each.max())
    return statistics.median(seconds[WARM_UP:])


def choose(scheme: str, n: int, allowed: list[int], costs: Costs) -> tuple[int, str]:
    """Return the fastest of ``allowed`` redundancies for n ranks, and a text that says why.

    Transfers that share a medium take about n times as long ``together`` as ``alone``; a multicast that is emulated
    takes n-1 times as long as one transfer. What is nearer to that than to 1 counts as such.
    """
    computing, alone, together, multicast, per_packet = costs
    shared = n > 1 and together > alone * (1 + n) / 2
    emulated = n > 2 and multicast > alone * n / 2
    medium = {
        (False, False): "switch",
        (False, True): "point-to-point",
        (True, False): "shared",
        (True, True): "shared-point-to-point",
    }[shared, emulated]
    transfer = together / n if shared else together
    steps = {r: step_seconds(scheme, n, r, computing, transfer, medium, per_packet) for r in allowed}
    best = min(steps, key=steps.get)
    plain = steps[1] - computing
    paper = min(allowed, key=lambda r: paper_step_seconds(r, computing, plain))
    table = tabulate(
        [["predicted ms a step", *(f"{1e3 * seconds:.3g}" for seconds in steps.values())]],
        ["r", *map(str, steps)],
        tablefmt="plain",
        disable_numparse=True,
    )
    return best, (
        f"r = {best}: measured {1e3 * computing:.3g} ms for a gradient, {1e3 * transfer:.3g} ms for one M, "
        f"{1e3 * per_packet:.3g} ms for an empty message; the network acts as {DESCRIPTIONS[medium]}\n{table}\n"
        f"the paper's model, T = r Tcalc + Tcomm / r, would choose r = {paper}"
    )


DESCRIPTIONS = {
    "switch": "a switch that multicasts",
    "point-to-point": "a switch without multicast",
    "shared": "a shared medium that multicasts",
    "shared-point-to-point": "a shared medium without multicast",
}
