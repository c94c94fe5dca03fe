"""A progress line which sends a signal to its own process during a run, as an operator would."""

import os
import signal
import time

from grsgd.job.progress_line import ProgressLine


class Ending(ProgressLine):
    """A progress line that sends signal ``number`` to this process after ``steps`` updates. SIGUSR1 ends a run."""

    def __init__(self, steps: int, number: int = signal.SIGUSR1):
        super().__init__(is_shown=False)
        self.left, self.number = steps, number

    def update(self, progress, loss):
        self.left -= 1
        if self.left == 0:
            os.kill(os.getpid(), self.number)
            time.sleep(0.03)  # let the thread that waits for signals get the signal before the next, short step
