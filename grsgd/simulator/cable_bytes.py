"""Table of the bytes that each cable carried, for the run file."""

import numpy as np

from grsgd.runs.hdf5 import MAX_TEXTS
from grsgd.runs.run_file import Run
from grsgd.simulator.cabling.cable import Cable
from grsgd.simulator.flows import Network

UNITS = {
    "from": ("1", "the place where the cable begins"),
    "to": ("1", "the place where the cable ends"),
    "bandwidth": ("bytes/s", "bandwidth of the cable in this direction"),
    "bytes": ("bytes", "bytes sent over the cable in this direction, headers included"),
}


def add_cables(run: Run, network: Network):
    """Add the table ``traffic/cables`` to the run file ``run``. The table has a row for each direction of each cable
    with traffic, and begins with the busiest cable.

    The table can hold `MAX_TEXTS` rows. If more cables had traffic, the table leaves out the least busy cables. A run
    on a network without cables gets no table.
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
    """Return the key by which `add_cables` sorts cables. The cable that needs the longest time for its bytes comes
    first."""
    cable, nbytes = used
    return -nbytes / cable.bandwidth, -nbytes, cable
