"""Swing on a torus, dimension by dimension, over all cables of a rank at once.

Source: De Sensi, Bonato, Saam, Hoefler 2024, Swing: Short-cutting rings for higher bandwidth allreduce (NSDI). With D
dimensions the array lies in 2 D parts, each with an all-reduce of its own, side by side, step by step. In each of them
the dimensions take turns; within a dimension partners are those of Swing on a ring of its size. The parts begin with
different dimensions, and half of them are mirrored, which go to the left where others go to the right: so in each step
every rank sends in both directions of every dimension. Dimensions whose steps are over are passed over.
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
    """Reduce-scatter and all-gather with the partners of Swing in every dimension of a torus.

    ``sizes``: of the torus, each even; ranks lie on it in row-major order, the last coordinate varying fastest. Raises
    ValueError if it has not as many places as there are ranks, or a size is odd.
    """
    sizes = tuple(sizes)
    if math.prod(sizes) != comm.size or any(size % 2 for size in sizes):
        shape = "x".join(map(str, sizes))
        raise ValueError(f"a torus of {shape} for {comm.size} ranks: must have as many places, and even sizes")
    if x.size == 0:
        return
    plans = torus_swing_plans(sizes)
    parts = zip(chunks(x, len(plans)), plans, strict=True)
    yield from allreduce(comm, [Share(part, plan, comm.rank) for part, plan in parts], tag, scale)


@lru_cache(maxsize=8)
def torus_swing_plans(sizes: tuple[int, ...]) -> tuple[Plan, ...]:
    """Return the steps of each part."""
    mirrors = [[swing_partners(size, mirrored) for size in sizes] for mirrored in (False, True)]
    return tuple(Plan(in_turns(rings, sizes, first)) for rings in mirrors for first in range(len(sizes)))


def in_turns(rings: Sequence[Sources], sizes: Sequence[int], first: int) -> Sources:
    """Return the steps of all dimensions, which take turns, the dimension ``first`` first. ``rings``: the steps of each
    dimension, on a ring of its size."""
    dimensions = [*range(first, len(sizes)), *range(first)]
    order = [(step, dimension) for step in range(max(map(len, rings))) for dimension in dimensions]
    return [
        along(dimension, rings[dimension][step], sizes) for step, dimension in order if step < len(rings[dimension])
    ]


def along(dimension: int, ring: Sequence[int], sizes: Sequence[int]) -> list[int]:
    """Return by rank on the torus the one that lies, in one dimension, where ``ring`` says."""
    stride = math.prod(sizes[dimension + 1 :])
    places = ((rank, rank // stride % sizes[dimension]) for rank in range(math.prod(sizes)))
    return [rank + (ring[place] - place) * stride for rank, place in places]
