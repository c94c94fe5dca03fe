"""End of a script whose loop outlives processes, without MPI_Finalize, which may wait for the dead for ever."""

import gc
import io
import math
import os
from collections.abc import Callable
from contextlib import suppress

from grsgd.job import exit_code, words
from grsgd.mpi_environment import flush
from grsgd.own_loop.lives import END, meet


class ScriptEnd:
    """End of this process's script, which `leave_out_finalize` changes."""

    def __init__(self):
        self.world = None
        """Communicator of all processes, if they meet at the end of the script and leave MPI_Finalize out."""
        self.before_meeting: Callable[[], None] | None = None
        """Function that is called before the processes meet, to end the wait of processes that the script needs no
        more."""

    def leave_out_finalize(self, world, before_meeting: Callable[[], None] | None = None):
        """Let all living processes of ``world`` meet at the end of the script, and end without MPI_Finalize."""
        if self.world is None:
            self.world, self.before_meeting = world, before_meeting
            exit_code.note_every_exit()

    def come(self, otherwise: Callable, mpi, process: int):
        """End the script of process ``process``: call ``otherwise(mpi, process)``, or leave MPI_Finalize out. Forks do
        nothing."""
        if os.getpid() != process:
            return
        if self.world is None:
            otherwise(mpi, process)
            return
        if self.before_meeting is not None:
            self.before_meeting()
        meet(self.world, math.inf, END)
        words.script_has_ended()
        flush_files()
        flush()
        os._exit(exit_code.noted())


def flush_files():
    """Write the rest of files that the script has left open, as Python does at a usual end."""
    for thing in gc.get_objects():
        if issubclass(type(thing), io.IOBase):
            with suppress(OSError, ValueError):  # a closed file, or a full disk
                thing.flush()


SCRIPT_END = ScriptEnd()
"""The end of this process's script."""
