"""Codes by which n ranks know the sum of all blocks' gradients although some of them are silent.

Block q is computed by the r ranks q, q + 1, ... q + r - 1 (modulo n), and s of all ranks may be silent. A rank sends
one message, m = r - s times shorter than a gradient; the messages of any n - s ranks tell the sum. For m = 1 that is a
gradient code by cyclic repetition (Tandon, Lei, Dimakis, Karampatziakis 2017), for m > 1 the trade of tolerance for
shorter messages (Ye, Abbe 2018), who show that r >= s + m is necessary. Both compute with real numbers; here all is
modulo a prime (`coding.prime_field`), so that what is decoded is the sum itself, whichever ranks it comes from.

How it is made. A gradient G_q is cut into m parts. With V the matrix of the powers V[l, i] = (i + 1)^l, l < n - s, each
block has a matrix Z_q of shape [n - s, m] whose first m rows are the unit matrix, and whose n - r other rows are such
that V[:, i]^T Z_q = 0 for the n - r ranks i that do not compute the block: as many equations, with the matrix of powers
for different numbers, so there is one solution. Rank i sends V[:, i]^T X, where X = sum over q of Z_q G_q, for which it
needs its own blocks alone. The messages of n - s ranks are n - s equations for the rows of X, again with a matrix of
powers; the first m rows of X are the parts of the sum.
"""

from functools import cached_property, lru_cache

import numpy as np

from coding.partition import bounds
from coding.placement import CyclicPlacement, PlacementError
from coding.prime_field import P, centred, powers, product, solve


class TolerantCode:
    """The code of ``n`` ranks, each block on ``r`` of them, that tolerates ``silent`` silent ranks.

    Raises PlacementError unless 0 <= silent < r <= n.
    """

    def __init__(self, n: int, r: int, silent: int):
        self.placement = CyclicPlacement(n, r)
        if not 0 <= silent < r:
            raise PlacementError(f"{silent} silent ranks with redundancy {r}: there may be from 0 to {r - 1}")
        self.n, self.r, self.silent = n, r, silent
        self.parts = r - silent
        """m: into how many parts a gradient is cut, of each of which a message has the length."""
        self.needed = n - silent
        """How many ranks' messages tell the sum."""

    def length(self, length: int) -> int:
        """Return how many elements a message has where gradients have ``length``."""
        return -(-length // self.parts)

    def bounds(self, length: int) -> list[int]:
        """Return where the parts of a gradient of so many elements begin and end: part v is [v] to [v + 1]."""
        return bounds(length, self.parts).tolist()

    @cached_property
    def powers(self) -> list[list[int]]:
        """V[:, i] of each rank i."""
        return [powers(rank + 1, self.needed) for rank in range(self.n)]

    def coefficients(self, rank: int) -> np.ndarray:
        """Return by what a rank multiplies part v of the k-th of its blocks in its message: int64 of shape [r, m]."""
        rows = [product([self.powers[rank]], self._of_block(block))[0] for block in self.placement.blocks(rank)]
        return centred_array(rows, self.parts)

    def _of_block(self, block: int) -> list[list[int]]:
        """Return Z_q."""
        m, holders = self.parts, self.placement.holders(block)
        others = [self.powers[rank] for rank in range(self.n) if rank not in holders]
        unit = [[int(row == column) for column in range(m)] for row in range(m)]
        low = solve([row[m:] for row in others], [[-value for value in row[:m]] for row in others])
        return unit + low

    @lru_cache(maxsize=4096)  # noqa: B019  codes are few, and made once
    def decoding(self, senders: tuple[int, ...]) -> np.ndarray:
        """Return by what the messages of ``needed`` ranks are multiplied to get the parts of the sum: [m, needed]."""
        return centred_array(self._inverse(senders)[: self.parts], self.needed)

    @lru_cache(maxsize=4096)  # noqa: B019
    def repeating(self, senders: tuple[int, ...], rank: int) -> np.ndarray:
        """Return by what the messages of ``needed`` ranks are multiplied to get that of ``rank``: [needed]."""
        return centred_array(product([self.powers[rank]], self._inverse(senders)), self.needed)[0]

    def _inverse(self, senders: tuple[int, ...]) -> list[list[int]]:
        if len(set(senders)) != self.needed:
            raise ValueError(f"messages of ranks {senders}: those of {self.needed} ranks tell the sum")
        unit = [[int(row == column) for column in range(self.needed)] for row in range(self.needed)]
        return solve([self.powers[rank] for rank in senders], unit)


def centred_array(rows: list[list[int]], width: int) -> np.ndarray:
    """Return numbers modulo P, nearest to 0: int64 of shape [rows, width]."""
    return np.array([[centred(value % P) for value in row] for row in rows], np.int64).reshape(-1, width)


@lru_cache(maxsize=8)
def tolerant_code(n: int, r: int, silent: int) -> TolerantCode:
    """Return the code for n ranks, redundancy r and so many silent ranks, made once."""
    return TolerantCode(n, r, silent)
