"""A request to end a run, as an operator's signal makes it."""

import os
import signal
import time

from grsgd.job.progress_line import ProgressLine


class Ending(ProgressLine):
    """A progress line that sends this process SIGUSR1 after ``steps`` of its steps."""

    def __init__(self, steps: int):
        super().__init__(is_shown=False)
        self.left = steps

    def update(self, progress, loss):
        self.left -= 1
        if self.left == 0:
            os.kill(os.getpid(), signal.SIGUSR1)
            time.sleep(0.03)  # steps are short: the thread that waits for signals must get it before the next step
