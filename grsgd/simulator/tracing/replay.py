"""Replay of a GOAL file (a recording of the messages and computations of all ranks) on a simulated network. The
result of a replay is the simulated time at which each rank has ended its operations.

A replay sends messages through the same simulated network as `grsgd simulate`. A computation takes the nanoseconds that
the GOAL file gives. Computations on one cpu of a rank run one after the other, in the order in which their dependencies
allow them to begin.
"""

import heapq
import statistics
from collections import defaultdict, deque
from typing import NamedTuple

import numpy as np
import simpy

from grsgd.comm.backend import ANY_RANK
from grsgd.comm.communicator import Communicator
from grsgd.comm.pollables import Delay, Pollable
from grsgd.errors import ConfigError
from grsgd.models.shape_only import ShapeOnlyArray
from grsgd.runs.numbers import human_bytes
from grsgd.simulator.driver import SimulatedDriver, run_all
from grsgd.simulator.fabric import MessageFabric, Truncated
from grsgd.simulator.flows import Network
from grsgd.simulator.network import NetworkSpec, bookkeeping_network
from grsgd.simulator.rank_memory import check_memory
from grsgd.simulator.tracing import goal
from grsgd.simulator.tracing.instrumentation import PROCESSOR_HINT
from grsgd.simulator.tracing.trace import BOOKKEEPING, END, FROM_ANY, SHORT_BOOKKEEPING, SYNCHRONOUS


class ReplayedRank(NamedTuple):
    """Results of a replay. ends: simulated seconds at which each rank has ended its operations. messages: number of
    messages of all ranks in the counted traffic. sent: number of bytes of these messages.
    """

    ends: list[float]
    messages: int
    sent: int


def replay(ranks: list[list[goal.Operation]], network: NetworkSpec) -> ReplayedRank:
    """Replay the operations of all ranks on ``network``, and return the results.

    Raises ConfigError if the network has too few ranks or no link for a message, or if a message is longer than its
    receive. Raises Deadlock if a message or a receive waits for ever, because its partner is missing.
    """
    check_memory(len(ranks), 0, f"num_ranks {len(ranks)}")
    network.check_ranks(len(ranks))
    if network.processor is not None:
        raise ConfigError(f"replay: {PROCESSOR_HINT.format(network.name)}")
    env = simpy.Environment()
    drivers = [SimulatedDriver(env, rank) for rank in range(len(ranks))]
    fabric = MessageFabric(Network(env, network, len(ranks)), drivers)
    beside = bookkeeping_network(network, eager_bytes=SHORT_BOOKKEEPING)
    uncounted = MessageFabric(Network(env, beside, len(ranks)), drivers)
    each = zip(ranks, drivers, fabric.communicators(), uncounted.communicators(), strict=True)
    players = [GoalReplay(*one) for one in each]
    try:
        run_all(env, drivers, [player.play() for player in players])
    except Truncated as error:
        raise ConfigError(f"replay: {error}") from None
    traffic = [player.comm.traffic for player in players]
    messages = sum(int(one.messages.sum()) for one in traffic)
    return ReplayedRank([player.ended for player in players], messages, sum(int(one.sent.sum()) for one in traffic))


def rows(ranks: list[list[goal.Operation]], replayed: ReplayedRank) -> list[tuple[str, str]]:
    """Return the rows of a table with the results of a replay. Each row is a pair of a name and a text."""
    ends = replayed.ends
    order = sorted(range(len(ends)), key=ends.__getitem__)
    text = (
        f"least {ends[order[0]]:.9g} s (rank {order[0]}), median {statistics.median(ends):.9g} s, "
        f"most {ends[order[-1]]:.9g} s (rank {order[-1]})"
    )
    messages = f"{replayed.messages:,} messages, {human_bytes(replayed.sent)}"
    return [
        ("ranks", f"{len(ranks):,}, {sum(map(len, ranks)):,} operations"),
        ("sent", messages),
        ("end", text),
    ]


