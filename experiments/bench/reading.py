"""Benchmark of two ways to get a neighbour's model on the same host: by a message, and by a read of shared memory.

In each measurement, all ranks have just updated their models, and each rank gets the model of the rank before it. In
rows of the table with ``and mixed``, the rank also computes the change from its own model to the mean of the two
models, as the algorithm `dpsgd` does. An empty message announces a model in shared memory to the reading rank. A
second empty message tells the owner of the model in shared memory that it may overwrite the model. Models that are
sent as messages are not in shared memory, because the kernel copies more slowly from there than from private memory.
"""

import numpy as np
import torch

from experiments.bench.picture import in_words
from experiments.bench.side_by_side import announce, median_and_range, report, slowest, start, turns
from grsgd.comm.backend import MpiBackend
from grsgd.comm.communicator import Communicator
from grsgd.comm.driver import MpiDriver
from grsgd.comm.shared_memory import allocate
from grsgd.models.flat import Flat
from grsgd.models.mixing import BLOCK, mix

KIB, MIB = 1 << 10, 1 << 20
ROUNDS = {64 * KIB: 200, 256 * KIB: 200, MIB: 100, 4 * MIB: 60, 22 * MIB: 30, 64 * MIB: 15}
TAG, ANSWER = 1, 2
MESSAGE, COPIED = "message", "copied from shared memory"
MESSAGE_MIXED, COPIED_MIXED, IN_PLACE = "message, and mixed", f"{COPIED}, and mixed", "mixed where it lies"
BARS = {COPIED: MESSAGE, COPIED_MIXED: MESSAGE_MIXED, IN_PLACE: MESSAGE_MIXED}
"""The ways to read shared memory, each with the way by messages with which it is compared."""


class Neighbour:
    """One rank's model, in private and in shared memory, and the model of the rank before it, its neighbour.

    ``change``: the array that gets the change from the rank's own model to the mean of the two models.
    """

    def __init__(self, comm: Communicator, memory, nbytes: int):
        size, self.comm = nbytes // 4, comm
        self.source, self.dest = (comm.rank - 1) % comm.size, (comm.rank + 1) % comm.size
        self.own, self.change = (Flat.zeros(size, torch.float32, torch.device("cpu")) for _ in range(2))
        rows = memory.rows(np.dtype("float32"))
        self.shared, self.theirs = Flat.of(rows[comm.rank, :size]), Flat.of(rows[self.source, :size])

    def update(self, number: int, is_shared: bool):
        """Set the model in private or shared memory, so that the cache holds the model that will be exchanged."""
        flat = self.shared if is_shared else self.own
        flat.tensor.fill_(number + self.comm.rank)

    def message(self):
        yield self.comm.Irecv(self.change.array, self.source, TAG), self.comm.Isend(self.own.array, self.dest, TAG)

    def reading(self, read):
        """Generator for a driver: calls ``read()`` while the neighbour does not change its model in shared memory."""
        empty = [np.empty(1, np.uint8) for _ in range(4)]
        answer = self.comm.Irecv(empty[0], self.dest, ANSWER)
        announced = self.comm.Isend(empty[1], self.dest, TAG)
        yield self.comm.Irecv(empty[2], self.source, TAG)
        read()
        yield announced, answer, self.comm.Isend(empty[3], self.source, ANSWER)

    def copy(self):
        self.change.tensor.copy_(self.theirs.tensor)

    def mix(self, x: Flat):
        mix(self.change.tensor, 0.5, [(-0.5, x.tensor)])

    def mix_in_place(self):
        tensors = (flat.tensor.split(BLOCK) for flat in (self.change, self.theirs, self.shared))
        for change, theirs, x in zip(*tensors, strict=True):
            torch.mul(theirs, 0.5, out=change)
            change.add_(x, alpha=-0.5)

    def message_and_mix(self):
        yield from self.message()
        self.mix(self.own)

    def copy_and_mix(self):
        yield from self.reading(self.copy)
        self.mix(self.shared)

    def contenders(self) -> dict:
        """Return the compared ways to get a model, by name: functions that return a generator for a driver."""
        return {
            MESSAGE: self.message,
            COPIED: lambda: self.reading(self.copy),
            MESSAGE_MIXED: self.message_and_mix,
            COPIED_MIXED: self.copy_and_mix,
            IN_PLACE: lambda: self.reading(self.mix_in_place),
        }


def main():
    mpi, quick = start()
    comm, driver = Communicator(MpiBackend(mpi.Dup())), MpiDriver(mpi.rank)
    rows = []
    for nbytes, rounds in list(ROUNDS.items())[: 2 if quick else None]:
        announce(mpi, f"a model of {in_words(nbytes)}")
        neighbour = Neighbour(comm, driver.run(allocate(comm, nbytes, TAG)), nbytes)
        seconds = take_turns(mpi, driver, neighbour, 2 if quick else rounds)
        for name, taken in seconds.items():
            ratio = median_and_range(seconds[BARS[name]] / taken) if name in BARS else ""
            rows.append([name, in_words(nbytes), median_and_range(taken * 1e3, ".3f"), ratio])
    headers = ["", "size", "ms", "speed / message"]
    report(mpi, f"A neighbour's model on {mpi.size} ranks, median (min-max)", headers, rows)


def take_turns(mpi, driver: MpiDriver, neighbour: Neighbour, rounds: int) -> dict[str, np.ndarray]:
    """Return the seconds of the slowest rank, by name of the way and by round.

    Raises RuntimeError if a rank has received a wrong model.
    """
    contenders = neighbour.contenders()
    seconds = {name: [] for name in contenders}
    for number, name in enumerate(turns(contenders, rounds)):
        neighbour.update(number, is_shared=name in BARS)
        mpi.Barrier()
        begin = driver.clock()
        driver.run(contenders[name]())
        seconds[name].append(driver.clock() - begin)
        theirs, mine = number + neighbour.source, number + mpi.rank
        expected = theirs if name in (MESSAGE, COPIED) else (theirs - mine) / 2
        if not (neighbour.change.array[:: KIB // 4] == expected).all():
            raise RuntimeError(f"{name}: the received model is wrong")
        mpi.Barrier()
    return slowest(mpi, seconds)


if __name__ == "__main__":
    main()
