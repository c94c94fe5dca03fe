"""Function that ends the job if a rank's script ends before its training has ended."""

import os
import sys

from grsgd.job import launch


def end_if_unfinished(mpi, process: int, is_told: bool, call: str):
    """End the job if this rank's script ends without `finish`, because the other ranks would wait for this rank for
    ever. Does nothing in a fork.

    ``process`` is the id of the process that trains. ``is_told`` says whether the cause was already printed. ``call``
    is the call that the script lacks.
    """
    if mpi.size > 1 and os.getpid() == process:
        if not is_told:
            who = f"rank {mpi.rank} of {mpi.size}"
            print(f"grsgd: {who} ended without {call}", file=sys.stderr)
        launch.abort(mpi)
