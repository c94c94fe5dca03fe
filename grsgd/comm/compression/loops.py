"""Loops of the compressors, compiled by numba, for vectors of float32 and float64 on the CPU. One of these loops, for
example, finds the k largest values of a vector.

Each loop reads or writes the memory of a vector once or twice, and releases Python's global interpreter lock.
"""

import numpy as np
from numba import njit
from numba.extending import intrinsic

compiled = njit(nogil=True, cache=True)

BINS = 1 << 11
"""Number of bins into which the function `largest` sorts the magnitudes of a vector's values."""
RUN, RUN_EVERY = 16, 2048
"""Sizes of the sample from which the function `largest` estimates the k-th largest magnitude: the sample consists of
the first `RUN` of every `RUN_EVERY` values of a vector."""
PIECE = 1 << 11
"""Number of values of the difference x - y of two vectors that a loop computes at a time. The `PIECE` values fit into
the processor's first cache, from which the loop reads them again."""


# The loops use integers of 32 bits, although numba would choose 64 bits, because a vector register holds twice as many
# integers of 32 bits.
u32, i32 = np.uint32, np.int32
SCALE_OF_NOISE = np.float32(2.0**-24)


@compiled
def uniform(seed, i):
    """Return a random number from 0 to 1 (float32) for the vector's element with the index ``i``. The random number
    depends only on ``seed`` and ``i``, and is computed by the hash function lowbias32."""
    h = u32(i) ^ seed
    h = u32((h ^ (h >> u32(16))) * u32(0x7FEB352D))
    h = u32((h ^ (h >> u32(15))) * u32(0x846CA68B))
    h = h ^ (h >> u32(16))
    return np.float32(i32(h >> u32(8))) * SCALE_OF_NOISE


def round_blocks(x, block: int, bits: int, seed: int, scales, codes):
    """Round the blocks of the vector ``x``: write the scale factor (float32) of each block to ``scales``, and a code of
    ``bits`` bits for each value to ``codes``. The code of a value is the multiple of the block's scale factor to which
    the value is randomly rounded.

    The parameter ``bits`` must be 8 or 4. The parameter ``block``, the number of values per block, must be even.
    """
    words = x.view(np.int32 if x.itemsize == 4 else np.int64)
    levels = 2 ** (bits - 1) - 1
    _scales(words, words.dtype.type(np.iinfo(words.dtype).max), block, np.float32(levels), x[:1], scales)
    round_rows = _round_bytes if bits == 8 else _round_halves
    round_rows(x, block, x.dtype.type(levels), u32(seed), scales, codes)


@compiled
def _scales(words, magnitude, block, levels, like, scales):
    """Write the scale factor of each block to ``scales``: the largest magnitude of the block's values, divided by
    ``levels``.

    The loop compares the bits of the magnitudes as integers, which have the same order as the magnitudes. In this
    order, NaN is larger than infinity.
    """
    bits = np.empty(1, words.dtype)
    value = bits.view(like.dtype)
    for number in range(scales.size):
        part = words[number * block : (number + 1) * block]
        bits[0] = 0
        for i in range(part.size):
            bits[0] = max(bits[0], words.dtype.type(part[i] & magnitude))
        scales[number] = np.float32(value[0]) / levels


@compiled
def _round_row(part, begin, scale, levels, seed, out):
    """Round ``part``, the values of one block, at random, and write their codes (uint8, from 0 to twice ``levels``) to
    ``out``."""
    T = part.dtype.type
    inverse = T(1 / scale if 0 < scale < np.inf else 0)
    for i in range(part.size):
        code = np.floor(part[i] * inverse + T(uniform(seed, u32(begin) + u32(i)))) + levels
        out[i] = np.uint8(i32(min(max(code, T(0)), levels + levels)))


@compiled
def _round_bytes(x, block, levels, seed, scales, codes):
    for number in range(scales.size):
        begin, end = number * block, (number + 1) * block
        _round_row(x[begin:end], begin, scales[number], levels, seed, codes[begin:end])


