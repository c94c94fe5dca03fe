"""Table of the bytes that each cable carried, for the run file."""

import numpy as np

from grsgd.runs.hdf5 import MAX_TEXTS
from grsgd.runs.run_file import Run
from grsgd.simulator.cabling.cable import Cable
from grsgd.simulator.flows import Network

UNITS = {
    "from": ("1", "the place where the cable begins"),
    "to": ("1", "the place where it ends"),
    "bandwidth": ("bytes/s", "of the cable in this direction"),
    "bytes": ("bytes", "sent over it in this direction, headers and all"),
}


def add_cables(run: Run, network: Network):
    """Add the group ``traffic/cables``: a row for each direction of each cable that was used, busiest cable first.

    A run file can hold `MAX_TEXTS` rows. If more cables were used, the least busy cables are left out.
    A network without cables adds nothing.
    """
    if not network.spec.has_cables:
        return
    used = sorted(network.bytes_of_cables().items(), key=busiest_first)[:MAX_TEXTS]
    run.extra["traffic"] = {
        "cables": {
            "from": np.array([cable.source for cable, _ in used], str),
            "to": np.array([cable.dest for cable, _ in used], str),
            "bandwidth": np.array([cable.bandwidth for cable, _ in used]),
            "bytes": np.array([nbytes for _, nbytes in used], np.int64),
        }
    }
    run.units |= {f"traffic/cables/{name}": unit for name, unit in UNITS.items()}


def busiest_first(used: tuple[Cable, int]) -> tuple:
    """Return the sort key of a cable and its bytes: the cable that needs the longest time for its bytes is first."""
    cable, nbytes = used
    return -nbytes / cable.bandwidth, -nbytes, cable
