"""Byte counters of the host's network interfaces, which count the traffic of all programs."""

from pathlib import Path

import numpy as np

COUNTERS = Path("/proc/self/net/dev")


def counters() -> np.ndarray:
    """Return the bytes that this host's network interfaces, except loopback, have sent and received so far: float64
    (2,).

    The counted bytes include headers, acknowledgements, and the traffic of other programs. The returned array is NaN on
    a system without byte counters, for example a system other than Linux.
    """
    try:
        lines = COUNTERS.read_text().splitlines()[2:]
    except OSError:
        return np.full(2, np.nan)
    sent = received = 0
    for line in lines:
        name, _, counts = line.partition(":")
        if name.strip() != "lo":
            fields = counts.split()
            received += int(fields[0])
            sent += int(fields[8])
    return np.array([sent, received], np.float64)
