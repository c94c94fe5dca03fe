"""Benchmark of in-place all-reduces of float32 arrays: every variant of grsgd, ``MPI_Allreduce`` and torch's gloo.

``memcpy`` copies an array of the same size on all ranks at once. A sum without a network takes at least the time of
``memcpy``, because the sum also reads and writes every array once. ``shared, in place`` is the variant
``shared`` for an array in shared memory, such as the gradients of ``ring_allreduce``. ``auto`` is the all-reduce that
grsgd has timed as the fastest for the size of the array. A note below the table says how much longer ``auto`` takes
than the fastest all-reduce.

The column algbw is the array's bytes / time, and the column busbw is algbw * 2(n-1)/n for n ranks, as defined in
nccl-tests.
"""

import numpy as np
import torch
import torch.distributed as dist

from experiments.bench.picture import IN_PLACE, MEMCPY, Spread, Timing, in_words
from experiments.bench.side_by_side import RESULTS, announce, median_and_range, report, start, start_gloo, take_turns
from experiments.figures import write_csv
from grsgd.algorithms.allreduce_trial import choose_variant
from grsgd.comm.allreduce import ALLREDUCE
from grsgd.comm.allreduce.shared import in_shared_memory
from grsgd.comm.backend import MpiBackend
from grsgd.comm.communicator import Communicator
from grsgd.comm.driver import MpiDriver
from grsgd.memory import available
from grsgd.models.flat import Flat

KIB, MIB = 1 << 10, 1 << 20
ROUNDS = {4 * KIB: 200, 64 * KIB: 200, MIB: 100, 16 * MIB: 30, 64 * MIB: 15, 256 * MIB: 5}
ARRAYS_OF_A_RANK = 7
"""Greatest number of equally long arrays on a rank: x, its copy, its row in shared memory, scratch memory, gloo's."""


def main():
    mpi, quick = start()
    n = mpi.size
    comm, driver = Communicator(MpiBackend(mpi.Dup())), MpiDriver(mpi.rank)
    gloo = start_gloo(mpi)
    rows, notes, results = [], [], {}
    for nbytes, rounds in list(ROUNDS.items())[: 3 if quick else None]:
        size = in_words(nbytes)
        if not mpi.bcast(n * ARRAYS_OF_A_RANK * nbytes < available()):
            notes.append(f"{size}: left out, for want of memory")
            continue
        announce(mpi, f"all-reduce of {size} on {n} ranks")
        x = np.zeros(nbytes // 4, np.float32)
        chosen, _ = driver.run(choose_variant(comm, driver, Flat.of(x)))
        inside = driver.run(in_shared_memory(comm, Flat.of(x))).array
        contenders = contenders_for(mpi, comm, driver, x, inside, gloo)
        for name, call in contenders.items():
            for array in (x, inside):
                array.fill(mpi.rank + 1)
            call()
            result = inside if name == IN_PLACE else x
            if name != MEMCPY and not (result == n * (n + 1) / 2).all():
                raise RuntimeError(f"{name} gave a wrong sum")
        x.fill(0)
        inside.fill(0)
        seconds = take_turns(mpi, contenders, 2 if quick else rounds)
        comm.shared.clear()
        notes.append(f"{size}: auto is {chosen}, {slower(seconds, chosen)}")
        for name, taken in seconds.items():
            results[Timing(name, nbytes)] = Spread(np.median(taken), taken.min(), taken.max())
            algbw = nbytes / np.median(taken) / 1e9
            rows.append(
                [
                    name,
                    size,
                    median_and_range(taken * 1e3, ".3f"),
                    f"{algbw:.2f}",
                    f"{algbw * 2 * (n - 1) / n:.2f}",
                    median_and_range(seconds["MPI_Allreduce"] / taken),
                    median_and_range(seconds["gloo"] / taken) if gloo else "not installed",
                    median_and_range(seconds[MEMCPY] / taken),
                ]
            )
    headers = ["", "size", "ms", "algbw GB/s", "busbw GB/s", "speed / MPI_Allreduce", "speed / gloo"]
    headers += ["speed / memcpy, the bound"]
    report(mpi, f"All-reduce on {n} ranks, median (min-max)", headers, rows, notes)
    if mpi.rank == 0 and not quick:
        RESULTS.mkdir(exist_ok=True)
        write_csv(results, RESULTS / f"bench-allreduce-seconds-{n}.csv")


def slower(seconds: dict[str, np.ndarray], chosen: str) -> str:
    """Return a text that compares the variant ``chosen`` with the fastest all-reduce, which may be MPI's."""
    medians = {name: np.median(taken) for name, taken in seconds.items() if name != MEMCPY}
    mine = medians.get(f"grsgd {chosen}, in place", medians[f"grsgd {chosen}"])
    best = min(medians, key=medians.get)
    longer = f"takes {100 * (mine / medians[best] - 1):.0f} % longer than {best}"
    return "the fastest" if medians[best] == mine else longer


def contenders_for(mpi, comm, driver, x, inside, gloo: bool) -> dict:
    """Return the compared all-reduces as functions, by name of the all-reduce.

    ``inside``: array in shared memory, of the same length as ``x``.
    """
    from mpi4py import MPI

    copy = np.zeros_like(x)
    contenders = {MEMCPY: lambda: np.copyto(copy, x), "MPI_Allreduce": lambda: mpi.Allreduce(MPI.IN_PLACE, x)}
    if gloo:
        tensor = torch.from_numpy(x)
        contenders["gloo"] = lambda: dist.all_reduce(tensor)
    for name, variant in ALLREDUCE.items():
        contenders[f"grsgd {name}"] = lambda variant=variant: driver.run(variant(comm, x))
    contenders[IN_PLACE] = lambda: driver.run(ALLREDUCE["shared"](comm, inside))
    return contenders


if __name__ == "__main__":
    main()
