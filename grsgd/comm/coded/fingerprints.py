"""Fingerprints (hashes) of gradients, which show whether all ranks that compute one block get equal gradients. If the
gradients differ, the sum of the blocks cannot be decoded."""

import threading

from grsgd.comm.coded.errors import UnequalBlocks

KEPT = 16
"""Number of steps for which fingerprints are kept, so that the fingerprints in late messages can be compared."""


class Fingerprints:
    """The fingerprints of all blocks in the last steps, as far as this rank knows them."""

    def __init__(self):
        self._seen: dict[int, dict[int, tuple[int, int]]] = {}
        """First fingerprint of each block in each step, and the rank that computed the fingerprint: (rank, fingerprint)
        by step and block."""
        self._lock = threading.Lock()

    def compare(self, step: int, rank: int, found: dict[int, int]):
        """Compare ``found``, the fingerprints of the blocks of ``rank``, with the fingerprints from other ranks. Raise
        UnequalBlocks if one block has two different fingerprints."""
        with self._lock:
            if step not in self._seen:
                self._seen = {other: seen for other, seen in self._seen.items() if other > step - KEPT}
            seen = self._seen.setdefault(step, {})
            for block, value in found.items():
                other, expected = seen.setdefault(block, (rank, value))
                if value != expected:
                    raise UnequalBlocks(
                        f"step {step}: ranks {other} and {rank} have computed different gradients of block {block}: "
                        "all ranks must have one kind of processor, version of torch and number of threads"
                    )
