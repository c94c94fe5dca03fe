"""A signal of an operator during a run."""

import os
import signal
import time

from grsgd.job.progress_line import ProgressLine


class Ending(ProgressLine):
    """A progress line that sends this process a signal after ``steps`` of its steps; SIGUSR1 ends a run."""

    def __init__(self, steps: int, number: int = signal.SIGUSR1):
        super().__init__(is_shown=False)
        self.left, self.number = steps, number

    def update(self, progress, loss):
        self.left -= 1
        if self.left == 0:
            os.kill(os.getpid(), self.number)
            time.sleep(0.03)  # steps are short: the thread that waits for signals must get it before the next step
