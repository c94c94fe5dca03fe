"""Messages as flows of bytes through a simulated network with limited bandwidth. Flows that use the same port at the
same time share its bandwidth max-min fairly.

In a network of cables, each direction of a cable is a port with a bandwidth. A flow uses all ports of its route at the
same time.

A connection has one sender and one receiver. A connection sends its messages one after the other, in the order in which
they were posted, as TCP does. Different connections send their messages at the same time. A flow's rate changes only
when another flow begins or ends. Simulated time therefore jumps from one beginning or end of a flow to the next.
Flow-level simulators of networks, such as SimGrid, use the same model (Casanova et al. 2014).
"""

import heapq
import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterable
from functools import partial

import simpy
from simpy.events import NORMAL

from grsgd.simulator.cabling.cable import Cable, Place
from grsgd.simulator.calls import Call, call_after, call_at
from grsgd.simulator.network import NetworkSpec

MIN_WEIGHT = 0.1
"""Smallest weight of a flow when flows share the bandwidth of a port, even if many flows have begun earlier."""
QUEUED_WEIGHT = 0.01
"""Factor by which the weight of a flow is multiplied while its first bytes wait in the sender's queue."""
SHARING_PRIORITY = 2
"""Priority, for SimPy, of the event that divides the bandwidth of ports among flows. `SHARING_PRIORITY` puts the event
after all beginnings and ends of flows at the same simulated moment."""


class Port:
    """A part of the network with a bandwidth of ``bandwidth`` bytes/s, which flows share.

    A port is one direction of a rank's link to the switch, one direction of a cable, or a medium that all ranks share.
    """

    __slots__ = ("bandwidth", "flows")

    def __init__(self, bandwidth: float):
        self.bandwidth = bandwidth
        self.flows: dict[Flow, None] = {}  # a dict keeps the flows' order, so that runs are repeatable


class Connection:
    """The connection from one sending rank to one or, with multicast, several receiving ranks. The messages of a
    connection leave the sender in the order in which they were sent.

    ``limit``: largest bandwidth in bytes/s that the link between the ranks allows. ``rate``: rate in bytes/s of a
    message while no other message uses the ports of the connection. ``ranks``: the sending rank and the receiving
    ranks. ``nbytes``: total number of bytes of the messages that the connection has sent so far.
    """

    __slots__ = ("ports", "limit", "rate", "latencies", "queue", "ranks", "nbytes", "free_at")

    def __init__(
        self, ports: tuple[Port, ...], limit: float, latencies: list[tuple[int, float]], ranks: tuple[int, ...] = ()
    ):
        self.ports, self.limit, self.latencies, self.ranks = ports, limit, latencies, ranks
        self.rate = min([limit, *(port.bandwidth for port in ports)])
        self.queue: list[Flow] = []
        self.nbytes = 0
        self.free_at = 0.0
        """Moment at which the last message that `grsgd.simulator.fast_ring` has calculated has left; 0 if it has
        none."""


class Flow:
    """A message that a connection is sending, or that waits in the connection's queue. At the simulated time ``since``,
    ``left`` bytes of the message were still to be sent.

    ``weight``: weight of the flow when flows share the bandwidth of a port. ``is_queued``: whether the flow's first
    bytes wait in the sender's queue behind bytes of other flows.
    """

    __slots__ = ("network", "connection", "message", "nbytes", "left", "weight", "rate", "since", "end", "is_queued")

    def __init__(self, network: "Network", connection: Connection, nbytes: int, message):
        self.network, self.connection, self.message = network, connection, message
        self.nbytes = self.left = nbytes
        self.weight = 1.0
        self.rate = 0.0
        self.since = 0.0
        self.end: Call | None = None
        self.is_queued = False

    def left_now(self) -> float:
        """Return the number of bytes of this message that have not left the sender yet."""
        return self.left - self.rate * (self.network.env.now - self.since)

    def set_rate(self, rate: float):
        now = self.network.env.now
        if self.rate:
            self.left = self.left_now()
            self.end.cancel()
        self.rate, self.since = rate, now
        self.end = self.network.after(max(self.left, 0.0) / rate, self._ended)

    def _ended(self, _):
        self.network.end(self)


