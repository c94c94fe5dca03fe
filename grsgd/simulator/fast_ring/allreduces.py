"""Simulated times of all-reduces. Compiled code calculates the times of all messages of an all-reduce at once, so that
the simulator need not simulate each message.

Neither the messages of an all-reduce nor their order depend on times. The messages are therefore recorded only once for
each size of array. If no two connections (pairs of sender and receiver) of the all-reduce share a port, as on a ring,
no message slows down another message. Without shared ports, the code calculates only the moments at which each message
is posted, leaves and arrives. The moment of a message is a sum of times, such as transfer times and latencies. The
compiled code adds times in the same order as `grsgd.simulator.messages` and `grsgd.simulator.flows`, so that rounding
gives the same results.

No rank ends an all-reduce before all ranks have begun it. The times of the all-reduce are therefore calculated when
the last rank has begun it.
"""

from collections import defaultdict
from collections.abc import Callable, Collection
from functools import partial

import numpy as np

from grsgd.comm.communicator import Communicator
from grsgd.simulator.fabric import MessageFabric
from grsgd.simulator.fast_ring.program import Program, record
from grsgd.simulator.waitable import Waitable


class Allreduce(Waitable):
    """Object with which one rank waits for the end of an all-reduce of ``size`` ranks, whose times `AllreduceTimes`
    calculates.

    begun: the ranks that have begun the all-reduce so far. waited: total seconds of the rank's waits from the start of
    the run to the end of the all-reduce.
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
    """Calculation of the simulated moments at which all-reduces end. The ranks must send no other messages over
    ``fabric``, and must run one all-reduce at a time."""

    def __init__(self, fabric: MessageFabric):
        self.fabric = fabric
        self._programs: dict[tuple, Program | None] = {}
        self._alone: dict[tuple, bool] = {}
        self._begun: dict[tuple, dict[int, tuple[float, Allreduce]]] = defaultdict(dict)

    def begin(self, key: tuple, schedule: Callable, comm: Communicator, x, options: dict) -> Allreduce | None:
        """Begin an all-reduce on the rank of ``comm`` at the present simulated time. Return the object with which the
        rank waits for the end of the all-reduce. Return None if the all-reduce must be simulated message by message.

        key: identifies the all-reduce; it is the same on all ranks and different for each all-reduce. ``schedule(comm,
        x, **options)``: generator that runs the all-reduce.
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
        """Return the recorded steps (sends, receives and waits) of all ranks in the all-reduce. Return None if the
        all-reduce has no messages, or two of its connections share a port."""
        what = schedule, size, x.size, x.dtype, *options.items()
        if what not in self._programs:
            program = record(schedule, size, x.size, x.dtype, options) if size == self.fabric.size else None
            is_kept = program is not None and len(program.nbytes) and self._is_alone(program, schedule, x.size, options)
            self._programs[what] = program if is_kept else None
        return self._programs[what]

    def _is_alone(self, program: Program, schedule, elements: int, options: dict) -> bool:
        """Return True if no two connections (pairs of sender and receiver) of the all-reduce share a port.

        The function tests an array of at least one element per rank; the result is valid for arrays of all sizes.
        program: the recorded steps for an array of ``elements`` elements.
        """
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
        """Calculate the moment at which each rank ends the all-reduce, and set SimPy events at these moments. The
        caller calls this method when all ranks have begun the all-reduce."""
        from grsgd.simulator.fast_ring.times import end_times

        fabric, network = self.fabric, self.fabric.network
        if fabric.under_way:
            raise RuntimeError(f"{next(iter(fabric.under_way))} is under way during an all-reduce")
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
            allreduce.waited, allreduce.begun = float(waited[rank]), ranks  # also ends a cycle of references
            finish = partial(allreduce.finish, fabric.drivers[rank])
            network.at(float(ends[rank]), lambda _, finish=finish: finish())
