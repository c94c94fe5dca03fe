"""Fingerprints (hashes) of gradients. They show whether ranks that compute the same block get the same gradient. If the
gradients differ, no code can sum the blocks."""

import threading

from grsgd.comm.coded.errors import UnequalBlocks

KEPT = 16
"""Number of steps whose fingerprints are kept, so that late messages are compared, too."""


class Fingerprints:
    """The fingerprints of all blocks in the last steps, as far as this rank knows them."""

    def __init__(self):
        self._seen: dict[int, dict[int, tuple[int, int]]] = {}
        """Per step and block, the first fingerprint that this rank got, and the rank that computed it."""
        self._lock = threading.Lock()

    def compare(self, step: int, rank: int, found: dict[int, int]):
        """Compare the fingerprints ``found`` of the blocks of ``rank`` with the fingerprints of other ranks; raise
        UnequalBlocks if a block has two fingerprints."""
        with self._lock:
            if step not in self._seen:
                self._seen = {other: seen for other, seen in self._seen.items() if other > step - KEPT}
            seen = self._seen.setdefault(step, {})
            for block, value in found.items():
                other, expected = seen.setdefault(block, (rank, value))
                if value != expected:
                    raise UnequalBlocks(
                        f"step {step}: ranks {other} and {rank} have computed different gradients of block {block}: "
                        "they must compute alike (one kind of processor, version of torch and number of threads)"
                    )
