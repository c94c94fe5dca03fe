"""Loops of `grsgd.comm.allreduce.shared`, compiled by numba: sums of arrays, and functions by which ranks publish and
read numbers in shared memory.

Compiled functions that sum arrays release Python's global interpreter lock. Functions that take less than a microsecond
keep Python's global interpreter lock, because getting the lock back may take longer than the function.
"""

from numba import njit, types
from numba.extending import intrinsic, overload

compiled = njit(nogil=True, cache=True)
brief = njit(cache=True)


@intrinsic
def fence_of_processor(typing_context):
    """Compile a call of `fence` to the processor's instruction for a memory fence."""

    def generate(context, builder, signature, arguments):
        builder.fence("seq_cst")
        return context.get_dummy_value()

    return types.void(), generate


def fence():
    """Make the processor finish all earlier reads and writes of memory before it begins later reads and writes. Without
    compilation, this function does nothing, because interpreted Python does not reorder reads and writes."""


@overload(fence)
def compile_fence():
    return lambda: fence_of_processor()


@brief
def publish(flags, rank, column, number):
    """Write ``number`` (int64), the progress of ``rank``, to the shared memory ``flags``. A rank that reads ``number``
    from ``flags`` also sees all writes that ``rank`` made before this call.

    Because of the memory fence before the write of ``number``, neither the compiler nor the processor can move earlier
    writes to a time after this write. No rank ever reads a half-written ``number``, because a ``number`` is 8 aligned
    bytes, which the processor writes at once.
    """
    fence()
    flags[rank, column] = number


@brief
def reached(flags, column, number):
    """Return True if all ranks have published ``number`` or a higher number in ``column`` of ``flags``.

    If the result is True, reads after this call see everything that the ranks wrote before they published ``number``.
    Because of the memory fence after the reads of ``flags``, the processor does not move later reads before the reads
    of ``flags``.
    """
    for rank in range(flags.shape[0]):
        if flags[rank, column] < number:
            return False
    fence()
    return True


@brief
def reached_soon(flags, column, number, tries):
    """Check up to ``tries`` times whether all ranks have published ``number`` or a higher number. Return True if all
    ranks had published the number in one of the checks."""
    for _ in range(tries):
        if reached(flags, column, number):
            return True
        fence()  # the fence forces the next check to read the memory again
    return False


@compiled
def sum_rows(rows, begin, end, scale, total):
    """Set the array ``total`` to ``scale`` times the sum over all ``rows`` of their elements ``begin`` to ``end``. The
    rows are added in ascending order, in the dtype of ``rows``."""
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
    """All-reduce a short array x in one call: copy x into the row of ``rank``, publish ``number``, wait for the other
    ranks, and set x to ``scale`` times the sum of all rows.

    If not all ranks have published ``number`` within ``tries`` checks, the function returns False and computes no sum.
    The function returns True if it has computed the sum.
    """
    rows[rank][begin : begin + x.size] = x
    publish(flags, rank, column, number)
    if not reached_soon(flags, column, number, tries):
        return False
    sum_rows(rows, begin, begin + x.size, scale, x)
    return True


@compiled
def replace_rows(rows, begin, end, scale, scratch):
    """Replace the elements ``begin`` to ``end`` of every row by ``scale`` times the sum of these elements over all
    ``rows``.

    ``scratch``: array into which sums are computed; its length is the number of elements summed at a time. ``scratch``
    should fit into the processor's cache.
    """
    for start in range(begin, end, scratch.size):
        stop = min(start + scratch.size, end)
        total = scratch[: stop - start]
        sum_rows(rows, start, stop, scale, total)
        for number in range(rows.shape[0]):
            row = rows[number][start:stop]
            for k in range(total.size):
                row[k] = total[k]
