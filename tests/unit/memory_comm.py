"""Ranks that live in one process: messages between them are delivered one at a time, whenever the test says so.

Which message comes next is drawn from a seeded generator; those from one rank to another with one tag keep their
order. A message carries what its buffer holds at the moment of delivery, so that whoever writes to a buffer too early
is found out, and every send completes on delivery, the plain one too.
"""

from collections import deque
from contextlib import contextmanager

import numpy as np
from hypothesis import settings

from grsgd.comm.communicator import ANY_RANK
from grsgd.comm.driver import Driver
from grsgd.comm.traffic import Traffic

seeded = settings(deadline=None, derandomize=True, max_examples=40)
"""For properties that are to be the same in every run of the tests, however busy the machine."""


class MemoryMessage:
    """A pollable. ``noticed``: whether somebody has seen that it is complete."""

    def __init__(self, array, source: int, dest: int, tag: int, synchronous: bool = False):
        self.array, self.source, self.dest, self.tag, self.synchronous = array, source, dest, tag, synchronous
        self.complete = False
        self.noticed = False

    def Test(self) -> bool:
        self.noticed |= self.complete
        return self.complete

    def __str__(self):
        return f"message from {self.source} to {self.dest} ({self.array.nbytes} bytes, tag {self.tag})"


class Network:
    """What the ranks of one job have sent and not received. ``comms``: one `MemoryCommunicator` a rank."""

    def __init__(self, size: int, seed: int = 0):
        self.size = size
        self.random = np.random.default_rng(seed)
        self.sends: dict[tuple, deque[MemoryMessage]] = {}
        """By group, source, destination and tag."""
        self.receives: dict[tuple, list[MemoryMessage]] = {}
        """By group and destination, in the order in which they were posted."""
        self.arrived: list[MemoryMessage] = []
        """Receives that are complete and not noticed yet."""
        self.comms = [MemoryCommunicator(self, rank) for rank in range(size)]

    def deliver(self) -> bool:
        """Deliver one message of those that are expected; returns whether there was one."""
        ready = [(key, self.receive_for(key)) for key, queue in self.sends.items() if queue]
        ready = [(key, receive) for key, receive in ready if receive is not None]
        if not ready:
            return False
        key, receive = ready[self.random.integers(len(ready))]
        send = self.sends[key].popleft()
        group, source, dest, _ = key
        self.receives[group, dest].remove(receive)
        target, data = (array.reshape(-1).view(np.uint8) for array in (receive.array, send.array))
        assert len(data) <= len(target), f"{send} is longer than the receive for it"
        target[: len(data)] = data
        receive.source = source
        send.complete = receive.complete = True
        self.arrived.append(receive)
        return True

    def receive_for(self, key) -> MemoryMessage | None:
        group, source, dest, tag = key
        fitting = (m for m in self.receives.get((group, dest), ()) if m.source in (source, ANY_RANK) and m.tag == tag)
        return next(fitting, None)

    def under_way(self) -> list[np.ndarray]:
        """The content of all messages that have been sent and that no receiver has noticed."""
        self.arrived = [message for message in self.arrived if not message.noticed]
        return [m.array for queue in self.sends.values() for m in queue] + [m.array for m in self.arrived]

    def unreceived(self, source: int, dest: int) -> int:
        return sum(len(queue) for key, queue in self.sends.items() if key[1:3] == (source, dest))


class MemoryCommunicator:
    """One rank's end of a group, with the interface of `grsgd.comm.communicator.Communicator`."""

    def __init__(self, network: Network, rank: int, group: tuple = ()):
        self.network, self.rank, self.group = network, rank, group
        self.size = network.size
        self.traffic = Traffic(self.size)
        self._duplicates = 0

    def Isend(self, array, dest: int, tag: int = 0, header: int = 0, synchronous: bool = False) -> MemoryMessage:
        self.traffic.count((dest,), array.nbytes, header)
        message = MemoryMessage(array, self.rank, dest, tag, synchronous)
        self.network.sends.setdefault((self.group, self.rank, dest, tag), deque()).append(message)
        return message

    def Issend(self, array, dest: int, tag: int = 0, header: int = 0) -> MemoryMessage:
        return self.Isend(array, dest, tag, header, synchronous=True)

    def Irecv(self, array, source: int, tag: int = 0) -> MemoryMessage:
        message = MemoryMessage(array, source, self.rank, tag)
        self.network.receives.setdefault((self.group, self.rank), []).append(message)
        return message

    def Iprobe(self, source: int, tag: int) -> bool:
        return any(
            queue and key[0] == self.group and key[2:] == (self.rank, tag) and source in (key[1], ANY_RANK)
            for key, queue in self.network.sends.items()
        )

    def duplicate(self) -> "MemoryCommunicator":
        self._duplicates += 1
        return MemoryCommunicator(self.network, self.rank, (*self.group, self._duplicates))

    @contextmanager
    def borrow(self, like, size: int):
        yield type(like)(size, dtype=like.dtype)


def drivers(size: int) -> list[Driver]:
    return [Driver(rank, timeout=5.0, progress="inline") for rank in range(size)]


def finish(network: Network, drivers: list[Driver], schedules: list, limit: int = 100_000, after=lambda: None) -> list:
    """Drive one schedule a rank to its end, with messages delivered in between; returns their values.

    ``after``: called after every event. The schedules run in the background, for none may block the others.
    """
    handles = [driver.start(schedule) for driver, schedule in zip(drivers, schedules, strict=True)]
    for _ in range(limit):
        if all(handle.Test() for handle in handles):
            return [handle.value for handle in handles]
        network.deliver()
        drivers[network.random.integers(len(drivers))].poll()
        after()
    waiting = [str(handle) for handle in handles if not handle.Test()]
    raise AssertionError(f"not done after {limit} events: {'; '.join(waiting)}")
