"""Swing, an all-reduce, for ranks on a torus. In Swing on a torus, each rank sends over the links of all dimensions of
the torus at the same time.

Source: De Sensi, Bonato, Saam, Hoefler 2024, Swing: Short-cutting rings for higher bandwidth allreduce (NSDI). On a
torus with D dimensions, the array is divided into 2 D parts, and a separate all-reduce sums each part. The all-reduces
of all parts run at the same time, step by step. In the all-reduce of one part, successive steps use the dimensions of
the torus in turn. In the steps of one dimension, the partners are the partners of Swing on a ring with as many ranks as
the dimension. The all-reduces of the first D parts of the array begin in D different dimensions, and the all-reduces of
the last D parts as well. In the all-reduces of the last D parts, directions are mirrored: a rank sends to the left in a
dimension while it sends a part of the first D to the right. In each step every rank therefore sends in both directions
of every dimension. When an all-reduce has made all steps of a dimension, it skips the dimension from then on.
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
    """Generator (schedule) that sums x over all ranks of a torus, by reduce-scatters and all-gathers with the partners
    of Swing in every dimension.

    ``sizes``: number of ranks in each dimension of the torus; every size must be even. Ranks are placed on the torus in
    row-major order, in which the last coordinate varies fastest. Raises ValueError if a size in ``sizes`` is odd, or if
    the product of ``sizes`` is not the number of ranks.
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
    """Return the `Plan` of each part of the array, for a torus with ``sizes`` ranks in its dimensions. A plan contains
    the steps of one part's all-reduce."""
    mirrors = [[swing_partners(size, mirrored) for size in sizes] for mirrored in (False, True)]
    return tuple(Plan(in_turns(rings, sizes, first)) for rings in mirrors for first in range(len(sizes)))


def in_turns(rings: Sequence[Sources], sizes: Sequence[int], first: int) -> Sources:
    """Return the partner of each rank in each step of a part's all-reduce on a torus, whose steps use the dimensions in
    turn. The first step of the all-reduce is in the dimension ``first``.

    ``rings``: for each dimension, the partners in each step of Swing on a ring with as many ranks as the dimension.
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
