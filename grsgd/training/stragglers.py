"""Injected stragglers: artificial delays that prolong the training steps of chosen ranks."""

from grsgd import seeding
from grsgd.config.sections import Stragglers


class DelayModel:
    """Injected delays of one rank. There are three kinds of delays: a constant factor of the computing time, random
    delays with an exponential distribution, and periodic pauses. A rank can have delays of all three kinds.

    Random delays depend only on (seed, rank, step), so the random delays are the same for every algorithm.
    """

    def __init__(self, stragglers: Stragglers, rank: int, seed: int):
        self.factor = stragglers.slowdown.get(rank, 1.0)
        self.tail = stragglers.tail.get(rank)
        self.pause = stragglers.pause.get(rank)
        self.seed, self.rank = seed, rank

    @property
    def is_none(self) -> bool:
        """Whether this rank has no injected delay in any step."""
        return self.factor == 1 and self.tail is None and self.pause is None

    def delay(self, step: int, compute_seconds: float) -> float:
        """Return the injected delay in seconds of step number ``step`` (from 0). ``compute_seconds`` is the time that
        the computation of the step's gradient has taken."""
        seconds = (self.factor - 1) * compute_seconds
        if self.tail is not None:
            random = seeding.generator(seeding.Purpose.STRAGGLERS, self.seed, self.rank, step)
            if random.random() < self.tail.probability:
                seconds += random.exponential(self.tail.seconds)
        if self.pause is not None and (step + 1) % self.pause.every == 0:
            seconds += self.pause.seconds
        return seconds
