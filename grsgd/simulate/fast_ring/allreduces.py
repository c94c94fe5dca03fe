"""Times of all-reduces, calculated at once in compiled code in place of message after message.

What an all-reduce sends, and in which order, does not depend on times, so it is recorded once for each size of an
array. Where all of its connections have their ports to themselves, as on a ring, no message has a part in the rate of
another, and what is left is when each one is posted, leaves and arrives: the same sums, in the same order, as those of
`grsgd.simulate.messages` and `grsgd.simulate.flows`.

No rank ends an all-reduce before all have begun it. So the times are calculated when the last one begins.
"""

from collections import defaultdict
from collections.abc import Callable, Collection
from functools import partial

import numpy as np

from grsgd.comm.communicator import Communicator
from grsgd.simulate.fabric import MessageFabric
from grsgd.simulate.fast_ring.program import Program, record
from grsgd.simulate.waitable import Waitable


class Allreduce(Waitable):
    """One rank's part in an all-reduce of ``size`` ranks whose times are calculated.

    begun: the ranks that have begun theirs. waited: seconds that the rank has waited when it ends, from the start of
    the run.
    """

    __slots__ = ("begun", "size", "waited")

    def __init__(self, begun: Collection[int], size: int):
        super().__init__()
        self.begun, self.size = begun, size

    def finish(self, driver):
        driver.wait_seconds, driver.foreground.blocked_at = self.waited, None
        super().finish(driver)

    def __str__(self):
        missing = [str(rank) for rank in range(self.size) if rank not in self.begun]
        return "an all-reduce" + (f" that these ranks have not begun: {', '.join(missing)}" if missing else "")


class AllreduceTimes:
    """The all-reduces of ranks that send each other nothing else over ``fabric``, and one at a time."""

    def __init__(self, fabric: MessageFabric):
        self.fabric = fabric
        self._programs: dict[tuple, Program | None] = {}
        self._alone: dict[tuple, bool] = {}
        self._begun: dict[tuple, dict[int, tuple[float, Allreduce]]] = defaultdict(dict)

    def begin(self, key: tuple, schedule: Callable, comm: Communicator, x, options: dict) -> Allreduce | None:
        """Begin one on a rank, now; None where its messages have to be simulated.

        key: the same on all ranks, and of this all-reduce alone. ``schedule(comm, x, **options)`` is what it would do.
        """
        program = self._program(schedule, comm.size, x, options)
        if program is None:
            return None
        for receiver, (messages, nbytes) in program.sent[comm.rank].items():
            comm.traffic.count_messages(comm.members[receiver], messages, nbytes)
        begun = self._begun[key]
        allreduce = Allreduce(begun, comm.size)
        begun[comm.rank] = self.fabric.network.env.now, allreduce
        if len(begun) == comm.size:
            self._finish(program, self._begun.pop(key))
        return allreduce

    def _program(self, schedule, size: int, x, options: dict) -> Program | None:
        """Return what the ranks do; None where they do nothing, or connections share a port."""
        what = schedule, size, x.size, x.dtype, *options.items()
        if what not in self._programs:
            program = record(schedule, size, x.size, x.dtype, options) if size == self.fabric.size else None
            is_kept = program is not None and len(program.nbytes) and self._is_alone(program, schedule, x.size, options)
            self._programs[what] = program if is_kept else None
        return self._programs[what]

    def _is_alone(self, program: Program, schedule, elements: int, options: dict) -> bool:
        """Whether no two connections share a port, of all that there are with arrays of an element for each rank or
        more; so it is the same for all sizes. program: of an array of so many elements."""
        size = self.fabric.size
        what = schedule, *options.items()
        if what not in self._alone:
            if elements < size:
                program = record(schedule, size, size, "float32", options)
            ports = [port for ends in program.ends for port in self._connection(ends).ports]
            self._alone[what] = len(set(ports)) == len(ports)
        return self._alone[what]

    def _connection(self, ends):
        return self.fabric.network.connection(int(ends[0]), (int(ends[1]),))

    def _finish(self, program: Program, begun: dict[int, tuple[float, Allreduce]]):
        """All ranks have begun: calculate when each of them ends."""
        from grsgd.simulate.fast_ring.times import end_times

        fabric, network = self.fabric, self.fabric.network
        if fabric.under_way:
            raise RuntimeError(f"{next(iter(fabric.under_way))} is under way beside an all-reduce")
        connections = [self._connection(ends) for ends in program.ends]
        for connection, nbytes in zip(connections, program.bytes_of_connections(), strict=True):
            connection.nbytes += nbytes
        ranks = range(len(begun))
        ends, waited, free_at = end_times(
            np.array([begun[rank][0] for rank in ranks]),
            np.array([fabric.drivers[rank].wait_seconds for rank in ranks]),
            *program[:6],
            np.array([connection.rate for connection in connections]),
            np.array([connection.latencies[0][1] for connection in connections]),
            np.array([connection.free_at for connection in connections]),
            network.spec.eager_bytes,
        )
        for connection, moment in zip(connections, free_at, strict=True):
            connection.free_at = float(moment)
        for rank, (_, allreduce) in begun.items():
            allreduce.waited, allreduce.begun = float(waited[rank]), ranks  # and no circle of objects
            finish = partial(allreduce.finish, fabric.drivers[rank])
            network.at(float(ends[rank]), lambda _, finish=finish: finish())
