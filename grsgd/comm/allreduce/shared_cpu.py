"""Compiled loops of `grsgd.comm.allreduce.shared`: sums of arrays, and numbers by which ranks publish their progress.

Sums release Python's global lock. Functions that take less than a microsecond keep this lock, because getting the lock
back may take longer than the function.
"""

from numba import njit, types
from numba.extending import intrinsic, overload

compiled = njit(nogil=True, cache=True)
brief = njit(cache=True)


@intrinsic
def fence_of_processor(typing_context):
    """Compile a call of this function to a memory fence of the processor."""

    def generate(context, builder, signature, arguments):
        builder.fence("seq_cst")
        return context.get_dummy_value()

    return types.void(), generate


def fence():
    """Make the processor finish all earlier reads and writes before it begins later reads and writes. Loops that run as
    Python keep this order without a fence."""


@overload(fence)
def compile_fence():
    return lambda: fence_of_processor()


@brief
def publish(flags, rank, column, number):
    """Tell the other ranks the int64 ``number`` that ``rank`` has reached. A rank that reads ``number`` also sees all
    writes that ``rank`` made before this call.

    The fence comes before the write of the number. So neither compiler nor processor can move earlier writes behind
    this write. No rank ever sees half of an aligned number of 8 bytes.
    """
    fence()
    flags[rank, column] = number


@brief
def reached(flags, column, number):
    """Return whether all ranks have published ``number`` or a higher number.

    If so, later reads see everything that the ranks wrote before they published. The fence comes after the reads of the
    numbers, so no later read is moved before them.
    """
    for rank in range(flags.shape[0]):
        if flags[rank, column] < number:
            return False
    fence()
    return True


@brief
def reached_soon(flags, column, number, tries):
    """Return whether all ranks have `reached` ``number`` within ``tries`` looks."""
    for _ in range(tries):
        if reached(flags, column, number):
            return True
        fence()  # the next look must read memory: the compiler must not assume that nothing has changed
    return False


@compiled
def sum_rows(rows, begin, end, scale, total):
    """Set ``total`` to ``scale`` times the sum of all rows from ``begin`` to ``end``, row after row, in one dtype."""
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
    """Do a whole short all-reduce in one call: put x into the row of ``rank``, publish, wait, and sum all rows into x.

    Return False, without a sum, if not all ranks have published ``number`` within ``tries`` looks; else True.
    """
    rows[rank][begin : begin + x.size] = x
    publish(flags, rank, column, number)
    if not reached_soon(flags, column, number, tries):
        return False
    sum_rows(rows, begin, begin + x.size, scale, x)
    return True


@compiled
def replace_rows(rows, begin, end, scale, scratch):
    """Write ``scale`` times the sum of all rows from ``begin`` to ``end`` into each row.

    ``scratch``: array for the sums. Its length is the number of elements that are summed at a time. It should be short
    enough for the processor's cache.
    """
    for start in range(begin, end, scratch.size):
        stop = min(start + scratch.size, end)
        total = scratch[: stop - start]
        sum_rows(rows, start, stop, scale, total)
        for number in range(rows.shape[0]):
            row = rows[number][start:stop]
            for k in range(total.size):
                row[k] = total[k]
