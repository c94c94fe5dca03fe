"""Benchmark of all-reduces between emulated hosts (needs root), relative to the rate of the links.

The bound is the time of a bandwidth-optimal all-reduce on links of the given rate. In each direction of a link, a
bandwidth-optimal all-reduce of n ranks carries 2(n-1)/n of the array, without headers. A measurement (turn) times
several all-reduces in a row. A single all-reduce could seem faster than the link, because the empty queue of the link
takes the first packets at once.
"""

import os
import sys

import numpy as np
import torch
import torch.distributed as dist

from experiments.bench.side_by_side import announce, median_and_range, report, start, start_gloo, take_turns
from grsgd.comm.allreduce import ALLREDUCE, THROUGH_MEMORY
from grsgd.comm.backend import MpiBackend
from grsgd.comm.communicator import Communicator
from grsgd.comm.driver import MpiDriver
from grsgd.units import rate

MIB = 1 << 20
ROUNDS = {MIB // 4: 20, MIB: 10, 4 * MIB: 4}
IN_A_ROW = 4
"""Number of all-reduces that one measurement times together."""
INTERFACE = "eth0"
"""Name of the network interface of an emulated host."""


def main():
    mpi, quick = start()
    (link,) = (argument.partition("=")[2] for argument in sys.argv if argument.startswith("--link="))
    comm, driver = Communicator(MpiBackend(mpi.Dup())), MpiDriver(mpi.rank)
    os.environ["GLOO_SOCKET_IFNAME"] = INTERFACE
    gloo = start_gloo(mpi)
    rows = []
    for nbytes, rounds in list(ROUNDS.items())[: 1 if quick else None]:
        announce(mpi, f"all-reduce of {nbytes / MIB:g} MiB between {mpi.size} hosts")
        x = np.zeros(nbytes // 4, np.float32)
        contenders = contenders_for(mpi, comm, driver, x, gloo)
        seconds = take_turns(mpi, contenders, 1 if quick else rounds)
        bound = 2 * (mpi.size - 1) / mpi.size * nbytes / rate(link)
        for name, taken in seconds.items():
            each = taken / IN_A_ROW
            ms, share = median_and_range(each * 1e3, ".1f"), median_and_range(bound / each)
            rows.append([name, f"{nbytes / MIB:g} MiB", ms, share])
    headers = ["", "size", "ms", "share of the link's rate"]
    report(mpi, f"All-reduce between {mpi.size} hosts with links of {link}/s, median (min-max)", headers, rows)


def contenders_for(mpi, comm, driver, x, gloo: bool) -> dict:
    from mpi4py import MPI

    calls = {"MPI_Allreduce": lambda: mpi.Allreduce(MPI.IN_PLACE, x)}
    if gloo:
        tensor = torch.from_numpy(x)
        calls["gloo"] = lambda: dist.all_reduce(tensor)
    for name in ALLREDUCE.keys() - THROUGH_MEMORY - {"mpi"}:
        calls[f"grsgd {name}"] = lambda schedule=ALLREDUCE[name]: driver.run(schedule(comm, x))
    return {name: lambda call=calls[name]: [call() for _ in range(IN_A_ROW)] for name in sorted(calls)}


if __name__ == "__main__":
    main()
