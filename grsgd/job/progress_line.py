"""Progress line, which shows the run's present activity and progress to the user in one line."""

import math
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress

from grsgd.errors import RunFileError
from grsgd.job.progress_text import LinePart, Status, line, parts
from grsgd.job.terminal import Terminal
from grsgd.runs.loggers import Logger, begin, conclude, go_on

REFRESH_SECONDS = 0.2
"""Seconds between two changes of the progress line on a terminal."""
LINES = 20
"""Number of equal parts into which a run is divided for its progress lines. If the output is no terminal, a progress
line is printed after each of the `LINES` parts."""
LINE_SECONDS = 30.0
"""Largest number of seconds between two printed progress lines, if the output is no terminal."""
MIN_LINE_SECONDS = 1.0
"""Smallest number of seconds between two printed progress lines, if the output is no terminal."""
LONG_SECONDS = 2.0
"""If the output is no terminal, the name of an activity before or after training is printed when the activity has
lasted for this number of seconds."""


class Mean:
    """Mean of the values, such as losses, that were added since the last call of `take`."""

    def __init__(self):
        self.sum, self.count = 0.0, 0

    def add(self, value: float):
        self.sum += value
        self.count += 1

    def take(self) -> float | None:
        """Return the mean of the values added since the last call, or None if no values were added."""
        sum, count = self.sum, self.count
        self.sum, self.count = 0.0, 0
        return sum / count if count else None


class ProgressLine:
    """Progress line of a run, which is replaced again and again on a terminal. Without a terminal, new lines are
    printed on stderr from time to time.

    Parameters
    ----------
    name
        Text at the beginning of the line on the terminal. The attribute ``name`` may be changed.
    is_shown
        Whether this process shows the line. Only one rank of a job shows the progress line.
    """

    def __init__(self, name: str = "grsgd", is_shown: bool = True):
        self.name, self.is_shown = name, is_shown
        self.loggers: list[Logger] = []
        """Loggers that get the run's numbers (such as loss and samples) after every twentieth of the run, and at least
        every 30 s."""
        self.terminal = Terminal.find() if is_shown else None
        self._what = ""
        self._timer: threading.Timer | None = None
        self._printed = self._looked = time.perf_counter()

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self.clear()
        if self.terminal is not None:
            self.terminal.close()
            self.terminal = None
        self.is_shown = False
        self._each_logger(lambda logger: logger.close())

    def clear(self):
        """Remove the progress line from the terminal, so that other output can be printed."""
        self._stop_timer()
        if self.terminal is not None and self.terminal.is_in_foreground():
            self.terminal.clear()

    def hide(self):
        """Remove the progress line, and show no progress line from now on."""
        self.clear()
        self.is_shown = False

    # ---- methods for the time before and after training

    def doing(self, what: str, only_live: bool = False):
        """Show ``what``, a text about the present activity, until the next call of this method. With ``only_live`` the
        text is shown only on a terminal."""
        if not self.is_shown:
            return
        self._stop_timer()
        self._what, self._printed = what, time.perf_counter()
        if self._is_live():
            self._show([LinePart(what, 0)])
        if self._is_live() or only_live:
            return
        self._timer = threading.Timer(LONG_SECONDS, self._print, ([LinePart(what, 0)],))
        self._timer.daemon = True
        self._timer.start()

    def counted(self, done: int):
        """Show that ``done`` parts of the present activity, such as snapshots that are evaluated, are complete."""
        if not self.is_shown:
            return
        text, now = [LinePart(self._what, 0), LinePart(f"{done} done", 1)], time.perf_counter()
        if self._is_live():
            if now - self._looked >= REFRESH_SECONDS:
                self._looked = now
                self._show(text)
        elif now - self._printed >= LINE_SECONDS:
            self._print(text)

    # ---- methods for the time of training

    def training(self, trainer, simulated: bool = False):
        """Show, from now on, the progress of training by this rank's ``trainer``, which calls `update` after each step.
        ``simulated`` says whether the trainer's clock is simulated. The loggers are told that training begins."""
        self._stop_timer()
        self._each_logger(begin)
        self.trainer, self.simulated = trainer, simulated
        self._began = self._printed = self._logged = self._looked = time.perf_counter()
        self._next_line = self._next_row = after(0.0)
        self._loss, self._row_loss = Mean(), Mean()

    def update(self, progress, loss: float | None):
        """Show the progress of the run. ``loss`` is this rank's loss in its last step, or None."""
        if not self.is_shown or self.trainer.stop_signal.request is not None:  # a signal has asked for the end
            return  # a line about the end of the run was shown already
        if loss is not None:
            self._loss.add(loss)
            self._row_loss.add(loss)
        now, share = time.perf_counter(), min(progress.share(), 1.0)
        if self.loggers and (share >= self._next_row or now - self._logged >= LINE_SECONDS):
            self._logged, self._next_row = now, after(share)
            status = self.status(progress, now, self._row_loss.take())
            self.log(status.step, status.numbers())
        if now - self._looked < REFRESH_SECONDS:
            return
        self._looked = now
        if self._is_live():
            self._show(parts(self.status(progress, now, self._loss.take())))
        elif now - self._printed >= (MIN_LINE_SECONDS if share >= self._next_line else LINE_SECONDS):
            self._next_line = after(share)
            self._print(parts(self.status(progress, now, self._loss.take())))

    def status(self, progress, now: float, loss: float | None) -> Status:
        """Return the state of the run at the time ``now``, for the progress line and the loggers."""
        elapsed, share, totals = max(progress.elapsed(), 1e-9), min(progress.share(), 1.0), self.trainer.totals
        return Status(
            share,
            totals.steps + 1,  # the step that has just ended is not yet in ``totals``
            progress.samples,
            progress.samples / len(self.trainer.data.train),
            loss,
            progress.samples / elapsed,
            min(totals.wait_seconds / elapsed, 1.0),
            (now - self._began) * (1 - share) / share if share > 0 else None,
            elapsed,
            self.simulated,
        )

    def log(self, step: int, values: dict[str, float]):
        """Pass ``values``, a dictionary from names to numbers, to the loggers. A logger that fails gets no further
        numbers, and the run goes on."""
        self._each_logger(lambda logger: logger.log(step, values))

    def go_on(self, step: int):
        """Tell the loggers that the run goes on after ``step``, so that the loggers keep the
        numbers of earlier steps."""
        self._each_logger(lambda logger: go_on(logger, step))

    def conclude(self, run):
        """Pass the finished run to the loggers."""
        self._each_logger(lambda logger: conclude(logger, run))

    def _each_logger(self, call: Callable[[Logger], None]):
        for logger in list(self.loggers):
            try:
                call(logger)
            except RunFileError as error:
                self.loggers.remove(logger)
                self.clear()
                print(f"warning: {error}: nothing more is written there", file=sys.stderr, flush=True)

    # ---- methods that print on the terminal or on stderr

    def _is_live(self) -> bool:
        return self.terminal is not None and self.terminal.is_in_foreground()

    def _show(self, text: list[LinePart]):
        self.terminal.show(line(text, self.name, self.terminal.width()))

    def _print(self, text: list[LinePart]):
        """Print ``text`` as a new line on stderr."""
        if self.terminal is not None and self.terminal.stops_background():
            return
        self._printed = time.perf_counter()
        with suppress(OSError, ValueError):  # printing fails if stderr is closed
            print(line(text), file=sys.stderr, flush=True)

    def _stop_timer(self):
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def after(share: float) -> float:
    """Return the share of the run, above ``share``, at which the next progress line must be printed."""
    return (math.floor(share * LINES) + 1) / LINES
