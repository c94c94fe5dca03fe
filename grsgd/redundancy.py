"""``r = "auto"``: the redundancy that a short measurement of computing and communicating says is the fastest."""

import copy
import statistics
from math import comb

import numpy as np
from tabulate import tabulate

from coding.time_model import paper_step_seconds, step_seconds
from grsgd.comm.allreduce import halving_doubling_allreduce
from grsgd.comm.communicator import Communicator
from grsgd.comm.control import Control
from grsgd.comm.pollables import Compute
from grsgd.config import Config, Named
from grsgd.train import Trainer

REPEATS = 7
WARM_UP = 2
MOST_PACKETS = 10_000
"""A redundancy with which a rank would send more packets a step is left out."""


def settle(config: Config, dataset, model, comm: Communicator, driver):
    """Schedule, on all ranks at once: ``config`` with a number for ``algorithm.r = "auto"``, and why this one.

    Without "auto", the configuration as it is, and None. ``model`` is not changed. Raises ConfigError.
    """
    if getattr(config.algorithm_options, "r", None) != "auto":
        return config, None
    trial = Trainer(with_redundancy(config, 1), dataset, copy.deepcopy(model), comm, comm, Control(comm), driver)
    measured = yield from measure(trial)
    options = config.algorithm_options
    batch = comm.size * config.data.batch_size
    allowed = [
        r
        for r in range(1, comm.size + 1)
        if options.scheme.startswith("grouped")
        or (comb(comm.size, r) <= batch and comb(comm.size - 1, r) <= MOST_PACKETS)
    ]
    r, why = choose(options.scheme, comm.size, allowed, *measured)
    return with_redundancy(config, r), why


def with_redundancy(config: Config, r: int) -> Config:
    named = Named(**config.algorithm.model_dump() | {"r": r})
    return config.model_copy(update={"algorithm": named})


def measure(trial: Trainer):
    """Schedule, on all ranks at once: seconds of a gradient without redundancy; of one M between two ranks alone; from
    every rank to the next at once; from one rank to all others; and of an empty message."""
    comm, driver = trial.comm, trial.driver
    M = trial.replica.grads.array
    n, rank = comm.size, comm.rank
    with comm.borrow(M, M.size) as incoming, comm.borrow(M, 1) as little:
        word = M[:1] if not hasattr(M, "kernels") else little

        def compute():
            yield Compute(trial.gradient)

        def alone():
            if n > 1 and rank == 0:
                yield comm.Isend(M, 1)
            elif rank == 1:
                yield comm.Irecv(incoming, 0)

        def shift(content, room):
            yield comm.Isend(content, (rank + 1) % n), comm.Irecv(room, (rank - 1) % n)

        def multicast():
            yield comm.Ibcast(M if rank == 0 else incoming, 0)

        what = [
            compute,
            alone,
            lambda: shift(M, incoming),
            multicast,
            lambda: shift(word, incoming),
        ]
        seconds = []
        for action in what:
            if n == 1 and action is not compute:
                seconds.append(0.0)
                continue
            seconds.append((yield from time(action, comm, driver)))
    return seconds


def time(action, comm: Communicator, driver):
    """Schedule, on all ranks at once: the median of the seconds until the last rank has done ``action``."""
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


def choose(
    scheme: str,
    n: int,
    allowed: list[int],
    computing: float,
    alone: float,
    together: float,
    multicast: float,
    per_packet: float,
) -> tuple[int, str]:
    """The fastest of ``allowed`` redundancies for n ranks, and a text that says why; all times in seconds.

    Transfers that share a medium take about n times as long ``together`` as ``alone``; a multicast that is emulated
    takes n-1 times as long as one transfer. What is nearer to that than to 1 counts as such.
    """
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
