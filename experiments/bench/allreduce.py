"""All-reduce: every variant of grsgd against ``MPI_Allreduce`` and torch's gloo, float32, in place.

algbw is bytes / time and busbw is algbw * 2(n-1)/n, as nccl-tests defines them.
"""

import numpy as np
import torch
import torch.distributed as dist

from experiments.bench.side_by_side import announce, median_and_range, report, start, start_gloo, take_turns
from grsgd.comm.allreduce import ALLREDUCE
from grsgd.comm.backend import MpiBackend
from grsgd.comm.communicator import Communicator
from grsgd.comm.driver import MpiDriver

KIB, MIB = 1 << 10, 1 << 20
ROUNDS = {64 * KIB: 200, MIB: 100, 16 * MIB: 30, 100 * MIB: 15}


def main():
    mpi, quick = start()
    n = mpi.size
    comm, driver = Communicator(MpiBackend(mpi.Dup())), MpiDriver(mpi.rank)
    gloo = start_gloo(mpi)
    rows = []
    for nbytes, rounds in ROUNDS.items():
        announce(mpi, f"all-reduce of {nbytes // KIB} KiB on {n} ranks")
        x = np.empty(nbytes // 4, np.float32)
        contenders = contenders_for(mpi, comm, driver, x, gloo)
        for name, call in contenders.items():
            x.fill(mpi.rank + 1)
            call()
            if not (x == n * (n + 1) / 2).all():
                raise RuntimeError(f"{name} gave a wrong sum")
        x.fill(0)
        seconds = take_turns(mpi, contenders, 2 if quick else rounds)
        for name, taken in seconds.items():
            algbw = nbytes / np.median(taken) / 1e9
            rows.append(
                [
                    name,
                    f"{nbytes // MIB} MiB" if nbytes >= MIB else f"{nbytes // KIB} KiB",
                    median_and_range(taken * 1e3),
                    f"{algbw:.2f}",
                    f"{algbw * 2 * (n - 1) / n:.2f}",
                    median_and_range(seconds["MPI_Allreduce"] / taken),
                    median_and_range(seconds["gloo"] / taken) if gloo else "not installed",
                ]
            )
    headers = ["", "size", "ms", "algbw GB/s", "busbw GB/s", "speed / MPI_Allreduce", "speed / gloo"]
    report(mpi, f"All-reduce on {n} ranks, median (min-max)", headers, rows)


def contenders_for(mpi, comm, driver, x, gloo: bool) -> dict:
    from mpi4py import MPI

    contenders = {"MPI_Allreduce": lambda: mpi.Allreduce(MPI.IN_PLACE, x)}
    if gloo:
        tensor = torch.from_numpy(x)
        contenders["gloo"] = lambda: dist.all_reduce(tensor)
    for name, variant in ALLREDUCE.items():
        contenders[f"grsgd {name}"] = lambda variant=variant: driver.run(variant(comm, x))
    return contenders


if __name__ == "__main__":
    main()
