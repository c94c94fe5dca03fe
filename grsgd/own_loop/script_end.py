"""End of a script whose loop goes on after deaths, without MPI_Finalize, which may wait for dead processes for ever."""

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
    """End of this process's script. `leave_out_finalize` changes the end to one without MPI_Finalize."""

    def __init__(self):
        self.world = None
        """Communicator of all processes, if they meet at the end of the script and do not call MPI_Finalize; else
        None."""
        self.before_meeting: Callable[[], None] | None = None
        """Function that is called before the processes meet, to end the wait of spare processes that the script does
        not need."""

    def leave_out_finalize(self, world, before_meeting: Callable[[], None] | None = None):
        """Let all living processes of ``world`` meet at the end of the script, and end without a call of
        MPI_Finalize."""
        if self.world is None:
            self.world, self.before_meeting = world, before_meeting
            exit_code.note_every_exit()

    def come(self, otherwise: Callable, mpi, process: int):
        """End the script of process ``process``. Call ``otherwise(mpi, process)``, or end without MPI_Finalize after
        `leave_out_finalize`. Does nothing in a fork."""
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
    """Write the buffered data of all files that the script has left open, as Python does at the normal end of a
    script."""
    for thing in gc.get_objects():
        if issubclass(type(thing), io.IOBase):
            with suppress(OSError, ValueError):  # a closed file, or a full disk
                thing.flush()


SCRIPT_END = ScriptEnd()
"""The end of this process's script, one object for the whole process."""
