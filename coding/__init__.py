"""Coded multicast of gradients: placements, plans, packets and their costs.

This package knows neither training nor MPI; `grsgd.comm.coded` has the schemes that send packets.
"""

import os as _os

# With colorama numba would write a control sequence to stdout.
_os.environ.setdefault("NUMBA_DISABLE_ERROR_MESSAGE_HIGHLIGHTING", "1")
