"""Bine's all-reduce: a reduce-scatter and an all-gather in which the distances between partners are 1, 11, 111, ... in
negabinary notation (base -2).

Source: De Sensi et al. 2025, Bine trees: Enhancing collective operations by optimizing communication locality (SC).
For large arrays, the paper on Bine uses a reduce-scatter whose distances between partners grow, and an all-gather whose
distances shrink. The distances between partners in Bine's steps are 1, 1, 3, 5, 11, ..., alternately to the left and to
the right, as in the all-reduce Swing. If the number n of ranks is a power of two, the all-reduces Bine and Swing send
the same messages to the same ranks. The algorithm of this module was taken from the source code of the paper's authors
(``allreduce_bine_bdw_remap`` of HLC-Lab/pico). Like the authors' code, this module renumbers the blocks of the array,
so that each message is one contiguous piece of the array.

The all-reduces Bine and Swing differ if the number n of ranks is not a power of two. If n is not a power of two, only p
ranks take part in Bine's steps, where p is the largest power of two below n. Each of the n - p ranks that do not take
part sends its array to a partner before Bine's steps, and receives the sum from the partner at the end. For each of
these n - p ranks, one message with the whole array goes to its partner, and one message with the sum comes back.
"""

from grsgd.comm import tags
from grsgd.comm.allreduce.exchanges import Share, allreduce
from grsgd.comm.allreduce.pieces import add, in_range
from grsgd.comm.allreduce.swing import swing_plan
from grsgd.comm.communicator import Communicator


@in_range
def bine_allreduce(comm: Communicator, x, tag: int = tags.ARRAYS, scale: float = 1.0):
    """Generator (schedule) that sums x over any number of ranks, by a reduce-scatter and an all-gather with negabinary
    distances between partners."""
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
