"""Marks: the points of a run at which snapshots of the model are taken."""

import math
import operator

EARLY_MARKS = 6
"""Number of early marks (points for extra snapshots near the start, see `Marks`) in a run that is not simulated."""
MAX_MARKS = 10**6
"""Largest number of marks (snapshot points) that a checkpoint may record. A run refuses to go on from a checkpoint with
more than `MAX_MARKS` marks."""


class Marks:
    """Marks of a run, the points at which snapshots are taken. ``count`` marks (snapshot points) divide the run into
    equal parts, with the last mark at ``end``. ``early`` further marks (snapshot points) are at 1/2, 1/4, 1/8 ... of
    the distance to the first of the ``count`` marks. If a run is stopped early, its curve (test results at snapshots)
    has points at the early marks.

    ``in_seconds`` says whether marks are measured in seconds or, if False, in samples of all ranks.
    """

    def __init__(self, end: float, count: int, early: int = 0, in_seconds: bool = False, shift: int = 0):
        self.end = end
        self.count = count
        self.early = early
        self.in_seconds = in_seconds
        self.shift = shift
        """Number that a resumed run adds to the number of this object's marks (snapshot points) that the run has
        passed. When the run was resumed, it had passed ``shift`` more marks than this object has up to that point."""
        self.passed = 0
        """Number of marks (snapshot points) that the run has passed."""

    @property
    def total(self) -> int:
        """Number of all marks (snapshot points) of the run, including early marks and the mark at the end."""
        return self.shift + self.early + self.count

    def due(self, value: float) -> int:
        """Return the number of marks (snapshot points) that the run has passed since the last call of this method.
        ``value`` is the present progress in samples or seconds. The mark at the end of the run is not included in the
        returned number."""
        before = self.passed
        self.passed = max(before, self.shift + self.reached(value))
        return self.passed - before

    def reached(self, value: float) -> int:
        """Return the number of marks (snapshot points) up to ``value`` samples or seconds, without ``shift`` and the
        mark at the end."""
        reached = min(int(value * self.count / self.end), self.count - 1)
        early = sum(value * self.count * 2**halving >= self.end for halving in range(1, self.early + 1))
        return self.early + reached if reached else early

    def state(self) -> dict:
        """Return the attributes that a checkpoint stores for `Marks.go_on` in a run that continues this run."""
        return {name: getattr(self, name) for name in ("end", "count", "early", "in_seconds", "shift")}

    def go_on(self, state: dict, samples: int, seconds: float, early: int) -> int:
        """Adapt the marks (snapshot points) of this object to a resumed run, which has passed other marks before.
        Before the run was resumed, it had the marks of ``state``, and lasted for ``samples`` samples and ``seconds``
        seconds.

        ``early`` is the number of early marks (snapshot points near the start) that the run had before it was resumed.
        Returns the number of early marks among all marks of the resumed run. All ranks must give the same arguments, so
        that mark number k is the same point on all ranks. Raises TypeError or ValueError for a ``state`` that no run
        can have.
        """
        before = Marks(**state)
        before.check()
        had = before.shift + before.reached(seconds if before.in_seconds else samples)
        would_have_had = self.reached(seconds if self.in_seconds else samples)
        self.shift = had - would_have_had
        return min(had, early) + max(self.early - would_have_had, 0)

    def check(self):
        """Raise TypeError or ValueError if ``count``, ``early``, ``shift`` or ``end`` is out of range. Without this
        check, huge numbers could make the method `reached` run for ever."""
        counts = {"count": (1, MAX_MARKS), "early": (0, EARLY_MARKS), "shift": (-MAX_MARKS, MAX_MARKS)}
        for name, (least, most) in counts.items():
            if not least <= operator.index(getattr(self, name)) <= most:
                raise ValueError(f"marks.{name} is not between {least} and {most}")
        if not 0 < self.end < math.inf:
            raise ValueError("marks.end is not a positive number")

    @property
    def next(self) -> float:
        """Number of samples or seconds at the next mark (snapshot point), the first mark that the run has not
        passed."""
        passed = max(self.passed - self.shift, 0)
        if passed < self.early:
            return self.end / self.count / 2 ** (self.early - passed)
        return self.end * (passed - self.early + 1) / self.count
