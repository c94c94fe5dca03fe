"""The order in which every loop calls the hooks of an algorithm."""

from grsgd.algorithms.base import Algorithm
from grsgd.algorithms.central import rest_of
from grsgd.algorithms.hooks import schedule_of


class Lifecycle:
    """Starts, begins and ends one rank's algorithm. Each method is a schedule.

    `begin` comes before the first step, and again after each `rest`; between them a loop calls the algorithm's hooks
    of a step. `drain` comes after the last step, and `average` after it.
    """

    def __init__(self, algorithm: Algorithm):
        self.algorithm = algorithm
        self.has_started = self.has_begun = False

    def start(self):
        """Start the algorithm, which finds the first model in its replica; does nothing the second time."""
        if not self.has_started:
            self.has_started = True
            yield from schedule_of(self.algorithm.start)

    def begin(self):
        """Begin activities in the background, unless they have begun; start the algorithm before."""
        if not self.has_begun:
            self.has_begun = True
            yield from self.start()
            yield from schedule_of(self.algorithm.begin)

    def rest(self):
        """Take in every message and end all activities between two steps; `begin` comes before the next step."""
        yield from schedule_of(rest_of(self.algorithm))
        self.has_begun = False

    def drain(self):
        """Take in every message and end all activities after the last step."""
        yield from schedule_of(self.algorithm.drain)

    def average(self):
        """Make all replicas equal to the final model."""
        yield from schedule_of(self.algorithm.average)
