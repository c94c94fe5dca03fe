"""The all-reduces that are compared: of one message at a time, and over all cables of a torus at once."""

from collections.abc import Callable, Sequence
from functools import lru_cache, partial

from grsgd.comm.allreduce import ALLREDUCE
from grsgd.comm.allreduce.exchanges import Plan, Share, Sources, allreduce
from grsgd.comm.allreduce.torus_swing import along, in_turns, torus_swing_plans
from grsgd.comm.communicator import Communicator

RING, HALVING, NEAR_FIRST, TREE = "ring", "halving-doubling", "near-first halving", "tree"
SWING, BINE = "swing", "bine"
ONE_PORT = (RING, HALVING, NEAR_FIRST, TREE, SWING, BINE)
"""Those that send one message at a time, to ranks in the order of their numbers."""
BUCKET, TORUS_HALVING, TORUS_SWING = "bucket", "torus halving", "torus swing"
ALL_PORTS = (BUCKET, TORUS_HALVING, TORUS_SWING)
"""Those that know the torus, and send in all directions at once."""


def contenders(ranks: int, shape: Sequence[int] | None) -> dict[str, tuple[Callable, ...]]:
    """Return by name the schedules that a rank has side by side, ``schedule(comm, x, tag)``, each for a part of the
    array; those of `ALL_PORTS` if ``shape``, that of a torus, is given.

    What halves by powers of two has no form of its own for other numbers here, and is left out there.
    """
    found = {name: (ALLREDUCE[name],) for name in (RING, HALVING, TREE, SWING, BINE)}
    if is_power_of_two(ranks):
        found[NEAR_FIRST] = of_plans(near_first_plan(ranks))
    if shape is not None:
        found[BUCKET] = of_plans(*bucket_plans(tuple(shape)))
        found[TORUS_SWING] = of_plans(*torus_swing_plans(tuple(shape)))
    if shape is not None and all(map(is_power_of_two, shape)):
        found[TORUS_HALVING] = of_plans(*torus_halving_plans(tuple(shape)))
    return {name: found[name] for name in (*ONE_PORT, *ALL_PORTS) if name in found}


def of_plans(*plans: Plan) -> tuple[Callable, ...]:
    """Return the all-reduces that go by these plans. Those of `ALL_PORTS` do not wait for each other, although
    ``torus_swing_allreduce`` goes step by step: that would hold up those whose dimensions are of unequal size."""
    return tuple(partial(of_plan, plan=plan) for plan in plans)


def of_plan(comm: Communicator, x, tag: int, plan: Plan):
    yield from allreduce(comm, [Share(x, plan, comm.rank)], tag, 1.0)


@lru_cache
def near_first_plan(ranks: int) -> Plan:
    """Return the steps of recursive halving with partners 1, 2, 4, ... ranks away, as Open MPI and MPICH have them: the
    largest part goes to the nearest one. That of ``halving_doubling_allreduce`` goes to the farthest one."""
    return Plan(powers_of_two(ranks))


@lru_cache
def torus_halving_plans(shape: tuple[int, ...]) -> tuple[Plan, ...]:
    """Return the same for a torus whose dimensions take turns: a part of the array begins with each of them, and
    another one that is moved on by one place, so that it uses the other cables."""
    rings = [[powers_of_two(size, moved) for size in shape] for moved in (0, 1)]
    return tuple(Plan(in_turns(ring, shape, first)) for ring in rings for first in range(len(shape)))


@lru_cache
def bucket_plans(shape: tuple[int, ...]) -> tuple[Plan, ...]:
    """Return the steps of the bucket algorithm (Jain, Sabharwal 2010): a reduce-scatter round the rings of one
    dimension after the other, and an all-gather back; a part of the array for each dimension and direction."""
    found = []
    for direction in (-1, 1):
        steps = [along(d, [(k + direction) % size for k in range(size)], shape) for d, size in enumerate(shape)]
        for first in range(len(shape)):
            dimensions = [*range(first, len(shape)), *range(first)]
            found.append(Plan([steps[d] for d in dimensions for _ in range(shape[d] - 1)]))
    return tuple(found)


def powers_of_two(size: int, moved: int = 0) -> Sources:
    """Return the partners 1, 2, 4, ... away of each place on a ring, which is counted from another place."""
    steps = range(size.bit_length() - 1)
    return [[(((place - moved) % size ^ (1 << step)) + moved) % size for place in range(size)] for step in steps]


def is_power_of_two(number: int) -> bool:
    return number & (number - 1) == 0
