"""What asks a run to end, as an operator's signal does."""

import os
import signal
import time

from grsgd.job.progress_line import ProgressLine


class Ending(ProgressLine):
    """Sends this process SIGUSR1 after some of its steps."""

    def __init__(self, steps: int):
        super().__init__(is_shown=False)
        self.left = steps

    def update(self, progress, loss):
        self.left -= 1
        if self.left == 0:
            os.kill(os.getpid(), signal.SIGUSR1)
            time.sleep(0.03)  # steps are short: the thread that waits for signals is to have it before the next
