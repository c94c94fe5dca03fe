"""Swing on a torus, dimension by dimension, over all cables of a rank at once.

Source: De Sensi, Bonato, Saam, Hoefler 2024, Swing: Short-cutting rings for higher bandwidth allreduce (NSDI). With D
dimensions the array consists of 2 D parts. Each part has an all-reduce of its own. The all-reduces of all parts run
side by side, step by step. In the all-reduce of a part, successive steps use different dimensions in turn. Within a
dimension the partners are the partners of Swing on a ring of the dimension's size. Each part begins with another
dimension. Half of the parts are mirrored: they are sent to the left while the other parts are sent to the right. So in
each step every rank sends in both directions of every dimension. A dimension that has had all its steps is skipped.
"""

import math
from collections.abc import Sequence
from functools import lru_cache

from grsgd.comm import tags
from grsgd.comm.allreduce.exchanges import Plan, Share, Sources, allreduce
from grsgd.comm.allreduce.pieces import chunks, in_range
from grsgd.comm.allreduce.swing import swing_partners
from grsgd.comm.communicator import Communicator


@in_range
def torus_swing_allreduce(
    comm: Communicator, x, tag: int = tags.ARRAYS, scale: float = 1.0, sizes: Sequence[int] = (2, 2)
):
    """Schedule that does a reduce-scatter and an all-gather with the partners of Swing in every dimension of a torus.

    ``sizes``: number of ranks in each dimension of the torus; each is even. Ranks are placed on the torus in row-major
    order, so the last coordinate varies fastest. Raises ValueError if a size is odd, or if the product of the sizes is
    not the number of ranks.
    """
    sizes = tuple(sizes)
    if math.prod(sizes) != comm.size or any(size % 2 for size in sizes):
        shape = "x".join(map(str, sizes))
        raise ValueError(f"a torus of {shape} for {comm.size} ranks: must have one place per rank, and even sizes")
    if x.size == 0:
        return
    plans = torus_swing_plans(sizes)
    parts = zip(chunks(x, len(plans)), plans, strict=True)
    yield from allreduce(comm, [Share(part, plan, comm.rank) for part, plan in parts], tag, scale)


@lru_cache(maxsize=8)
def torus_swing_plans(sizes: tuple[int, ...]) -> tuple[Plan, ...]:
    """Return the plan of the all-reduce of each part of the array."""
    mirrors = [[swing_partners(size, mirrored) for size in sizes] for mirrored in (False, True)]
    return tuple(Plan(in_turns(rings, sizes, first)) for rings in mirrors for first in range(len(sizes)))


def in_turns(rings: Sequence[Sources], sizes: Sequence[int], first: int) -> Sources:
    """Return the steps of all dimensions, one step of each dimension in turn. The dimension ``first`` begins.

    ``rings``: for each dimension, the steps on a ring with as many ranks as the size of the dimension.
    """
    dimensions = [*range(first, len(sizes)), *range(first)]
    order = [(step, dimension) for step in range(max(map(len, rings))) for dimension in dimensions]
    return [
        along(dimension, rings[dimension][step], sizes) for step, dimension in order if step < len(rings[dimension])
    ]


def along(dimension: int, ring: Sequence[int], sizes: Sequence[int]) -> list[int]:
    """Return the partner of each rank of the torus in ``dimension``, where ``ring`` gives the partner of each
    coordinate."""
    stride = math.prod(sizes[dimension + 1 :])
    places = ((rank, rank // stride % sizes[dimension]) for rank in range(math.prod(sizes)))
    return [rank + (ring[place] - place) * stride for rank, place in places]
