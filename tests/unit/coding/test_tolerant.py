"""The code that tolerates silent ranks: every set of them, for up to 8 ranks, and what it is made of."""

from fractions import Fraction
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coding import cpu
from coding.fixed_point import TOP, FixedPoint
from coding.placement import CyclicPlacement, PlacementError
from coding.prime_field import HALF, P, centred, powers, product, solve
from coding.tolerant import TolerantCode
from tests.support.seeded import untimed

ALL = [(n, r, s) for n in range(1, 9) for r in range(1, n + 1) for s in range(r)]
LENGTH = 7


def messages(code, blocks):
    """What each rank sends: int32 of shape [n, length of a message]."""
    length = blocks.shape[1]
    bounds = code.bounds(length)
    found = np.empty((code.n, code.length(length)), np.int32)
    starts = np.array([k * length + begin for k in range(code.r) for begin in bounds[:-1]])
    lengths = np.array(np.diff(bounds).tolist() * code.r)
    for rank in range(code.n):
        own = blocks[code.placement.blocks(rank)].reshape(-1)
        cpu.combine(own, starts, lengths, code.coefficients(rank).reshape(-1), found[rank])
    return found


def decoded(code, sent, senders, length):
    """The sum that the messages of some ranks tell, int64."""
    total, size = np.full(length, 77), sent.shape[1]
    starts = np.array([rank * size for rank in senders])
    for factors, begin, end in zip(code.decoding(senders), code.bounds(length), code.bounds(length)[1:]):  # noqa: B905
        cpu.combine(sent.reshape(-1), starts, np.full(len(senders), end - begin), factors, total[begin:end])
    return total


