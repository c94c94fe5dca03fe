"""Coded multicast of gradients: placements, plans, packets and their costs.

This package depends neither on the training code nor on MPI. `grsgd.comm.coded` has the schemes that send the packets.
"""

import os as _os

# With colorama numba would write a control sequence to stdout.
_os.environ.setdefault("NUMBA_DISABLE_ERROR_MESSAGE_HIGHLIGHTING", "1")
