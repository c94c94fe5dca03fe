"""Benchmark of messages of GPU memory between two ranks that share a GPU.

The messages are compared with MPI messages of host memory, and with copies to pinned memory.
"""

import numpy as np
import torch

from experiments.bench.side_by_side import announce, device, median_and_range, report, start, take_turns
from grsgd.comm.backend import MpiBackend
from grsgd.comm.communicator import Communicator
from grsgd.comm.driver import MpiDriver
from grsgd.comm.gpu.backend import GpuBackend
from grsgd.comm.gpu.memory import Memory
from grsgd.comm.gpu.select import transport_error, transports
from grsgd.models.flat import Flat

MIB = 1 << 20
SIZES = (1, 16, 100)
"""Size of each message in MiB."""
ROUNDS = 20


def main():
    mpi, quick = start()
    on, rows, notes = device(), [], []
    memory = Memory()
    usable = {}
    for name, make in transports(mpi, memory).items():
        backend = GpuBackend(mpi, make)
        if error := transport_error(name, backend, on, 30.0):
            notes.append(f"{name} cannot be used: {error}")
        else:
            usable[name] = Communicator(backend.dup())
    for size in SIZES[:1] if quick else SIZES:
        announce(mpi, f"transfers: {size} MiB")
        nbytes = size * MIB
        mine = Flat.zeros(nbytes, torch.uint8, on).array
        # The array is filled with ones, because untouched pages of zeros are all one page of physical memory.
        host = np.full(nbytes, 1, np.uint8)
        pinned = memory.borrow(nbytes)
        contenders = {
            "copy to pinned memory": lambda mine=mine, pinned=pinned: copy_out(mpi, memory, mine, pinned),
            "host MPI": message(mpi, Communicator(MpiBackend(mpi).dup()), host),
        }
        contenders |= {name: message(mpi, comm, mine) for name, comm in usable.items()}
        take_turns(mpi, contenders, 3)
        seconds = take_turns(mpi, contenders, 3 if quick else ROUNDS)
        slower = max(np.median(seconds[name]) for name in ("copy to pinned memory", "host MPI"))
        for name, taken in seconds.items():
            rate = nbytes / taken / 1e9
            of_staged = f"{np.median(seconds['staged']) / np.median(taken):.2f}x" if "staged" in seconds else ""
            rows.append([f"{size} MiB", name, median_and_range(rate), f"{slower / np.median(taken):.0%}", of_staged])
    headers = ["message", "transport", "GB/s", "of the slower of copy and host MPI", "of staged"]
    report(mpi, "From rank 0 to rank 1, median (min-max)", headers, rows, notes)


def message(mpi, comm: Communicator, array):
    """Return a function that sends ``array`` from rank 0 to rank 1 and waits until it has arrived."""
    driver = MpiDriver(mpi.rank, 60.0, "inline")

    def schedule():
        yield comm.Isend(array, 1) if mpi.rank == 0 else comm.Irecv(array, 0)

    return lambda: driver.run(schedule())


def copy_out(mpi, memory: Memory, array, pinned):
    """Copy ``array`` from the GPU to host memory, as before a message.

    Only rank 0 copies, because two ranks' copies would share the GPU's bus.
    """
    if mpi.rank == 0:
        copied = memory.copy_out(array, 0, pinned, memory.record_event())
        while not copied.done:
            pass


if __name__ == "__main__":
    main()