@compiled
def _round_halves(x, block, levels, seed, scales, codes):
    row = np.zeros(block, np.uint8)
    for number in range(scales.size):
        begin, end = number * block, min((number + 1) * block, x.size)
        if end % 2:
            row[end - begin] = 0
        _round_row(x[begin:end], begin, scales[number], levels, seed, row)
        out = codes[begin // 2 : (end + 1) // 2]
        for pair in range(out.size):
            out[pair] = row[2 * pair] | (row[2 * pair + 1] << np.uint8(4))


@compiled
def _expand_row(codes, scale, levels, out):
    T = out.dtype.type
    for i in range(out.size):
        out[i] = (T(i32(codes[i])) - levels) * scale


@compiled
def expand_bytes(codes, block, scales, out):
    """Decode ``codes`` and ``scales``, the results of `round_blocks` with 8 bits per value, and write the decoded
    values to ``out``."""
    T = out.dtype.type
    for number in range(scales.size):
        part = slice(number * block, (number + 1) * block)
        _expand_row(codes[part], T(scales[number]), T(127), out[part])


@compiled
def expand_halves(codes, block, scales, out):
    """Decode ``codes`` and ``scales``, the results of `round_blocks` with 4 bits per value, and write the decoded
    values to ``out``."""
    T = out.dtype.type
    row = np.empty(block, np.uint8)
    for number in range(scales.size):
        begin, end = number * block, min((number + 1) * block, out.size)
        packed = codes[begin // 2 : (end + 1) // 2]
        for pair in range(packed.size):
            row[2 * pair] = packed[pair] & np.uint8(15)
            row[2 * pair + 1] = packed[pair] >> np.uint8(4)
        _expand_row(row, T(scales[number]), T(7), out[begin:end])


@compiled
def signs(x, block, scales, codes):
    """Write the mean magnitude (float32) of each block of ``x`` to ``scales``, and one bit per value to ``codes``,
    which is 1 if the value is not negative.

    The parameter ``block``, the number of values per block, must be a multiple of 8.
    """
    row = np.zeros(block, np.uint8)
    for number in range(scales.size):
        part = x[number * block : (number + 1) * block]
        sums = np.zeros(8, np.float64)
        row[part.size :] = 0
        for i in range(part.size):
            row[i] = part[i] >= 0
        for i in range(part.size - part.size % 8):
            sums[i & 7] += abs(part[i])
        for i in range(part.size - part.size % 8, part.size):
            sums[0] += abs(part[i])
        scales[number] = np.float32(sums.sum() / part.size)
        out = codes[number * block // 8 : (number + 1) * block // 8]
        for group in range(out.size):
            code = np.uint8(0)
            for bit in range(8):
                code |= row[8 * group + bit] << np.uint8(bit)
            out[group] = code


@compiled
def expand_signs(codes, block, scales, out):
    """Decode ``codes`` and ``scales``, the results of `signs`, and write the decoded values to ``out``."""
    T = out.dtype.type
    for number in range(scales.size):
        scale = T(scales[number])
        part = out[number * block : (number + 1) * block]
        packed = codes[number * block // 8 : (number + 1) * block // 8]
        for i in range(part.size):
            part[i] = scale if packed[i >> 3] & np.uint8(1 << (i & 7)) else -scale


def largest(x, y, k: int, values, indices):
    """Write the ``k`` values of the vector x - y with the largest magnitudes to ``values``, and their indices (int32)
    to ``indices``. If ``y`` is None, the function uses the vector ``x`` instead of x - y.

    The function first estimates the k-th largest magnitude from a sample of the values. Values of about the estimated
    magnitude or more are copied to ``kept``, and sorted into bins by the upper bits of their magnitudes. Only the
    lowest bin from which values are needed must be searched, because all values in higher bins are among the k largest
    values. The function therefore reads ``x`` and ``y`` only once, and never writes the whole vector x - y to memory.
    """
    if k == 0:
        return
    word = np.dtype(np.int32 if x.itemsize == 4 else np.int64)
    magnitude, shift = word.type(np.iinfo(word).max), 8 * x.itemsize - 12
    piece, kept, places = np.empty(PIECE, x.dtype), np.empty(x.size + 1, word), np.empty(x.size + 1, np.int32)
    counts = np.zeros(BINS, np.int64)
    _count_sample(x, y, piece, magnitude, shift, counts)
    lowest = max(last_bin(counts, counts.sum() * k / x.size) - 1, 0)
    found = _find(x, y, piece, magnitude, word.type(lowest << shift), kept, places)
    if found < k:  # the estimate of the k-th largest magnitude was too large
        found = _find(x, y, piece, magnitude, word.type(0), kept, places)
    kept, places = kept[:found], places[:found]
    counts[:] = 0
    _count(kept, magnitude, shift, counts)
    last = last_bin(counts, k)
    certain = k - counts[last + 1 :].sum()  # number of values that are taken from the bin `last`
    words, waiting = values.view(word), counts[last] + 1
    candidates, their_places = np.empty(waiting, word), np.empty(waiting, np.int32)
    _select(kept, places, magnitude, shift, last, words, indices, candidates, their_places)
    candidates, their_places = candidates[:-1], their_places[:-1]
    if certain < candidates.size:
        order = np.argpartition(candidates & magnitude, candidates.size - certain)[candidates.size - certain :]
        candidates, their_places = candidates[order], their_places[order]
    words[k - certain :], indices[k - certain :] = candidates, their_places


def last_bin(counts, k: float) -> int:
    """Return the number of the highest bin for which this bin and all higher bins together contain at least ``k``
    values.
    ``counts``: number of values in each bin."""
    return int(np.flatnonzero(np.cumsum(counts[::-1])[::-1] >= k)[-1])


@compiled
def _difference(x, y, begin, piece):
    """Return a piece of the vector x - y that begins at the index ``begin`` and has at most as many values as
    ``piece``. If ``y`` is None, return a piece of ``x``."""
    part = x[begin : begin + piece.size]
    if y is None:
        return part
    result, other = piece[: part.size], y[begin : begin + piece.size]
    for i in range(part.size):
        result[i] = part[i] - other[i]
    return result


@compiled
def _count_sample(x, y, piece, magnitude, shift, counts):
    """Add the number of sampled magnitudes in each bin to ``counts``. The sample consists of the first `RUN` of every
    `RUN_EVERY` values of the vector."""
    for begin in range(0, x.size, RUN_EVERY):
        words = _difference(x, y, begin, piece[:RUN]).view(type(magnitude))
        for i in range(words.size):
            counts[(words[i] & magnitude) >> shift] += 1


@compiled
def _find(x, y, piece, magnitude, lowest, kept, places):
    """Write the values of the vector with magnitudes of at least ``lowest`` to ``kept`` (as integers with the same
    bits), and their ascending indices to ``places``. Return the number of values that were written to ``kept``."""
    found = 0
    for begin in range(0, x.size, piece.size):
        words = _difference(x, y, begin, piece).view(kept.dtype)
        count = _find_in_piece(words, magnitude, lowest, places[found:])
        _keep(words, begin, kept[found : found + count], places[found : found + count])
        found += count
    return found


# The loops `_find_in_piece` and `_select` write every value, but increase the index of the output only after a value
# that must be kept. So the loops have no branch that the processor could mispredict. The output arrays have one more
# element than needed, for a last value that is not kept.


@compiled
def _find_in_piece(words, magnitude, lowest, places):
    """Write the indices of those ``words`` whose magnitude is at least ``lowest`` to ``places``. Return the number of
    indices that were written to ``places``."""
    found = 0
    for i in range(words.size):
        places[found] = i
        found += (words[i] & magnitude) >= lowest
    return found


@compiled
def _keep(words, begin, kept, places):
    """Copy the elements of ``words`` at the indices ``places`` to ``kept``. Add ``begin``, the index of the first
    element of ``words`` in the whole vector, to ``places``."""
    for i in range(places.size):
        kept[i] = words[places[i]]
        places[i] += begin


@compiled
def _count(kept, magnitude, shift, counts):
    for word in kept:
        counts[(word & magnitude) >> shift] += 1


@compiled
def _select(kept, places, magnitude, shift, last, words, indices, candidates, their_places):
    """Write the values in bins above the bin ``last`` to ``words``, and their indices to ``indices``. Write the values
    in the bin ``last`` to ``candidates``, and their indices to ``their_places``."""
    found = waiting = 0
    for i in range(kept.size):
        number = (kept[i] & magnitude) >> shift
        words[found], indices[found] = kept[i], places[i]
        candidates[waiting], their_places[waiting] = kept[i], places[i]
        found += number > last
        waiting += number == last


@intrinsic
def multiply_add(context, a, b, c):
    """Return a * b + c, rounded only once, as torch rounds in ``c.add_(a, alpha=b)``."""
    return a(a, a, a), lambda context, builder, signature, arguments: builder.fma(*arguments)


@compiled
def add_at(places, values, weight, out):
    """Add ``weight`` times ``values[i]`` to ``out[places[i]]``, for every index ``i`` of ``values``. All elements of
    ``places`` must be different."""
    for i in range(places.size):
        out[places[i]] = multiply_add(values[i], weight, out[places[i]])
