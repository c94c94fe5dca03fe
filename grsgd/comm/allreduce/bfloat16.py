"""All-reduce of arrays of bfloat16. Sums of bfloat16 arrays are computed in float32, and rounded to bfloat16 once."""

from coding.partition import part
from grsgd.models.flat import host_tensor
from grsgd.models.shape_only import ShapeOnlyArray

VARIANTS = ("ring", "halving-doubling", "tree")
"""Variants of the all-reduce that sum arrays of bfloat16 by `bfloat16_allreduce`. A run with bfloat16 arrays raises an
error if it uses another variant."""


def bfloat16_allreduce(comm, x, tag: int, scale: float):
    """Generator (schedule) that sets x to ``scale`` times the sum of x over all n ranks, in place.

    The elements of ``x`` are the bits of bfloat16 numbers, stored as uint16, of shape [d]. The array ``x`` consists of
    n chunks, and each rank sends its chunk c to rank c. Rank c adds up the chunks c of all ranks in float32, in the
    order of the ranks. Rank c rounds the sum of its chunk to bfloat16 once, and sends the rounded sum to all ranks.
    Each rank sends 2(n-1)/n of the bytes of x, as in a ring all-reduce, but partial sums are not rounded to 16 bits.
    """
    n, me = comm.size, comm.rank
    if n == 1 or x.size == 0:
        return
    chunks = [x[begin:end] for begin, end in (part(c, n, x.size) for c in range(n))]
    mine, others = chunks[me], [rank for rank in range(n) if rank != me]
    with comm.borrow(x, n * mine.size) as scratch:
        of_ranks = [scratch[rank * mine.size : (rank + 1) * mine.size] for rank in range(n)]
        of_ranks[me] = mine
        yield [
            *(comm.Irecv(of_ranks[rank], rank, tag) for rank in others if mine.size),
            *(comm.Isend(chunks[rank], rank, tag) for rank in others if chunks[rank].size),
        ]
        if mine.size and not isinstance(x, ShapeOnlyArray):
            host_tensor(mine).copy_(sum_in_float32([host_tensor(array) for array in of_ranks]).mul_(scale))
    yield [
        *(comm.Irecv(chunks[rank], rank, tag) for rank in others if chunks[rank].size),
        *(comm.Isend(mine, rank, tag) for rank in others if mine.size),
    ]


def sum_in_float32(tensors: list):
    """Return the sum of ``tensors`` (bfloat16), added in the order of the list, as a new tensor of float32."""
    total = tensors[0].float()
    for tensor in tensors[1:]:
        total += tensor
    return total
