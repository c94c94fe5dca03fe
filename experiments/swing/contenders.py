"""The compared all-reduces: some send one message at a time, and others send over all cables of a torus at once."""

from collections.abc import Callable, Sequence
from functools import lru_cache, partial

from grsgd.comm.allreduce import ALLREDUCE
from grsgd.comm.allreduce.exchanges import Plan, Share, Sources, allreduce
from grsgd.comm.allreduce.torus_swing import along, in_turns, torus_swing_plans
from grsgd.comm.communicator import Communicator

RING, HALVING, NEAR_FIRST, TREE = "ring", "halving-doubling", "near-first halving", "tree"
SWING, BINE = "swing", "bine"
ONE_PORT = (RING, HALVING, NEAR_FIRST, TREE, SWING, BINE)
"""Names of the all-reduces that send one message at a time, with ranks placed in the order of their numbers."""
BUCKET, TORUS_HALVING, TORUS_SWING = "bucket", "torus halving", "torus swing"
ALL_PORTS = (BUCKET, TORUS_HALVING, TORUS_SWING)
"""Names of the all-reduces that are made for a torus and send in all its directions at once."""


def contenders(ranks: int, shape: Sequence[int] | None) -> dict[str, tuple[Callable, ...]]:
    """Return the functions that make up each all-reduce, by name; a rank runs all functions of an all-reduce at once.

    Each function ``schedule(comm, x, tag)`` returns a generator for a driver, which all-reduces a part of the array.
    The all-reduces in `ALL_PORTS` are included if ``shape`` is the shape of a torus, and not None. All-reduces that
    need a power of two of ranks are left out for other numbers of ranks.
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
    """Return a function for each plan in ``plans``, which all-reduces a part of the array by this plan.

    The functions of an all-reduce in `ALL_PORTS` run side by side without waiting for each other.
    ``torus_swing_allreduce`` is not used, because it starts the steps of all parts together. To start the steps of all
    parts together would delay tori whose dimensions have unequal sizes.
    """
    return tuple(partial(of_plan, plan=plan) for plan in plans)


def of_plan(comm: Communicator, x, tag: int, plan: Plan):
    yield from allreduce(comm, [Share(x, plan, comm.rank)], tag, 1.0)


@lru_cache
def near_first_plan(ranks: int) -> Plan:
    """Return the plan of recursive halving with partners at distances 1, 2, 4, ..., as in Open MPI and MPICH.

    In the plan of Open MPI and MPICH, the largest part of the array goes to the nearest partner. In
    ``halving_doubling_allreduce``, the largest part goes to the farthest partner.
    """
    return Plan(powers_of_two(ranks))


@lru_cache
def torus_halving_plans(shape: tuple[int, ...]) -> tuple[Plan, ...]:
    """Return the plans of recursive halving on a torus, whose steps alternate between the torus' dimensions.

    For each dimension, one part of the array begins its steps with this dimension. A second part of the array per
    dimension has partners that are moved by one place, so that it uses the cables that the first part leaves idle.
    """
    rings = [[powers_of_two(size, moved) for size in shape] for moved in (0, 1)]
    return tuple(Plan(in_turns(ring, shape, first)) for ring in rings for first in range(len(shape)))


@lru_cache
def bucket_plans(shape: tuple[int, ...]) -> tuple[Plan, ...]:
    """Return the plans of the bucket algorithm (Jain, Sabharwal 2010), one for each dimension and direction of a torus.

    Each plan makes a reduce-scatter around the rings of one dimension after the other, and an all-gather in the
    reverse order of dimensions.
    """
    found = []
    for direction in (-1, 1):
        steps = [along(d, [(k + direction) % size for k in range(size)], shape) for d, size in enumerate(shape)]
        for first in range(len(shape)):
            dimensions = [*range(first, len(shape)), *range(first)]
            found.append(Plan([steps[d] for d in dimensions for _ in range(shape[d] - 1)]))
    return tuple(found)


def powers_of_two(size: int, moved: int = 0) -> Sources:
    """Return, for each distance 1, 2, 4, ..., the partner of each place on a ring.

    Places on the ring are counted from the place ``moved``.
    """
    steps = range(size.bit_length() - 1)
    return [[(((place - moved) % size ^ (1 << step)) + moved) % size for place in range(size)] for step in steps]


def is_power_of_two(number: int) -> bool:
    return number & (number - 1) == 0
