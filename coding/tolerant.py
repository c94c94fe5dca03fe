"""Codes by which n ranks compute the sum of all blocks' gradients although some of the ranks are silent.

The r ranks q, q + 1, ... q + r - 1 (modulo n) compute block q, and up to s of the n ranks may be silent (send no
message). A rank sends one message, which has 1/m of the length of a gradient, with m = r - s. The messages of any n - s
ranks determine the sum of all blocks' gradients. For m = 1 the code is a gradient code by cyclic repetition (Tandon,
Lei, Dimakis, Karampatziakis 2017). For m > 1 the code tolerates fewer silent ranks, and its messages are shorter (Ye,
Abbe 2018, who show that r >= s + m is necessary). The papers of Tandon et al. and of Ye and Abbe compute with real
numbers. In this module all arithmetic is modulo a prime (`coding.prime_field`), so the decoded sum is exact for
messages of any n - s ranks.

The code is constructed as follows. The gradient G_q of block q is divided into m parts, which are the rows of a matrix.
V is the matrix of the powers V[l, i] = (i + 1)^l, l < n - s. Each block q has a matrix Z_q of shape [n - s, m]. The
first m rows of Z_q are the unit matrix. The n - r other rows of Z_q are chosen so that V[:, i]^T Z_q = 0 for the n - r
ranks i that do not compute the block. The conditions for Z_q are n - r equations, whose matrix consists of powers of
different numbers, so the equations have exactly one solution. Rank i sends V[:, i]^T X, where X = sum over q of Z_q
G_q. For its message, rank i needs only the blocks that it computes. The messages of n - s ranks are n - s equations for
the rows of X, and the matrix of these equations consists of powers as well. The first m rows of X are the parts of the
sum of all gradients.
"""

from functools import cached_property, lru_cache

import numpy as np

from coding.partition import bounds
from coding.placement import CyclicPlacement, PlacementError
from coding.prime_field import P, centred, powers, product, solve


class TolerantCode:
    """Code for ``n`` ranks that tolerates ``silent`` silent ranks, if each block is computed by ``r`` ranks.

    Raises PlacementError unless 0 <= silent < r <= n.
    """

    def __init__(self, n: int, r: int, silent: int):
        self.placement = CyclicPlacement(n, r)
        if not 0 <= silent < r:
            raise PlacementError(f"{silent} silent ranks with redundancy {r}: from 0 to {r - 1} ranks may be silent")
        self.n, self.r, self.silent = n, r, silent
        self.parts = r - silent
        """m, the number of parts into which a gradient is divided. A message has the length of one part of a
        gradient."""
        self.needed = n - silent
        """Number of ranks whose messages determine the sum of all gradients."""

    def length(self, length: int) -> int:
        """Return the number of elements of a message for gradients of ``length`` elements."""
        return -(-length // self.parts)

    def bounds(self, length: int) -> list[int]:
        """Return the bounds of the parts of a gradient of ``length`` elements: part v has the elements from
        ``bounds[v]`` up to, but without, ``bounds[v + 1]``."""
        return bounds(length, self.parts).tolist()

    @cached_property
    def powers(self) -> list[list[int]]:
        """Return, for each rank i, the column V[:, i] of the matrix V, which the module's docstring defines."""
        return [powers(rank + 1, self.needed) for rank in range(self.n)]

    def coefficients(self, rank: int) -> np.ndarray:
        """Return the factors in the message of ``rank``, int64 of shape [r, m]: element [k, v] is the factor of part v
        of the rank's k-th block."""
        rows = [product([self.powers[rank]], self._of_block(block))[0] for block in self.placement.blocks(rank)]
        return centred_array(rows, self.parts)

    def _of_block(self, block: int) -> list[list[int]]:
        """Return the matrix Z_q, which the module's docstring defines, for q = ``block``."""
        m, holders = self.parts, self.placement.holders(block)
        others = [self.powers[rank] for rank in range(self.n) if rank not in holders]
        unit = [[int(row == column) for column in range(m)] for row in range(m)]
        low = solve([row[m:] for row in others], [[-value for value in row[:m]] for row in others])
        return unit + low

    @lru_cache(maxsize=4096)  # noqa: B019 the cache keeps alive the few codes that a process makes
    def decoding(self, senders: tuple[int, ...]) -> np.ndarray:
        """Return the factors by which the sum of all gradients is decoded from the messages of ``senders``, int64 of
        shape [m, needed]. Row v of the returned array has the factor of each message in part v of the sum."""
        return centred_array(self._inverse(senders)[: self.parts], self.needed)

    @lru_cache(maxsize=4096)  # noqa: B019
    def repeating(self, senders: tuple[int, ...], rank: int) -> np.ndarray:
        """Return the factors with which the messages of ``senders`` sum to the message of ``rank``: one factor per
        message, int64 of shape [needed]."""
        return centred_array(product([self.powers[rank]], self._inverse(senders)), self.needed)[0]

    def _inverse(self, senders: tuple[int, ...]) -> list[list[int]]:
        if len(set(senders)) != self.needed:
            raise ValueError(f"messages of ranks {senders}: the sum needs messages of {self.needed} ranks")
        unit = [[int(row == column) for column in range(self.needed)] for row in range(self.needed)]
        return solve([self.powers[rank] for rank in senders], unit)


def centred_array(rows: list[list[int]], width: int) -> np.ndarray:
    """Return, for each number in ``rows``, the number nearest to 0 that is equal modulo P: int64 of shape [rows,
    width]."""
    return np.array([[centred(value % P) for value in row] for row in rows], np.int64).reshape(-1, width)


@lru_cache(maxsize=8)
def tolerant_code(n: int, r: int, silent: int) -> TolerantCode:
    """Return the code for n ranks, redundancy r and ``silent`` silent ranks. The results of the last 8 calls are
    cached."""
    return TolerantCode(n, r, silent)
