"""Loops of `grsgd.comm.allreduce.shared`, compiled by numba: sums of arrays, and functions by which ranks publish and
read numbers in shared memory.

Functions that sum arrays release Python's global lock. Functions that take less than a microsecond keep the lock,
because it may take longer to get the lock back.
"""

from numba import njit, types
from numba.extending import intrinsic, overload

compiled = njit(nogil=True, cache=True)
brief = njit(cache=True)


@intrinsic
def fence_of_processor(typing_context):
    """Compile a call of this function to the processor's instruction for a memory fence."""

    def generate(context, builder, signature, arguments):
        builder.fence("seq_cst")
        return context.get_dummy_value()

    return types.void(), generate


def fence():
    """Make the processor finish all earlier reads and writes of memory before it begins later reads and writes. Without
    compilation, this function does nothing, because Python keeps the order of reads and writes."""


@overload(fence)
def compile_fence():
    return lambda: fence_of_processor()


@brief
def publish(flags, rank, column, number):
    """Write ``number`` (int64), the progress of ``rank``, to the shared memory ``flags``. A rank that reads ``number``
    also sees all writes that ``rank`` made before this call.

    Because of the memory fence before the write of ``number``, neither compiler nor processor can move earlier writes
    behind this write. No rank ever reads only half of ``number``, because ``number`` is aligned and has 8 bytes.
    """
    fence()
    flags[rank, column] = number


@brief
def reached(flags, column, number):
    """Return whether all ranks have published ``number`` or a higher number.

    If the result is True, later reads see everything that the ranks wrote before they published ``number``. Because of
    the memory fence after the reads of ``flags``, no later read is moved before these reads.
    """
    for rank in range(flags.shape[0]):
        if flags[rank, column] < number:
            return False
    fence()
    return True


@brief
def reached_soon(flags, column, number, tries):
    """Check up to ``tries`` times whether all ranks have published ``number`` or a higher number. Return whether a
    check succeeded."""
    for _ in range(tries):
        if reached(flags, column, number):
            return True
        fence()  # the fence makes the next check read memory again
    return False


@compiled
def sum_rows(rows, begin, end, scale, total):
    """Set ``total`` to ``scale`` times the sum of the elements ``begin`` to ``end`` of all ``rows``. The rows are added
    in ascending order, in the dtype of ``rows``."""
    first, second = rows[0][begin:end], rows[1][begin:end]
    for k in range(total.size):
        total[k] = first[k] + second[k]
    for number in range(2, rows.shape[0]):
        row = rows[number][begin:end]
        for k in range(total.size):
            total[k] += row[k]
    if scale != 1:
        for k in range(total.size):
            total[k] *= scale


@compiled
def sum_soon(flags, rank, column, number, rows, begin, scale, x, tries):
    """Do the all-reduce of a short array x in one call: copy x into the row of ``rank``, publish ``number``, wait for
    the other ranks, and set x to the sum of all rows.

    Return False and compute no sum if not all ranks have published ``number`` within ``tries`` checks. Return True
    after the sum.
    """
    rows[rank][begin : begin + x.size] = x
    publish(flags, rank, column, number)
    if not reached_soon(flags, column, number, tries):
        return False
    sum_rows(rows, begin, begin + x.size, scale, x)
    return True


@compiled
def replace_rows(rows, begin, end, scale, scratch):
    """Replace the elements ``begin`` to ``end`` of each row by ``scale`` times the sum of these elements over all
    ``rows``.

    ``scratch``: array for sums, whose length is the number of elements that are summed at a time. ``scratch`` should
    fit into the processor's cache.
    """
    for start in range(begin, end, scratch.size):
        stop = min(start + scratch.size, end)
        total = scratch[: stop - start]
        sum_rows(rows, start, stop, scale, total)
        for number in range(rows.shape[0]):
            row = rows[number][start:stop]
            for k in range(total.size):
                row[k] = total[k]
