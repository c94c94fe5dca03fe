"""Whether ranks that compute the same block get the same gradient: if not, no code can make a sum of what they send."""

import threading

from grsgd.comm.coded.errors import UnequalBlocks

KEPT = 16
"""Steps of which fingerprints are kept: messages that come too late are compared, too."""


class Fingerprints:
    """The fingerprints of all blocks in the last steps, as far as they are known."""

    def __init__(self):
        self._seen: dict[int, dict[int, tuple[int, int]]] = {}
        """By step and block, who has told it, and the fingerprint."""
        self._lock = threading.Lock()

    def compare(self, step: int, rank: int, found: dict[int, int]):
        """Take those of a rank's blocks; raises UnequalBlocks if another rank has another one."""
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
