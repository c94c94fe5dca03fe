"""Messages of GPU memory between two ranks that share a GPU, against host MPI and copies to pinned memory."""

import numpy as np
import torch

from experiments.bench.side_by_side import device, progress, report, spread, start, take_turns
from grsgd.comm.communicator import Communicator
from grsgd.comm.driver import Driver
from grsgd.gpu import Memory
from grsgd.replica import Flat
from grsgd.transfer import device_ends, why_not

MIB = 1 << 20
SIZES = (1, 16, 100)
"""MiB of a message."""
ROUNDS = 20


def main():
    mpi, quick = start()
    on, rows, notes = device(), [], []
    memory = Memory()
    usable = {}
    for way, device_end in device_ends(mpi, memory).items():
        if trouble := why_not(way, mpi, device_end, on, 30.0):
            notes.append(f"{way} cannot be used: {trouble}")
        else:
            usable[way] = Communicator(mpi.Dup(), device_end)
    for size in SIZES[:1] if quick else SIZES:
        progress(mpi, f"transfers: {size} MiB")
        nbytes = size * MIB
        mine = Flat.zeros(nbytes, torch.uint8, on).array
        host = np.full(nbytes, 1, np.uint8)  # written: pages of zeros that nobody has written to are all one
        pinned = memory.borrow(nbytes)
        contenders = {
            "copy to pinned memory": lambda mine=mine, pinned=pinned: copy_out(mpi, memory, mine, pinned),
            "host MPI": message(mpi, Communicator(mpi.Dup()), host),
        }
        contenders |= {way: message(mpi, comm, mine) for way, comm in usable.items()}
        take_turns(mpi, contenders, 3)
        seconds = take_turns(mpi, contenders, 3 if quick else ROUNDS)
        slower = max(np.median(seconds[name]) for name in ("copy to pinned memory", "host MPI"))
        for name, taken in seconds.items():
            rate = nbytes / taken / 1e9
            of_staged = f"{np.median(seconds['staged']) / np.median(taken):.2f}x" if "staged" in seconds else ""
            rows.append([f"{size} MiB", name, spread(rate), f"{slower / np.median(taken):.0%}", of_staged])
    headers = ["message", "way", "GB/s", "of the slower of copy and host MPI", "of staged"]
    report(mpi, "From rank 0 to rank 1, median (min-max)", headers, rows, notes)


def message(mpi, comm: Communicator, array):
    """Rank 0 sends, rank 1 receives."""
    driver = Driver(mpi.rank, 60.0, "inline")

    def schedule():
        yield comm.Isend(array, 1) if mpi.rank == 0 else comm.Irecv(array, 0)

    return lambda: driver.run(schedule())


def copy_out(mpi, memory: Memory, array, pinned):
    """By rank 0 alone, as in a message: two copies would share the way out of the GPU."""
    if mpi.rank == 0:
        copied = memory.copy_out(array, 0, pinned, memory.computed())
        while not copied.done:
            pass


if __name__ == "__main__":
    main()