class GoalReplay:
    """Replay of the operations of one rank of a GOAL file."""

    def __init__(
        self,
        operations: list[goal.Operation],
        driver: SimulatedDriver,
        comm: Communicator,
        uncounted_comm: Communicator,
    ):
        self.operations, self.driver, self.comm, self.uncounted_comm = operations, driver, comm, uncounted_comm
        self.left = len(operations)
        """Number of operations that have not ended."""
        self.ended = 0.0
        """Simulated moment at which this rank's operation with the label `END` ended. If the rank has no such
        operation, the moment at which its last operation ended."""
        self.under_way: dict[int, None] = {}
        self.missing = [len(operation.requires) + len(operation.irequires) for operation in operations]
        """Number of dependencies for which each operation still waits."""
        self.after_begin: dict[int, list[int]] = defaultdict(list)
        self.after_end: dict[int, list[int]] = defaultdict(list)
        """Indices of operations that wait for another operation, whose index is the key. Operations in ``after_begin``
        wait for the beginning of the key's operation, and operations in ``after_end`` for its end."""
        for place, operation in enumerate(operations):
            for other in operation.irequires:
                self.after_begin[other].append(place)
            for other in operation.requires:
                self.after_end[other].append(place)
        self.ready = [place for place, missing in enumerate(self.missing) if not missing]
        """Heap of the indices of operations whose dependencies are fulfilled, and which can begin. Operations that can
        begin at the same moment begin in the order of their indices."""
        self.queued: dict[int, deque[int]] = defaultdict(deque)
        """Indices of computations (calc) for each cpu: first the computation that runs at present, then the
        computations that wait for the cpu."""
        self.has_end = any(operation.label == END for operation in operations)
        self._beginning = False

    def play(self):
        """Run all operations of the rank. This method is a schedule (a generator that yields the objects it waits
        for)."""
        self.begin_ready()
        if self.left:
            yield OperationsDone(self)

    def begin_ready(self):
        """Begin all operations of this rank whose dependencies are fulfilled. The beginning of an operation can fulfil
        dependencies of further operations, which then begin, too."""
        if self._beginning:
            return
        self._beginning = True
        while self.ready:
            place = heapq.heappop(self.ready)
            operation = self.operations[place]
            if operation.kind == goal.CALC and operation.size:
                queue = self.queued[operation.cpu]
                queue.append(place)
                if len(queue) == 1:
                    self.begin(place)
            else:
                self.begin(place)
        self._beginning = False

    def begin(self, place: int):
        operation = self.operations[place]
        pollable = Delay(1e-9 * operation.size) if operation.kind == goal.CALC else self.message(operation)
        self.under_way[place] = None
        self.release(self.after_begin.pop(place, ()))
        if operation.kind != goal.CALC and pollable.Test():
            self.end(place)
        elif operation.kind == goal.CALC and not operation.size:
            self.end(place)
        else:
            self.driver.start(self.until_ended(place, pollable))

    def message(self, operation: goal.Operation) -> Pollable:
        """Post the send or the receive that ``operation`` describes. Return the object with which a schedule can wait
        for the end of the send or receive."""
        tag = operation.tag
        comm = self.uncounted_comm if tag & BOOKKEEPING else self.comm
        content = ShapeOnlyArray(operation.size, np.uint8, real_prefix=False)
        if operation.kind == goal.RECV:
            return comm.Irecv(content, ANY_RANK if tag & FROM_ANY else operation.peer, tag)
        return (comm.Issend if tag & SYNCHRONOUS else comm.Isend)(content, operation.peer, tag)

    def until_ended(self, place: int, pollable: Pollable):
        """Wait until operation number ``place`` has ended, and begin the operations that have waited for its end. This
        method is a generator that yields the objects it waits for."""
        yield pollable
        self.end(place)
        self.begin_ready()

    def end(self, place: int):
        operation = self.operations[place]
        del self.under_way[place]
        self.left -= 1
        if operation.label == END or not self.has_end:
            self.ended = self.driver.clock()
        if operation.kind == goal.CALC and operation.size:
            queue = self.queued[operation.cpu]
            queue.popleft()
            if queue:
                self.begin(queue[0])
        self.release(self.after_end.pop(place, ()))

    def release(self, places):
        """Subtract 1 from the number of dependencies for which each operation in ``places`` waits."""
        for place in places:
            self.missing[place] -= 1
            if not self.missing[place]:
                heapq.heappush(self.ready, place)

    def __str__(self):
        place = min(self.under_way, default=None)
        if place is None:
            return f"{self.left} operations, each of which waits for another one"
        operation = self.operations[place]
        return f"{operation.label or f'l{place + 1}'}: {operation}, and {self.left - 1} more operations"


class OperationsDone:
    """A pollable (object for which a schedule can wait) that is complete when a rank has run all its operations."""

    def __init__(self, player: GoalReplay):
        self.player = player

    def Test(self) -> bool:
        return not self.player.left

    def __str__(self):
        return str(self.player)
