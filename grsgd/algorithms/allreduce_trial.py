"""``variant = "auto"``: a trial at the start of a run, which finds the fastest all-reduce on the run's machines.

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
"""Number of elements of the longest vector in the trial. Vectors above this length take the same time per element, so a
trial with `MAX_ELEMENTS` elements is enough."""
CLOSE = 3.0
"""Factor by which a variant may be slower than the fastest variant in the first trial and still be tried again."""
AGAIN_SECONDS, MAX_ROUNDS = 0.25, 101
"""Number of seconds for which variants close to the fastest are tried again, in at least `REPEATS` and at most
`MAX_ROUNDS` rounds."""


def choose_variant(comm: Communicator, driver, like: Flat):
    """Schedule, called on all ranks at once, that returns the name of the fastest variant for vectors such as ``like``,
    and a line with all variants' times.

    A time is the median over several all-reduces of the slowest rank's time, so all ranks return the same name. After
    the first trial, the variants that came close to the fastest are tried again, in turns, because a machine is
    sometimes slower for a while. Each variant computes a mean, as in a run, because the variants differ in the time of
    the multiplication by 1/n: on each rank, some multiply only a part of the sum, and others the whole sum. ``comm``
    must carry no other messages during the trial.
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
    if len(closest) > 1 and driver.progress_mode != VIRTUAL:  # repeating simulated times changes nothing
        rounds = rounds_again(sum(seconds[name] for name in closest))
        seconds |= yield from time_in_turns(closest, rounds, comm, driver)
    comm.shared.clear()
    best = min(seconds, key=seconds.get)
    found = [f"{name} {1e3 * taken:.3g} ms" for name, taken in seconds.items()]
    found += [f"{name}: {why}" for name, why in left_out.items()]
    return best, f"variant = {best}: {human_bytes(vector.array.nbytes)} on {comm.size} ranks: {'; '.join(found)}"


def rounds_again(seconds: float) -> int:
    """Return the number of rounds in which the fastest all-reduces are timed once more; a round calls each all-reduce
    twice. ``seconds``: total time of one call of each all-reduce. Return 0 if the rounds would take too long, as over a
    slow link."""
    rounds = min(max(int(AGAIN_SECONDS / 2 / seconds), REPEATS), MAX_ROUNDS, int(ENOUGH_SECONDS / 2 / seconds))
    return rounds if rounds >= LEAST else 0


def time_in_turns(actions: dict, rounds: int, comm: Communicator, driver):
    """Schedule, called on all ranks at once, that returns the median seconds of each action in ``actions`` over
    ``rounds`` rounds. Each action runs twice per round, and only the time of the second run counts. So an action that
    ran before has no influence on the time."""
    taken = {name: [] for name in actions}
    for _ in range(rounds):
        for name, action in actions.items():
            yield from time_once(action, comm, driver)
            taken[name].append((yield from time_once(action, comm, driver)))
    return {name: statistics.median(each) for name, each in taken.items() if each}
