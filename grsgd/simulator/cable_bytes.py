"""Table, in the run file, of the bytes that each cable of a simulated network carried."""

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
    """Add the table ``traffic/cables`` to the run file ``run``. The table has one row for each direction of each cable
    that carried bytes, and begins with the cable that was busy longest.

    The table can hold `MAX_TEXTS` rows. If more than `MAX_TEXTS` directions of cables carried bytes, the table
    leaves out the least busy of them. If the simulated network has no cables, no table is added.
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
    """Return the key by which `add_cables` sorts directions of cables, given as a pair of a cable and its bytes. The
    cable that needs the longest time to carry its bytes comes first."""
    cable, nbytes = used
    return -nbytes / cable.bandwidth, -nbytes, cable
