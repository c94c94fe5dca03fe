"""Order in which every training loop calls the hooks of an algorithm, in the class `Lifecycle`."""

from grsgd.algorithms.base import Algorithm
from grsgd.algorithms.central import rest_of
from grsgd.algorithms.hooks import schedule_of


class Lifecycle:
    """Object that calls the hooks which start, begin and end one rank's algorithm. Each method of `Lifecycle` is a
    schedule (a generator that yields each object it waits for).

    A training loop calls `begin` before the first step, and again after each `rest`. Between `begin` and `rest` a
    training loop calls the algorithm's hooks for steps. A training loop calls `drain` after the last step, and
    `average` after `drain`.
    """

    def __init__(self, algorithm: Algorithm):
        self.algorithm = algorithm
        self.has_started = self.has_begun = False

    def start(self):
        """Start the algorithm, whose replica holds the model at the beginning of the run; do nothing if the algorithm
        has already started."""
        if not self.has_started:
            self.has_started = True
            yield from schedule_of(self.algorithm.start)

    def begin(self):
        """Begin the algorithm's background activities, unless they have already begun. If the algorithm has not
        started, `begin` calls `start` first."""
        if not self.has_begun:
            self.has_begun = True
            yield from self.start()
            yield from schedule_of(self.algorithm.begin)

    def rest(self):
        """Receive every message under way and end all background activities, between two steps. After `rest`, the
        training loop must call `begin` before the next step."""
        yield from schedule_of(rest_of(self.algorithm))
        self.has_begun = False

    def drain(self):
        """Receive every message under way and end all background activities, after the last step."""
        yield from schedule_of(self.algorithm.drain)

    def average(self):
        """Make the models of all ranks equal to the final model of the run."""
        yield from schedule_of(self.algorithm.average)
