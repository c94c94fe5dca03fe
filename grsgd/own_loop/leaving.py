"""End of the job if a rank leaves its script before its training has ended."""

import os
import sys

from grsgd.job import launch


def end_if_unfinished(mpi, process: int, is_told: bool, call: str):
    """End the job, because this rank leaves without `finish`: the others would wait for ever. Does nothing in a fork.

    ``process`` is the number of the process that trains; ``is_told`` says whether a line has named the cause. ``call``
    is the call that the script lacks.
    """
    if mpi.size > 1 and os.getpid() == process:
        if not is_told:
            who = f"rank {mpi.rank} of {mpi.size}"
            print(f"grsgd: {who} ended without {call}", file=sys.stderr)
        launch.abort(mpi)