@pytest.mark.parametrize("n, r, s", ALL)
def test_any_messages_but_those_of_s_ranks_tell_the_exact_sum(n, r, s):
    """Of blocks that take all the room there is; and the messages of all other ranks."""
    code, random = TolerantCode(n, r, s), np.random.default_rng((n, r, s))
    blocks = random.integers(-(HALF // n), HALF // n + 1, (n, LENGTH)).astype(np.int32)
    blocks[:, 0], blocks[:, -1] = HALF // n, -(HALF // n)
    sent, expected = messages(code, blocks), blocks.sum(0, dtype=np.int64)
    for senders in combinations(range(n), n - s):
        np.testing.assert_array_equal(decoded(code, sent, senders, LENGTH), expected)
        for rank in set(range(n)) - set(senders):
            made = np.empty(sent.shape[1], np.int32)
            places = np.array([sender * sent.shape[1] for sender in senders])
            cpu.combine(
                sent.reshape(-1), places, np.full(len(senders), made.size), code.repeating(senders, rank), made
            )
            np.testing.assert_array_equal(made, sent[rank])


@pytest.mark.parametrize("n, r, s", [(n, r, s) for n, r, s in ALL if n <= 6])
def test_one_message_fewer_tells_nothing_certain(n, r, s):
    """s is all that is tolerated: there are blocks with another sum and the same messages of n - s - 1 ranks."""
    if r == n:
        return  # where a rank knows all by itself
    code = TolerantCode(n, r, s)
    for senders in combinations(range(n), n - s - 1):
        known = [row for rank in senders for row in rows_of(code, rank)]
        wanted = rows_of_sum(code)
        assert rank_of(known + wanted) > rank_of(known)


def rows_of(code, rank):
    """A rank's message as a linear function of all parts of all blocks."""
    row = [0] * (code.n * code.parts)
    for block, factors in zip(code.placement.blocks(rank), code.coefficients(rank).tolist(), strict=True):
        row[block * code.parts : (block + 1) * code.parts] = factors
    return [row]


def rows_of_sum(code):
    return [[int(column % code.parts == part) for column in range(code.n * code.parts)] for part in range(code.parts)]


def rank_of(rows):
    """The rank of a matrix modulo P."""
    rows, found = [list(row) for row in rows], 0
    for column in range(len(rows[0]) if rows else 0):
        pivot = next((k for k in range(found, len(rows)) if rows[k][column] % P), None)
        if pivot is None:
            continue
        rows[found], rows[pivot] = rows[pivot], rows[found]
        inverse = pow(rows[found][column], -1, P)
        for k in range(found + 1, len(rows)):
            factor = rows[k][column] * inverse
            rows[k] = [(a - factor * b) % P for a, b in zip(rows[k], rows[found], strict=True)]
        found += 1
    return found


@pytest.mark.parametrize("n, r", [(n, r) for n in range(1, 9) for r in range(1, n + 1)])
def test_cyclic_repetition(n, r):
    """The placement of a gradient code: with messages as long as gradients (m = 1) every rank adds up multiples of r
    consecutive blocks, and every n - s of these n rows span the row of ones."""
    placement = CyclicPlacement(n, r)
    for block in range(n):
        assert set(placement.holders(block)) == {(block + k) % n for k in range(r)}
    for rank in range(n):
        blocks = placement.blocks(rank)
        assert blocks == sorted(blocks) and set(blocks) == {b for b in range(n) if rank in placement.holders(b)}
    code = TolerantCode(n, r, r - 1)
    rows = [rows_of(code, rank)[0] for rank in range(n)]
    for rank, row in enumerate(rows):
        assert {block for block, factor in enumerate(row) if factor} == set(placement.blocks(rank))
    for senders in combinations(range(n), code.needed):
        (factors,) = code.decoding(senders).tolist()
        assert [centred(value) for value in product([factors], [rows[rank] for rank in senders])[0]] == [1] * n


def test_what_cannot_be():
    for n, r, s, text in [
        (3, 4, 1, "redundancy 4 on 3 ranks: it must be from 1 to 3"),
        (3, 2, 2, "2 silent ranks with redundancy 2: from 0 to 1 ranks may be silent"),
    ]:
        with pytest.raises(PlacementError, match=f"^{text}$"):
            TolerantCode(n, r, s)
    with pytest.raises(ValueError, match="the sum needs messages of 2 ranks"):
        TolerantCode(3, 2, 1).decoding((0, 1, 2))


# ---- arithmetic


@untimed
@given(st.lists(st.tuples(st.integers(-HALF, HALF), st.integers(-(2**31), 2**31 - 1)), min_size=1, max_size=20))
def test_combinations_are_right_modulo_p(terms):
    """Whatever the factors and values, against whole numbers of any length."""
    own, out = np.array([value for _, value in terms], np.int32), np.empty(1, np.int64)
    factors, ones = np.array([factor for factor, _ in terms]), np.ones(len(terms), np.int64)
    cpu.combine(own, np.arange(len(terms)), ones, factors, out)
    assert out[0] == centred(sum(factor * value for factor, value in terms))


@pytest.mark.parametrize("size", [1, cpu.CACHED_ELEMENTS - 1, cpu.CACHED_ELEMENTS, 2 * cpu.CACHED_ELEMENTS + 3])
def test_combinations_of_long_arrays_and_short_slices(size):
    random = np.random.default_rng(size)
    own, factors = random.integers(-(2**31), 2**31, 3 * size).astype(np.int32), np.array([HALF, -HALF, 12345])
    lengths, out = np.array([size, size - 1, 0]), np.empty(size, np.int32)
    cpu.combine(own, np.arange(3) * size, lengths, factors, out)
    terms = [own[:size].astype(object) * HALF, own[size : 2 * size].astype(object) * -HALF]
    terms[1][-1] = 0
    assert out.tolist() == [centred(value) for value in terms[0] + terms[1]]


@untimed
@given(st.integers(1, 6), st.randoms())
def test_solutions_solve(size, random):
    bases = random.sample(range(1, P), size)
    matrix = [powers(base, size) for base in bases]
    right = [[random.randrange(P) for _ in range(2)] for _ in range(size)]
    assert product(matrix, solve(matrix, right)) == right


def test_a_singular_matrix_is_refused():
    with pytest.raises(ZeroDivisionError, match="singular"):
        solve([[1, 2], [2, 4]], [[1], [2]])
    assert all(P % k for k in range(2, 2**16 + 1)), "P is not a prime"


WORDS = st.integers(-(2**31), 2**31 - 1)


@untimed
@given(st.lists(WORDS, min_size=1, max_size=30), st.integers(0, 29), st.integers(1, 2**32 - 1))
def test_fingerprints_tell_arrays_apart_that_differ_in_one_element(values, place, change):
    x = np.array(values, np.int32)
    y = x.copy()
    y[place % len(y)] ^= np.uint32(change).view(np.int32)
    assert cpu.fingerprint(x) != cpu.fingerprint(y)
    assert cpu.fingerprint(x) == cpu.fingerprint(x.copy())
    exact = sum((2 * i + 1) * value for i, value in enumerate(values))
    assert (cpu.fingerprint(x) - exact) % 2**64 == 0


@pytest.mark.parametrize("n", [1, 2, 3, 7, 64])
def test_fixed_point_that_leaves_room_for_a_sum(n):
    """The step is the same, and no n results add up to more than the field holds."""
    fixed, whole = FixedPoint(10.0, HALF // n), FixedPoint(10.0)
    assert (fixed.scale, fixed.step) == (whole.scale, whole.step)
    x = np.array([10.0, -10.0, 9.9 / n, -9.9 / n, 0.0])
    q, q_whole = np.empty(5, np.int32), np.empty(5, np.int32)
    beyond = fixed.encode(x, q)
    whole.encode(x, q_whole)
    assert q[:2].tolist() == [HALF // n, -(HALF // n)] and q[2:].tolist() == q_whole[2:].tolist()
    assert beyond.count == 2 and n * (HALF // n) <= HALF < TOP
    assert beyond.limit == pytest.approx(10 / n, rel=1e-7)
    assert Fraction(fixed.largest) <= Fraction(10, n)
