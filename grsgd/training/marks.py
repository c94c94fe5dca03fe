"""Marks: the points of a run at which snapshots of the model are taken."""

import math
import operator

EARLY_MARKS = 6
"""Number of early marks (`Marks`) in a run in real time."""
MAX_MARKS = 10**6
"""Largest number of marks in an earlier run's checkpoint from which a run can go on."""


class Marks:
    """Marks: points of a run at which a snapshot is taken. ``count`` marks are evenly spread; the last of them is
    ``end``. ``early`` further marks are at 1/2, 1/4, 1/8 ... of the first evenly spread mark. They are for the curve of
    a run that is stopped early.

    ``in_seconds`` says whether marks are counted in seconds; otherwise they are counted in samples.
    """

    def __init__(self, end: float, count: int, early: int = 0, in_seconds: bool = False, shift: int = 0):
        self.end = end
        self.count = count
        self.early = early
        self.in_seconds = in_seconds
        self.shift = shift
        """Number of marks that a resumed run had passed when it was resumed, minus the number of these marks up to
        there."""
        self.passed = 0
        """Number of marks that have been passed."""

    @property
    def total(self) -> int:
        """Number of all marks, including early marks and the end."""
        return self.shift + self.early + self.count

    def due(self, value: float) -> int:
        """Return the number of marks between the ``value`` of the last call and the present ``value``. The mark at the
        end of the run is not counted."""
        before = self.passed
        self.passed = max(before, self.shift + self.reached(value))
        return self.passed - before

    def reached(self, value: float) -> int:
        """Return the number of these marks that are at most ``value``."""
        reached = min(int(value * self.count / self.end), self.count - 1)
        early = sum(value * self.count * 2**halving >= self.end for halving in range(1, self.early + 1))
        return self.early + reached if reached else early

    def state(self) -> dict:
        """Return the state that `Marks.go_on` needs in a later run which continues this run."""
        return {name: getattr(self, name) for name in ("end", "count", "early", "in_seconds", "shift")}

    def go_on(self, state: dict, samples: int, seconds: float, early: int) -> int:
        """Adapt these marks to a resumed run. Until now the run had the marks of ``state``, and has lasted for
        ``samples`` samples and ``seconds`` seconds.

        The first ``early`` marks of the run were early marks. Returns the number of early marks among all marks now.
        All ranks must give the same arguments, so that mark k is the same point on all ranks. Raises TypeError or
        ValueError for a state that no run has.
        """
        before = Marks(**state)
        before.check()
        had = before.shift + before.reached(seconds if before.in_seconds else samples)
        would_have_had = self.reached(seconds if self.in_seconds else samples)
        self.shift = had - would_have_had
        return min(had, early) + max(self.early - would_have_had, 0)

    def check(self):
        """Raise TypeError or ValueError for impossible numbers of marks, for which `reached` would run for ever."""
        counts = {"count": (1, MAX_MARKS), "early": (0, EARLY_MARKS), "shift": (-MAX_MARKS, MAX_MARKS)}
        for name, (least, most) in counts.items():
            if not least <= operator.index(getattr(self, name)) <= most:
                raise ValueError(f"marks.{name} is not between {least} and {most}")
        if not 0 < self.end < math.inf:
            raise ValueError("marks.end is not a positive number")

    @property
    def next(self) -> float:
        """Place of the first mark that has not been passed, in samples or seconds."""
        passed = max(self.passed - self.shift, 0)
        if passed < self.early:
            return self.end / self.count / 2 ** (self.early - passed)
        return self.end * (passed - self.early + 1) / self.count
