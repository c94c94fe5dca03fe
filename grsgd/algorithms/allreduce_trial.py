"""Trial at the start of a run with ``variant = "auto"``, which finds the fastest all-reduce on the run's machines.

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
"""Number of elements of the longest vector in the trial. Vectors with more than `MAX_ELEMENTS` elements take the same
time per element, so the trial uses at most `MAX_ELEMENTS` elements."""
CLOSE = 3.0
"""Factor by which a variant may be slower than the fastest variant in the first measurement and still be measured
again."""
AGAIN_SECONDS, MAX_ROUNDS = 0.25, 101
"""Number of seconds for which variants close to the fastest variant are measured again, in at least `REPEATS` and at
most `MAX_ROUNDS` rounds."""


def choose_variant(comm: Communicator, driver, like: Flat):
    """Schedule, called on all ranks at once, that returns the name of the fastest all-reduce for vectors such as
    ``like``, and a text with the times of all variants.

    A variant's time is the median over several all-reduces of the slowest rank's time, so all ranks return the same
    name. After the first measurement, the variants close to the fastest variant are measured again, in turns, because a
    machine is sometimes slower for a while. Each variant computes a mean, as in a run, because the variants need
    different times for the multiplication by 1/n. Some variants multiply only a part of the sum on each rank, and other
    variants multiply the whole sum. During the trial ``comm`` must carry only the trial's messages.
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
    if len(closest) > 1 and driver.progress_mode != VIRTUAL:  # simulated times do not vary
        rounds = rounds_again(sum(seconds[name] for name in closest))
        seconds |= yield from time_in_turns(closest, rounds, comm, driver)
    comm.shared.clear()
    best = min(seconds, key=seconds.get)
    found = [f"{name} {1e3 * taken:.3g} ms" for name, taken in seconds.items()]
    found += [f"{name}: {why}" for name, why in left_out.items()]
    return best, f"variant = {best}: {human_bytes(vector.array.nbytes)} on {comm.size} ranks: {'; '.join(found)}"


def rounds_again(seconds: float) -> int:
    """Return the number of rounds in which the fastest all-reduces are measured again. In a round each measured
    all-reduce is called twice. ``seconds`` is the total time of one call of each measured all-reduce. Return 0 if the
    rounds would take too long, for example over a slow link."""
    rounds = min(max(int(AGAIN_SECONDS / 2 / seconds), REPEATS), MAX_ROUNDS, int(ENOUGH_SECONDS / 2 / seconds))
    return rounds if rounds >= LEAST else 0


def time_in_turns(actions: dict, rounds: int, comm: Communicator, driver):
    """Schedule, called on all ranks at once, that returns the median seconds of each action in ``actions`` over
    ``rounds`` rounds. Each action runs twice per round, and only the time of its second run counts. The first run
    removes the influence of the previous action on the measured time."""
    taken = {name: [] for name in actions}
    for _ in range(rounds):
        for name, action in actions.items():
            yield from time_once(action, comm, driver)
            taken[name].append((yield from time_once(action, comm, driver)))
    return {name: statistics.median(each) for name, each in taken.items() if each}
