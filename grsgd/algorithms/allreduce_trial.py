"""Trial at the start of a run with ``variant = "auto"``, which measures all-reduces on the run's machines and chooses
the fastest all-reduce.

A schedule is a generator that yields each object it waits for.
"""

from __future__ import annotations

import statistics
from functools import partial

from grsgd.algorithms.trial import ENOUGH_SECONDS, LEAST, REPEATS, VIRTUAL, time, time_once
from grsgd.comm import tags
from grsgd.comm.allreduce import ALLREDUCE, NAMED_BY_LIBRARY, ON_ONE_HOST, THROUGH_MEMORY, in_place
from grsgd.comm.allreduce.by_hosts import hosts_of
from grsgd.comm.communicator import Communicator
from grsgd.comm.shared_memory import NoSharedMemory
from grsgd.models.flat import Flat
from grsgd.runs.numbers import human_bytes

AUTO = "auto"
MAX_ELEMENTS = 4 * 1024 * 1024
"""Largest number of elements of the vector that the trial sums. Vectors with more than `MAX_ELEMENTS` elements take the
same time per element."""
CLOSE = 3.0
"""All-reduces whose first measured time is at most `CLOSE` times the fastest all-reduce's time are measured again."""
AGAIN_SECONDS, MAX_ROUNDS = 0.25, 101
"""Number of seconds for which the fastest all-reduces are measured again, in at least `REPEATS` and at most
`MAX_ROUNDS` rounds."""


def choose_variant(comm: Communicator, driver, like: Flat):
    """Generator, called on all ranks at once, that measures all-reduces of vectors with the length and dtype of
    ``like``. Returns the name of the fastest all-reduce, and a text with all measured times.

    The time of an all-reduce is the median over several calls of the slowest rank's time, so all ranks return the same
    name. After the first measurement, the fastest all-reduces are measured again, one after the other in each round,
    because a machine is sometimes slower for a while. The trial measures all-reduces that compute a mean, as in
    training, because the all-reduces take different times for the multiplication by 1/n. In some all-reduces each rank
    multiplies only a part of the sum by 1/n, and in all others each rank multiplies the whole sum. During the trial of
    all-reduces, ``comm`` must carry no other messages.
    """
    if comm.size == 1:
        return "ring", "variant = ring: one rank sends nothing"
    size = min(like.tensor.numel(), MAX_ELEMENTS)
    vector = Flat.zeros(size, like.tensor.dtype, like.tensor.device)
    hosts = yield from hosts_of(comm, tags.ARRAYS)
    actions, seconds, left_out = {}, {}, {}
    for name, schedule in ALLREDUCE.items():
        inside = vector
        if name in ON_ONE_HOST | NAMED_BY_LIBRARY and not comm.backend.shares_memory:
            left_out[name] = "only for processes"
            continue
        if name == "hierarchical" and (hosts.count == 1 or hosts.owners == 1):
            left_out[name] = "only of several hosts with several ranks each"
            continue
        average = partial(schedule, comm, scale=1 / comm.size)
        if name in THROUGH_MEMORY:
            try:
                inside = yield from in_place(comm, vector, name)
                yield from average(inside.array)
            except NoSharedMemory as error:
                left_out[name] = error.why
                continue
        actions[name] = partial(average, inside.array)
        seconds[name] = yield from time(actions[name], comm, driver)
    closest = {name: actions[name] for name in actions if seconds[name] <= CLOSE * min(seconds.values())}
    if len(closest) > 1 and driver.progress_mode != VIRTUAL:  # simulated times never vary
        rounds = rounds_again(sum(seconds[name] for name in closest))
        seconds |= yield from time_in_turns(closest, rounds, comm, driver)
    comm.shared.clear()
    best = min(seconds, key=seconds.get)
    found = [f"{name} {1e3 * taken:.3g} ms" for name, taken in seconds.items()]
    found += [f"{name}: {why}" for name, why in left_out.items()]
    return best, f"variant = {best}: {human_bytes(vector.array.nbytes)} on {comm.size} ranks: {'; '.join(found)}"


def rounds_again(seconds: float) -> int:
    """Return the number of rounds in which the fastest all-reduces are measured again. In a round each measured
    all-reduce is called twice. ``seconds`` is the total time of one call of each all-reduce that is measured again.
    Return 0 if measuring again would take too long, for example over a slow link."""
    rounds = min(max(int(AGAIN_SECONDS / 2 / seconds), REPEATS), MAX_ROUNDS, int(ENOUGH_SECONDS / 2 / seconds))
    return rounds if rounds >= LEAST else 0


def time_in_turns(actions: dict, rounds: int, comm: Communicator, driver):
    """Generator, called on all ranks at once, that returns the median seconds of each action in ``actions`` over
    ``rounds`` rounds. Each action runs twice per round, and only the time of its second run counts as measured. The
    first of the two runs of an action removes the influence of the previous action on the measured time."""
    taken = {name: [] for name in actions}
    for _ in range(rounds):
        for name, action in actions.items():
            yield from time_once(action, comm, driver)
            taken[name].append((yield from time_once(action, comm, driver)))
    return {name: statistics.median(each) for name, each in taken.items() if each}