class Network:
    """All connections between ``ranks`` ranks over the network ``spec``, in the simulated time of SimPy's ``env``."""

    def __init__(self, env: simpy.Environment, spec: NetworkSpec, ranks: int):
        self.env, self.spec = env, spec
        self._medium = Port(spec.bandwidth) if spec.medium == "shared" else None
        self._out = [Port(spec.port_bandwidth(rank)) for rank in range(ranks)]
        self._in = [Port(spec.port_bandwidth(rank)) for rank in range(ranks)]
        self.cuts: dict[int, tuple[float, float]] = {}
        """Two moments for each rank whose links are cut: the beginning and the end of the cut, in simulated seconds."""
        self._cables: dict[tuple[Place, Place], tuple[Cable, Port]] = {}
        """Cables that messages have used so far, each with the `Port` of its direction. The key is the pair of places
        (ranks, hosts or switches) from which and to which a cable leads."""
        self._connections: dict[tuple, Connection] = {}
        self._dirty: dict[Port, None] = {}

    @property
    def has_multicast(self) -> bool:
        """Return True if one outgoing copy of a message can reach several receivers."""
        return self.spec.multicast or self.spec.medium == "shared"

    def latency(self, source: int, dest: int) -> float:
        """Return the seconds from the moment when a message's last byte leaves rank ``source`` to its arrival at rank
        ``dest``. Raises MissingLink."""
        return self.connection(source, (dest,)).latencies[0][1] + self.cut_seconds((source, dest))

    def cut_seconds(self, ranks: Iterable[int]) -> float:
        """Return the seconds until no link of ``ranks`` is cut any more; 0 if their links work now."""
        if not self.cuts:
            return 0.0
        now, cuts = self.env.now, (self.cuts.get(rank, (math.inf, 0.0)) for rank in ranks)
        return max(end - now if begin <= now < end else 0.0 for begin, end in cuts)

    def transfer(self, source: int, dests: tuple[int, ...], nbytes: int, message):
        """Send a message of ``nbytes`` bytes from rank ``source`` to the ranks ``dests``. The source sends one copy,
        and each rank in ``dests`` receives one copy.

        The network calls ``message.on_left()`` when the last byte has left, and ``message.on_arrived(dest)`` when the
        last byte has arrived at ``dest``.

        Raises MissingLink if the network has no link between the ranks.
        """
        connection = self.connection(source, dests)
        connection.nbytes += nbytes
        connection.queue.append(Flow(self, connection, nbytes, message))
        if len(connection.queue) == 1:
            self._begin(connection.queue[0])

    def connection(self, source: int, dests: tuple[int, ...]) -> Connection:
        connection = self._connections.get((source, dests))
        if connection is None and self.spec.has_cables:
            connection = self._connections[source, dests] = self._over_cables(source, dests)
        elif connection is None:
            if dests == (source,):
                ports = ()
            elif self._medium is not None:
                ports = (self._medium,)
            else:
                ports = (self._out[source], *(self._in[dest] for dest in dests))
            limit = min(self.spec.link_bandwidth(source, dest) for dest in dests)
            latencies = [(dest, self.spec.link_latency(source, dest)) for dest in dests]
            connection = self._connections[source, dests] = Connection(ports, limit, latencies, (source, *dests))
        return connection

    def _over_cables(self, source: int, dests: tuple[int, ...]) -> Connection:
        """Return a connection over cables from rank ``source`` to all ranks ``dests``. A cable on the routes to several
        destinations carries a message once."""
        cabling, known = self.spec.cabling, self._cables
        ports: dict[Port, None] = {}
        latencies = []
        for dest in dests:
            latency = 0.0
            for ends in itertools.pairwise(cabling.way(source, dest) if dest != source else ()):
                if ends not in known:
                    cable = cabling.cable(*ends)
                    known[ends] = cable, Port(cable.bandwidth)
                cable, port = known[ends]
                ports[port] = None
                latency += cable.latency
            latencies.append((dest, latency))
        return Connection(tuple(ports), math.inf, latencies, (source, *dests))

    def forget_bytes(self):
        """Set the numbers of sent bytes of all connections, and therefore of all cables, to 0."""
        for connection in self._connections.values():
            connection.nbytes = 0

    def bytes_of_cables(self) -> dict[Cable, int]:
        """Return the number of bytes that each cable has carried. Cables that have carried no bytes are left out."""
        sent: Counter[Port] = Counter()
        for connection in self._connections.values():
            if connection.nbytes:
                sent.update(dict.fromkeys(connection.ports, connection.nbytes))
        return {cable: sent[port] for cable, port in self._cables.values() if port in sent}

    def after(self, seconds: float, call: Callable, priority: int = NORMAL) -> Call:
        """Call ``call(event)`` after ``seconds`` of simulated time."""
        return call_after(self.env, seconds, call, priority)

    def at(self, moment: float, call: Callable):
        """Call ``call(event)`` at the simulated time ``moment``."""
        call_at(self.env, moment, call)

    def end(self, flow: Flow):
        """Remove ``flow`` from its ports, because its last byte has left. Begin to send the next message in the queue
        of the flow's connection.

        If a link of the connection's sender or receivers is cut at present, the connection's next message begins when
        its links work again.
        """
        for port in flow.connection.ports:
            del port.flows[flow]
            if port.flows:
                self._mark_dirty(port)
        cut = self.cut_seconds(flow.connection.ranks)
        if cut:
            self.after(cut, lambda _: self._go_on_after(flow))
        else:
            self._go_on_after(flow)

    def _go_on_after(self, flow: Flow):
        connection = flow.connection
        connection.queue.pop(0)
        if connection.queue:
            self._begin(connection.queue[0])
        for dest, latency in connection.latencies:
            self.after(latency, partial(flow.message.on_arrived, dest))
        flow.message.on_left()

    def _begin(self, flow: Flow):
        alone = True
        queued = self._queued_before(flow)
        for port in flow.connection.ports:
            if port.flows:
                alone = False
                self._mark_dirty(port)
            port.flows[flow] = None
        if alone:  # no other flow has these ports, as is usual on a ring
            flow.set_rate(flow.connection.rate)
        elif queued > 0:
            flow.is_queued = True
            self.after(queued / flow.connection.ports[0].bandwidth, lambda _: self._end_queueing(flow))

    def _queued_before(self, flow: Flow) -> float:
        """Return the number of bytes of other flows in the sender's queue that leave before the first byte of the new
        ``flow``."""
        most = self.spec.queue_bytes
        if not (most and flow.connection.ports):
            return 0.0
        first, sender = flow.connection.ports[0], flow.connection.ranks[0]
        others = (other for other in first.flows if other.connection.ports[0] is first)
        if self._medium is not None:  # each sender on a shared medium has its own queue
            others = (other for other in others if other.connection.ranks[0] == sender)
        return sum(min(other.left_now(), most) for other in others)

    def _end_queueing(self, flow: Flow):
        """Give ``flow`` its full share of bandwidth, because all bytes before it in the sender's queue have left."""
        flow.is_queued = False
        for port in flow.connection.ports:
            if flow in port.flows:
                self._mark_dirty(port)

    def _mark_dirty(self, port: Port):
        if not self._dirty:
            self.after(0.0, self._share, SHARING_PRIORITY)
        self._dirty[port] = None

    def _share(self, _):
        """Compute fair rates for all flows that share a port with a flow that has begun or ended.

        When the rate of a flow changes, the rates of other flows on its ports may no longer be fair. Flows with unfair
        rates get new rates, too. Most changes of rates affect only a few flows.
        """
        dirty, self._dirty = self._dirty, {}
        flows = {flow: None for port in dirty for flow in port.flows}
        while True:
            ports = {port: None for flow in flows for port in flow.connection.ports}
            if self.spec.fairness != 1 or self.spec.queue_bytes:
                self._set_weights(ports)
            rates = max_min_fair(flows, ports)
            unfair = unfair_flows(rates, ports)
            if not unfair:
                break
            known = len(flows)
            for flow in unfair:
                flows.update((other, None) for port in flow.connection.ports for other in port.flows)
            if len(flows) == known:  # the remaining unfairness comes from rounding errors
                break
        for flow, rate in rates.items():
            if rate != flow.rate:
                flow.set_rate(rate)

    def _set_weights(self, ports):
        """Set the weights of the flows that share ports. The flow that began first has the largest weight.

        The weight of a flow whose first bytes wait in its sender's queue is multiplied by `QUEUED_WEIGHT`.
        """
        flows = {flow: None for port in ports for flow in port.flows}
        weights: dict[Flow, float] = dict.fromkeys(flows, 1.0)
        for port in {port: None for flow in flows for port in flow.connection.ports}:
            weight = 1.0
            for flow in port.flows:
                if flow in weights:
                    weights[flow] = min(weights[flow], weight)
                weight = max(weight * self.spec.fairness, MIN_WEIGHT)
        for flow, weight in weights.items():
            flow.weight = weight * (QUEUED_WEIGHT if flow.is_queued else 1.0)


