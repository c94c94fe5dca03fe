"""The terminal on which somebody watches a job."""

import os
import signal
import sys
import termios
from contextlib import suppress
from pathlib import Path

from grsgd import mpi_environment


class Terminal:
    """A terminal with one line that is replaced again and again.

    Launchers pass on what their ranks print, most of them only whole lines. So the line is written to where the
    launcher's own stderr goes, if that is a terminal of this host, and without a launcher to where this process's goes.
    Nothing here raises, waits or stops this process: a terminal may be closed, held by Ctrl-S, or somebody else's turn.
    """

    def __init__(self, file: int, process: int):
        """``file``: a descriptor of the terminal, which must not block; ``process``: whose terminal it is."""
        self.file, self.process = file, process
        self.shown, self.columns = "", 0
        """The text that stands there now, and how wide the terminal was then."""

    @classmethod
    def find(cls) -> "Terminal | None":
        """Return the terminal on which this job is watched; None if there is none, or none that can replace a line."""
        launcher = mpi_environment.launcher()
        if os.environ.get("TERM") == "dumb" or (launcher is None and not sys.stderr.isatty()):
            return None
        process = launcher or os.getpid()
        try:
            file = os.open(f"/proc/{process}/fd/2", os.O_WRONLY | os.O_NOCTTY | os.O_NONBLOCK)
        except OSError:  # no /proc, another user's process, or a socket
            return None
        if os.isatty(file):
            return cls(file, process)
        os.close(file)
        return None

    def is_in_foreground(self) -> bool:
        """Whether the job has the terminal: one in the background (``&``) would write into what is being typed."""
        process, foreground = self.process, -1
        while foreground == -1 and process > 1:  # it is in no terminal's session: `grsgd run` is, which has started it
            try:
                stat = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
            except OSError:
                return False
            process, group, foreground = int(stat[1]), int(stat[2]), int(stat[5])
        return foreground in (group, -1)  # -1: there is no job control

    def stops_background(self) -> bool:
        """Whether the terminal stops a process in the background that writes (``stty tostop``)."""
        with suppress(OSError, termios.error):
            return bool(termios.tcgetattr(self.file)[3] & termios.TOSTOP)
        return False

    def width(self) -> int:
        """Return how many letters there is room for in a line."""
        columns = 0
        with suppress(OSError):
            columns = os.get_terminal_size(self.file).columns
        return (columns or 80) - 1  # in the last column, some terminals begin a new line

    def show(self, line: str):
        """Replace the line."""
        width = self.width()
        line = line[:width]
        if (line, width) != (self.shown, self.columns):
            self._write(self._erasing(width) + line)
            self.shown, self.columns = line, width

    def clear(self):
        """Take the line away, so that something else can be printed there."""
        if self.shown:
            self._write(self._erasing(self.width()))
            self.shown = ""

    def close(self):
        """Leave the terminal to others."""
        if self.file >= 0:
            self.clear()
            os.close(self.file)
            self.file = -1

    def _erasing(self, width: int) -> str:
        """Return what erases the line. A terminal that has become narrower has broken it into several."""
        above = (len(self.shown) - 1) // (width + 1) if self.shown and width < self.columns else 0
        return f"\r\x1b[{above}A\x1b[J" if above else "\r\x1b[K"

    def _write(self, text: str):
        # Open MPI's ranks are process groups of their own, so to the terminal they are always in the background.
        masked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTTOU})
        try:
            os.write(self.file, text.encode(errors="replace"))
        except OSError:  # closed, or held by Ctrl-S
            pass
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, masked)
