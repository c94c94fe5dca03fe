"""Terminal on which a user watches a job, for the progress line."""

import os
import signal
import sys
import termios
from contextlib import suppress
from pathlib import Path

from grsgd import mpi_environment


class Terminal:
    """Terminal with one line, the progress line, that is replaced again and again.

    Most launchers pass on the output of their ranks only in whole lines. So the progress line is written to the
    launcher's own stderr, if this stderr is a terminal of this host. Without a launcher the progress line is written to
    this process's stderr. No method raises an error, waits, or stops this process, because a terminal may be closed,
    held by Ctrl-S, or used by another job.
    """

    def __init__(self, file: int, process: int):
        """Write to the file descriptor ``file`` of the terminal of ``process`` (a PID). Writing to the descriptor must
        not block."""
        self.file, self.process = file, process
        self.shown, self.columns = "", 0
        """Text that is on the terminal now, and the number of columns of the terminal when the text was written."""

    @classmethod
    def find(cls) -> "Terminal | None":
        """Return the terminal to which this job prints; None if the job prints to no terminal, or if the terminal
        cannot replace a line."""
        launcher = mpi_environment.launcher()
        if os.environ.get("TERM") == "dumb" or (launcher is None and not sys.stderr.isatty()):
            return None
        process = launcher or os.getpid()
        try:
            file = os.open(f"/proc/{process}/fd/2", os.O_WRONLY | os.O_NOCTTY | os.O_NONBLOCK)
        except OSError:  # opening fails if /proc is missing, the process is another user's, or its stderr is a socket
            return None
        if os.isatty(file):
            return cls(file, process)
        os.close(file)
        return None

    def is_in_foreground(self) -> bool:
        """Return whether the job is in the foreground of its terminal. A job in the background (``&``) must not write
        into the text that the user types."""
        process, foreground = self.process, -1
        # -1 means that the process has no terminal, but its parent `grsgd run` may have one
        while foreground == -1 and process > 1:
            try:
                stat = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
            except OSError:
                return False
            process, group, foreground = int(stat[1]), int(stat[2]), int(stat[5])
        return foreground in (group, -1)  # -1 means that the terminal has no job control

    def stops_background(self) -> bool:
        """Return whether the terminal stops a background process that writes to the terminal (``stty tostop``)."""
        with suppress(OSError, termios.error):
            return bool(termios.tcgetattr(self.file)[3] & termios.TOSTOP)
        return False

    def width(self) -> int:
        """Return the number of characters that fit into a line of the terminal."""
        columns = 0
        with suppress(OSError):
            columns = os.get_terminal_size(self.file).columns
        return (columns or 80) - 1  # minus 1, because some terminals begin a new line after the last column

    def show(self, line: str):
        """Replace the progress line by ``line``, cut to the width of the terminal."""
        width = self.width()
        line = line[:width]
        if (line, width) != (self.shown, self.columns):
            self._write(self._erasing(width) + line)
            self.shown, self.columns = line, width

    def clear(self):
        """Remove the progress line, so that other output can be printed on the terminal."""
        if self.shown:
            self._write(self._erasing(self.width()))
            self.shown = ""

    def close(self):
        """Remove the progress line and close the terminal."""
        if self.file >= 0:
            self.clear()
            os.close(self.file)
            self.file = -1

    def _erasing(self, width: int) -> str:
        """Return the characters that erase the progress line. If the user has made the terminal narrower, the terminal
        has wrapped the progress line into several lines."""
        above = (len(self.shown) - 1) // (width + 1) if self.shown and width < self.columns else 0
        return f"\r\x1b[{above}A\x1b[J" if above else "\r\x1b[K"

    def _write(self, text: str):
        # Each rank of Open MPI is its own process group, so the terminal treats the rank as a background process.
        # Without the mask below, writing would stop the rank by SIGTTOU.
        masked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTTOU})
        try:
            os.write(self.file, text.encode(errors="replace"))
        except OSError:  # writing failed, because the terminal is closed, or held by Ctrl-S
            pass
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, masked)
