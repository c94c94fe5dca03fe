"""Bine's all-reduce: a butterfly with negabinary distances, between as many ranks as a power of two.

Source: De Sensi et al. 2025, Bine trees: Enhancing collective operations by optimizing communication locality (SC).
Its large all-reduce is a reduce-scatter whose distances grow, and an all-gather whose distances shrink: 1, 1, 3, 5, 11,
..., in turns to the left and to the right, which are those of Swing. So with n a power of two both send the same
messages to the same ranks. That is read off the authors' library (``allreduce_bine_bdw_remap`` of HLC-Lab/pico), where
blocks are numbered anew, so that each message is one piece of the array; as here.

They differ where n is no power of two. As in that library, each of the n - p ranks beyond the largest power of two p
hands its array to a partner before and takes the sum after, which costs these pairs one more array each way.
"""

from grsgd.comm import tags
from grsgd.comm.allreduce.exchanges import Share, allreduce
from grsgd.comm.allreduce.pieces import add, in_range
from grsgd.comm.allreduce.swing import swing_plan
from grsgd.comm.communicator import Communicator


@in_range
def bine_allreduce(comm: Communicator, x, tag: int = tags.ARRAYS, scale: float = 1.0):
    """Reduce-scatter and all-gather with negabinary distances, for any n."""
    n = comm.size
    p = 1 << (n.bit_length() - 1)
    pairs = n - p
    if n == 1 or x.size == 0:
        return
    partner = comm.rank ^ 1 if comm.rank < 2 * pairs else None
    if partner is not None and comm.rank % 2:
        yield comm.Isend(x, partner, tag)
        yield comm.Irecv(x, partner, tag)
        return
    if partner is not None:
        with comm.borrow(x, x.size) as scratch:
            yield comm.Irecv(scratch, partner, tag)
            add(x, scratch)
    ranks = [*range(0, 2 * pairs, 2), *range(2 * pairs, n)]
    yield from allreduce(comm, [Share(x, swing_plan(p), ranks.index(comm.rank), ranks)], tag, scale)
    if partner is not None:
        yield comm.Isend(x, partner, tag)
