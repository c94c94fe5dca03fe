"""Arithmetic of integers modulo P = 2^32 - 5, the largest prime below 2^32. Each integer modulo P fits into int32, and
each integer except 0 has an inverse modulo P.

Each integer is represented by the number nearest to 0, from -`HALF` to `HALF`. So a sum of integers modulo P is the
exact sum if the exact sum is from -`HALF` to `HALF`. Since 2^32 equals 5 modulo P, products are reduced modulo P
without a division (`coding.cpu.combine`).
"""

P = 2**32 - 5
HALF = (P - 1) // 2
"""Largest magnitude of a number that represents an integer modulo P, two less than the largest int32."""

Matrix = list[list[int]]


def centred(number: int) -> int:
    """Return the number that equals ``number`` modulo P and is nearest to 0."""
    number %= P
    return number - P if number > HALF else number


def powers(base: int, count: int) -> list[int]:
    """Return base^0 to base^(count - 1) modulo P."""
    return [pow(base, exponent, P) for exponent in range(count)]


def solve(matrix: Matrix, right: Matrix) -> Matrix:
    """Return the matrix X for which the product of ``matrix`` and X equals ``right`` modulo P, computed by elimination.
    Raise ZeroDivisionError if ``matrix`` is singular."""
    size = len(matrix)
    rows = [[*left, *more] for left, more in zip(matrix, right, strict=True)]
    for column in range(size):
        pivot = next((row for row in range(column, size) if rows[row][column] % P), None)
        if pivot is None:
            raise ZeroDivisionError("the matrix is singular")
        rows[column], rows[pivot] = rows[pivot], rows[column]
        inverse = pow(rows[column][column], -1, P)
        rows[column] = [value * inverse % P for value in rows[column]]
        for row in range(size):
            if row != column and (factor := rows[row][column]):
                pairs = zip(rows[row], rows[column], strict=True)
                rows[row] = [(value - factor * other) % P for value, other in pairs]
    return [row[size:] for row in rows]


def product(left: Matrix, right: Matrix) -> Matrix:
    """Return the product of the matrices ``left`` and ``right`` modulo P."""
    columns = list(zip(*right, strict=True))
    return [[sum(a * b for a, b in zip(row, column, strict=True)) % P for column in columns] for row in left]
