"""Groups of simulated ranks, which run in one process and in simulated time, for tests."""

import simpy

from grsgd.algorithms.hooks import schedule_of
from grsgd.comm.mailbox import HEADER, ModelMessage
from grsgd.simulator.driver import SimulatedDriver, run_until_done
from grsgd.simulator.fabric import MessageFabric
from grsgd.simulator.flows import Network
from grsgd.simulator.network import NetworkSpec


def network_of(**options) -> NetworkSpec:
    """Return the description of a simulated network for tests. The keyword arguments ``options`` have the names of the
    keys in a TOML file that describes a network. By default the simulated network has unlimited bandwidth and latency
    0."""
    return NetworkSpec(**{"bandwidth": "inf bit", "latency": "0 s"} | options)


class RandomLatencies(Network):
    """Simulated network in which every message has its own random latency, so that messages of different pairs of ranks
    overtake each other."""

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
    """Group of ``n`` simulated ranks. If the NumPy generator ``random`` is given, every message has a random latency.

    The attribute ``comms`` has one communicator per rank. The attribute ``drivers`` has one driver (object that runs
    generators) per rank.
    """

    def __init__(self, n: int, spec: NetworkSpec | None = None, random=None, driver=SimulatedDriver):
        self.env = simpy.Environment()
        self.drivers = [driver(self.env, rank) for rank in range(n)]
        spec = spec or network_of()
        self.network = Network(self.env, spec, n) if random is None else RandomLatencies(self.env, spec, n, random)
        self.fabric = MessageFabric(self.network, self.drivers)
        self.comms = self.fabric.communicators()

    def event(self) -> bool:
        """Process the next event of the simulation. Return False if the simulation has no further event."""
        if self.env.peek() == simpy.core.Infinity:
            return False
        self.env.step()
        return True

    def settle(self, after=lambda: None):
        """Process events of the simulation until no event is left. ``after()`` is called after every event."""
        while self.event():
            after()

    def finish(self, schedules, after=None) -> list:
        """Run the generators ``schedules``, one per rank, in the foreground, until all generators have ended. Return
        the results of all generators."""
        pairs = zip(self.drivers, schedules, strict=True)
        activities = [driver.start_foreground(schedule) for driver, schedule in pairs]
        while after is not None and not all(activity.complete for activity in activities) and self.event():
            after()
        run_until_done(self.env, activities)
        return [activity.value for activity in activities]

    def at_once(self, rank: int, *hooks):
        """Call ``hooks`` one after the other on ``rank``, as the rank's training loop would. The ``hooks`` must not
        wait for messages."""

        def schedule():
            for hook in hooks:
                yield from schedule_of(hook)

        activity = self.drivers[rank].start(schedule())
        assert activity.complete, f"it waits: {activity}"


def models_under_way(fabric: MessageFabric) -> list:
    """Return the messages under way that mailboxes have sent and that contain a model. The last message of a mailbox
    contains no model."""
    return [sending for sending in fabric.under_way if sending.array.dtype == "uint8" and sending.nbytes > HEADER]


def models_sent(fabric: MessageFabric, algorithms):
    """Yield the pair (weight, x) of each message with a model that waits in an inbox or is under way."""
    for algorithm in algorithms:
        yield from ((message.weight, message.x.array) for message in algorithm.mailbox.waiting())
    for sending in models_under_way(fabric):
        message = ModelMessage(algorithms[0].x)
        message.buffer[:] = sending.array
        yield message.weight, message.x.array
