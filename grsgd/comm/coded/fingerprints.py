"""Fingerprints (hashes) of gradients, by which ranks check that all ranks that compute one block get equal gradients.
If two ranks have different gradients of one block, the sum of all blocks cannot be decoded."""

import threading

from grsgd.comm.coded.errors import UnequalBlocks

KEPT = 16
"""Number of steps for which a rank keeps fingerprints, so that it can compare the fingerprints in messages that arrive
some steps later."""


class Fingerprints:
    """The fingerprints of the gradients of all blocks in the last steps, as far as this rank has received them."""

    def __init__(self):
        self._seen: dict[int, dict[int, tuple[int, int]]] = {}
        """The first fingerprint received for each block in each step, and the rank that computed it: (rank,
        fingerprint) by step and block."""
        self._lock = threading.Lock()

    def compare(self, step: int, rank: int, found: dict[int, int]):
        """Compare ``found``, the fingerprints that ``rank`` has computed for its blocks, with the fingerprints from
        other ranks. Raise UnequalBlocks if two ranks have different fingerprints of one block."""
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
