"""Groups of ranks in one process and in simulated time, for tests."""

import simpy

from grsgd.algorithms.hooks import schedule_of
from grsgd.comm.mailbox import HEADER, ModelMessage
from grsgd.simulator.driver import SimulatedDriver, run_until_done
from grsgd.simulator.fabric import MessageFabric
from grsgd.simulator.flows import Network
from grsgd.simulator.network import NetworkSpec


def network_of(**options) -> NetworkSpec:
    """Return a network with ``options`` as in a TOML file of a network; by default the bandwidth is unlimited and the
    latency 0."""
    return NetworkSpec(**{"bandwidth": "inf bit", "latency": "0 s"} | options)


class RandomLatencies(Network):
    """Network in which every message has its own latency, so that messages of different pairs overtake each other."""

    def __init__(self, env, spec, ranks, random):
        super().__init__(env, spec, ranks)
        self.random = random

    def latency(self, source, dest):
        return self.random.exponential(1e-3)

    def end(self, flow):
        connection = flow.connection
        connection.latencies = [(dest, self.latency(None, dest)) for dest, _ in connection.latencies]
        super().end(flow)


class Ranks:
    """Group of ``n`` ranks; ``random``, a NumPy generator, gives every message a random latency.

    ``comms`` has a communicator per rank; ``drivers`` a driver per rank, whose `start` drives a schedule in the
    background.
    """

    def __init__(self, n: int, spec: NetworkSpec | None = None, random=None, driver=SimulatedDriver):
        self.env = simpy.Environment()
        self.drivers = [driver(self.env, rank) for rank in range(n)]
        spec = spec or network_of()
        self.network = Network(self.env, spec, n) if random is None else RandomLatencies(self.env, spec, n, random)
        self.fabric = MessageFabric(self.network, self.drivers)
        self.comms = self.fabric.communicators()

    def event(self) -> bool:
        """Process the next event; return False if no event was left."""
        if self.env.peek() == simpy.core.Infinity:
            return False
        self.env.step()
        return True

    def settle(self, after=lambda: None):
        """Process all events that are under way; ``after`` is called after every event."""
        while self.event():
            after()

    def finish(self, schedules, after=None) -> list:
        """Run one schedule per rank, in the foreground, until all have ended; return their values."""
        pairs = zip(self.drivers, schedules, strict=True)
        activities = [driver.start_foreground(schedule) for driver, schedule in pairs]
        while after is not None and not all(activity.complete for activity in activities) and self.event():
            after()
        run_until_done(self.env, activities)
        return [activity.value for activity in activities]

    def at_once(self, rank: int, *hooks):
        """Run ``hooks``, which must not wait, one after the other on ``rank``, as the rank's training loop would."""

        def schedule():
            for hook in hooks:
                yield from schedule_of(hook)

        activity = self.drivers[rank].start(schedule())
        assert activity.complete, f"it waits: {activity}"


def models_under_way(fabric: MessageFabric) -> list:
    """Return the messages of mailboxes, except last messages, which have no model in them."""
    return [sending for sending in fabric.under_way if sending.array.dtype == "uint8" and sending.nbytes > HEADER]


def models_sent(fabric: MessageFabric, algorithms):
    """Yield (weight, x) of all model messages that wait in an inbox or are under way, each exactly once."""
    for algorithm in algorithms:
        yield from ((message.weight, message.x.array) for message in algorithm.mailbox.waiting())
    for sending in models_under_way(fabric):
        message = ModelMessage(algorithms[0].x)
        message.buffer[:] = sending.array
        yield message.weight, message.x.array
