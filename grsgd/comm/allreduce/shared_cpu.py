"""Compiled loops of `grsgd.comm.allreduce.shared`: sums of arrays, and numbers by which ranks tell each other how far
they are. Sums leave other Python threads free; what takes less than a microsecond does not, for it would have to wait
for them then."""

from numba import njit, types
from numba.extending import intrinsic

compiled = njit(nogil=True, cache=True)
brief = njit(cache=True)


@intrinsic
def fence(typing_context):
    """Let the processor finish what it reads and writes before this, before it reads or writes anything after it."""

    def generate(context, builder, signature, arguments):
        builder.fence("seq_cst")
        return context.get_dummy_value()

    return types.void(), generate


@brief
def publish(flags, rank, column, number):
    """Tell the others a number, int64, that a rank has reached; whoever sees it sees all that was written before.

    The fence comes first, so neither compiler nor processor may put off what was written before until after the number.
    An aligned number of 8 bytes is never seen in halves.
    """
    fence()
    flags[rank, column] = number


@brief
def reached(flags, column, number):
    """Return whether all ranks have published this number, or a higher one. If so, what is read from now on was written
    before that: the fence comes last, so nothing may be read early."""
    for rank in range(flags.shape[0]):
        if flags[rank, column] < number:
            return False
    fence()
    return True


@brief
def reached_soon(flags, column, number, tries):
    """As `reached`, after so many looks at most."""
    for _ in range(tries):
        if reached(flags, column, number):
            return True
        fence()  # look again: the compiler must not take it that nothing has changed
    return False


@compiled
def sum_rows(rows, begin, end, scale, total):
    """total = ``scale`` times the sum of all rows from ``begin`` to ``end``, row after row; one dtype for all."""
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
    """Put x into a rank's row and publish the number; if all others have it after so many looks at most, sum all rows
    into x, and return True. All of a short all-reduce in one call."""
    rows[rank][begin : begin + x.size] = x
    publish(flags, rank, column, number)
    if not reached_soon(flags, column, number, tries):
        return False
    sum_rows(rows, begin, begin + x.size, scale, x)
    return True


@compiled
def replace_rows(rows, begin, end, scale, scratch):
    """Write ``scale`` times the sum of all rows from ``begin`` to ``end`` into each of them.

    scratch: of as many elements as are summed at a time, while they are in the cache.
    """
    for start in range(begin, end, scratch.size):
        stop = min(start + scratch.size, end)
        total = scratch[: stop - start]
        sum_rows(rows, start, stop, scale, total)
        for number in range(rows.shape[0]):
            row = rows[number][start:stop]
            for k in range(total.size):
                row[k] = total[k]