def unfair_flows(rates: dict[Flow, float], ports) -> list[Flow]:
    """Return the flows through ``ports`` that have no bottleneck, so that their rates could be higher.

    A flow has a bottleneck if its rate is the limit of its connection. A flow has a bottleneck, too, at a full port
    where no other flow has a higher rate per weight. ``rates``: new rates of the flows whose rates are about to change.
    """
    levels: dict[Port, float] = {}

    def level(port: Port) -> float:
        """Return the highest rate per weight of all flows through ``port``; infinity if bandwidth is free."""
        if port not in levels:
            there = {flow: rates.get(flow, flow.rate) for flow in port.flows}
            full = sum(there.values()) >= port.bandwidth * (1 - 1e-9)
            levels[port] = max(rate / flow.weight for flow, rate in there.items()) if full else math.inf
        return levels[port]

    def is_fair(flow: Flow) -> bool:
        rate = rates.get(flow, flow.rate) * (1 + 1e-9)
        ports = flow.connection.ports
        return rate >= flow.connection.limit or any(level(port) <= rate / flow.weight for port in ports)

    return [flow for flow in {flow: None for port in ports for flow in port.flows} if not is_fair(flow)]


def max_min_fair(flows, ports) -> dict[Flow, float]:
    """Return the max-min fair rates of ``flows``, by progressive filling (Bertsekas, Gallager 1992, section 6.5.2).

    All rates grow in proportion to the flows' weights, until a port is full or the rate of a flow has reached the limit
    of its connection. At this moment the rates of the flows through the full port, or the rate of the flow at its
    limit, are fixed. The rates of all other flows in ``flows`` continue to grow. Flows through ``ports`` that are not
    in ``flows`` keep the rates that they have at present.
    """
    rates: dict[Flow, float] = {}
    left, growing, weight = {}, {}, {}
    for port in ports:
        kept = [flow.rate for flow in port.flows if flow not in flows]
        left[port] = max(port.bandwidth - math.fsum(kept), 0.0)
        growing[port] = len(port.flows) - len(kept)
        weight[port] = sum(flow.weight for flow in port.flows if flow in flows)
    # ``waiting`` is a heap of entries for ports, ordered by the rate per weight at which each port will be full.
    # Outdated entries are skipped. A number in each entry prevents the heap from comparing ports.
    shares = {port: left[port] / weight[port] for port in ports if growing[port]}
    number = itertools.count(len(shares))
    waiting = [(share, place, port) for place, (port, share) in enumerate(shares.items()) if share == share]
    heapq.heapify(waiting)
    places = {flow: place for place, flow in enumerate(flows)}
    limits = sorted((flow.connection.limit / flow.weight, place, flow) for flow, place in places.items())
    reached = 0

    def next_share() -> float:
        while waiting and shares.get(waiting[0][2]) != waiting[0][0]:
            heapq.heappop(waiting)
        return waiting[0][0] if waiting else math.inf

    while True:
        while reached < len(limits) and limits[reached][2] in rates:
            reached += 1
        if reached == len(limits):
            return rates
        level = min(next_share(), limits[reached][0])
        slack = level * (1 + 1e-12)  # rounding makes equal shares differ in their last digits
        held = {}
        while next_share() <= slack and waiting:
            port = heapq.heappop(waiting)[2]
            held.update((flow, places[flow]) for flow in port.flows if flow in places and flow not in rates)
        while reached < len(limits) and limits[reached][0] <= slack:
            _, place, flow = limits[reached]
            if flow not in rates:
                held[flow] = place
            reached += 1
        changed = {}
        for flow in sorted(held, key=held.get):
            rates[flow] = level * flow.weight
            for port in flow.connection.ports:
                left[port] -= rates[flow]
                growing[port] -= 1
                weight[port] -= flow.weight
                changed[port] = None
        for port in changed:
            shares.pop(port, None)
            if growing[port]:
                shares[port] = share = left[port] / weight[port]
                if share == share:
                    heapq.heappush(waiting, (share, next(number), port))
