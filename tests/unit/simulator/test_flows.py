"""How long messages take in simulated time, against closed forms: M bytes, bandwidth B, latency L, n ranks."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grsgd.algorithms.dpsgd import neighbour_exchange
from grsgd.comm.allreduce import (
    ALLREDUCE,
    broadcast,
    halving_doubling_allreduce,
    ring_allreduce,
    tree_allreduce,
)
from grsgd.simulator.flows import MIN_WEIGHT, Connection, Flow, Port, max_min_fair
from grsgd.testing.simulated import Ranks, network_of
from tests.support.arrivals import array, arrivals
from tests.support.seeded import seeded

B = 125e6
L = 50e-6
M = 100_000_000
"""Large against B L, 6250 bytes, and against a ring's pieces of 1 MiB."""
GIGABIT = dict(bandwidth="1 gbit", latency="50 us")


def duration(n, schedule, nbytes=M, **options):
    """Simulated seconds until every rank's ``schedule(comm, x)`` has ended."""
    ranks = Ranks(n, network_of(**GIGABIT | options))
    ranks.finish([schedule(comm, array(nbytes)) for comm in ranks.comms])
    return ranks.env.now


def one_per_cent(value):
    return pytest.approx(value, rel=0.01)


def sent(ranks):
    return sum(comm.traffic.sent.sum() for comm in ranks.comms)


# ---- collectives


@pytest.mark.parametrize("n", range(2, 10))
def test_ring_allreduce_on_a_switch(n):
    assert duration(n, ring_allreduce) == one_per_cent(2 * (n - 1) / n * M / B + 2 * (n - 1) * L)


@pytest.mark.parametrize("n", range(2, 10))
def test_ring_allreduce_on_a_shared_medium(n):
    """All that is sent, one byte after another."""
    assert duration(n, ring_allreduce, medium="shared") == one_per_cent(2 * (n - 1) * M / B + 2 * (n - 1) * L)


@pytest.mark.parametrize("n", [2, 3, 5, 9])
def test_ring_allreduce_of_little_is_latency(n):
    """An eager message leaves at once: 2 (n - 1) latencies and no time for bytes worth mentioning. Two ranks exchange
    what they have, in one."""
    options = dict(bandwidth="1 tbit", latency="10 ms")
    latencies = 1 if n == 2 else 2 * (n - 1)
    assert duration(n, ring_allreduce, nbytes=4000, **options) == one_per_cent(latencies * 0.01)


@pytest.mark.parametrize("n", [2, 4, 8])
def test_halving_doubling_of_a_power_of_two(n):
    rounds = 2 * math.log2(n)
    assert duration(n, halving_doubling_allreduce) == one_per_cent(2 * (n - 1) / n * M / B + rounds * L)


@pytest.mark.parametrize("n", [3, 5, 6, 7, 9])
def test_halving_doubling_otherwise(n):
    """One more array each way for the ranks beyond p, the power of two below."""
    p = 1 << (n.bit_length() - 1)
    expected = (2 * (p - 1) / p + 2) * M / B + (2 * math.log2(p) + 2) * L
    assert duration(n, halving_doubling_allreduce) == one_per_cent(expected)


@pytest.mark.parametrize("n", [2, 4, 8, 16])
def test_tree_allreduce_of_a_power_of_two(n):
    assert duration(n, tree_allreduce) == one_per_cent(2 * math.ceil(math.log2(n)) * M / B)


@pytest.mark.parametrize("n", [3, 5, 6, 7, 9])
def test_tree_allreduce_otherwise(n):
    """No longer than for the next power of two, no less than to and from the root's children, one after another."""
    children = (n - 1).bit_length()
    assert 2 * (children - 1) * M / B < duration(n, tree_allreduce) <= 2.01 * children * M / B


@pytest.mark.parametrize("n", [2, 4, 8])
def test_tree_broadcast(n):
    assert duration(n, broadcast) == one_per_cent(math.log2(n) * M / B)


@pytest.mark.parametrize("variant", ALLREDUCE)
@pytest.mark.parametrize("n", [2, 3, 4, 6])
def test_a_shared_medium_carries_every_byte(variant, n):
    """Whatever the schedule: nobody else's bytes fit in between while a medium is never idle."""
    ranks = Ranks(n, network_of(**GIGABIT, medium="shared"))
    ranks.finish([ALLREDUCE[variant](comm, array(M)) for comm in ranks.comms])
    assert ranks.env.now == one_per_cent(sent(ranks) / B)


@pytest.mark.parametrize("variant", ALLREDUCE)
def test_a_network_without_limits_takes_no_time(variant):
    for n in (1, 2, 3, 5, 8):
        assert duration(n, ALLREDUCE[variant], bandwidth="inf bit", latency="0 s") == 0


def ring_exchange(comm, x):
    left, right = (comm.rank - 1) % comm.size, (comm.rank + 1) % comm.size
    yield from neighbour_exchange(comm, x, [left, right], {left: array(x.nbytes), right: array(x.nbytes)})


@pytest.mark.parametrize("n", range(3, 10))
def test_exchange_with_both_neighbours(n):
    assert duration(n, ring_exchange) == one_per_cent(2 * M / B + L)
    assert duration(n, ring_exchange, medium="shared") == one_per_cent(2 * n * M / B + L)


def multicast(comm, x):
    yield comm.Ibcast(x)


@pytest.mark.parametrize("n", range(2, 10))
def test_multicast(n):
    """One copy on the way out reaches all, where the switch can do that or where all hear the same medium."""
    assert duration(n, multicast, multicast=True) == one_per_cent(M / B)
    assert duration(n, multicast, medium="shared") == one_per_cent(M / B)
    assert duration(n, multicast) == one_per_cent((n - 1) * M / B)


# ---- flows that meet


def switch(n, **options):
    return Ranks(n, network_of(**dict(bandwidth="8 kbit", latency="0 s", eager_bytes=0) | options))


def test_one_flow():
    assert arrivals(switch(2, latency="3 s"), (0, 1, 5000)) == [pytest.approx(5 + 3)]
    assert arrivals(switch(2), (0, 1, 5000)) == [pytest.approx(5)]


@pytest.mark.parametrize("pairs", [[(0, 2), (1, 2)], [(2, 0), (2, 1)]], ids=["in", "out"])
def test_two_flows_share_a_port(pairs):
    """Halves until the shorter one is through."""
    (a, b), (c, d) = pairs
    assert arrivals(switch(3), (a, b, 1000), (c, d, 3000)) == pytest.approx([2, 4])
    assert arrivals(switch(3), (a, b, 2000), (c, d, 2000, 1.0)) == pytest.approx([3, 4])


@pytest.mark.parametrize("pairs", [[(0, 2), (1, 2)], [(2, 0), (2, 1)]], ids=["in", "out"])
def test_the_flow_that_began_first_gets_more(pairs):
    """Two thirds and a third with a fairness of 1/2; then the second one is the first."""
    (a, b), (c, d) = pairs
    messages = (a, b, 2000), (c, d, 2000, 1.0), (c, d, 100, 3.9)
    assert arrivals(switch(3, fairness=0.5), *messages) == pytest.approx([2.5, 4, 4.1])
    shared = switch(3, fairness=0.5, medium="shared")
    assert arrivals(shared, *messages[:2]) == pytest.approx([2.5, 4])


@pytest.mark.parametrize(
    ("queue_bytes", "ends"),
    [(0, [3.0, 4.0]), (500, [2.5, 4.0]), (1000, [2.0, 4.0]), (9999, [2.0, 4.0])],
)
def test_a_flow_waits_for_what_is_in_the_queue_of_its_sender(queue_bytes, ends):
    """Of the 1000 bytes of the first one that have not left when the second one begins; then each has half the rate."""
    messages = (0, 1, 2000), (0, 2, 2000, 1.0)
    assert arrivals(switch(3, queue_bytes=queue_bytes), *messages) == pytest.approx(ends, rel=0.01)
    shared = switch(3, queue_bytes=queue_bytes, medium="shared")
    assert arrivals(shared, *messages) == pytest.approx(ends, rel=0.01)


@pytest.mark.parametrize("medium", ["switch", "shared"])
def test_a_flow_does_not_wait_for_those_of_other_senders(medium):
    messages = (0, 2, 2000), (1, 2, 2000, 1.0)
    assert arrivals(switch(3, queue_bytes=500, medium=medium), *messages) == pytest.approx([3, 4])


def test_a_flow_waits_for_all_that_are_in_the_queue():
    """Three that begin together: the second one waits until 100 bytes have left, the third one for 200."""
    messages = [(0, dest, 1000) for dest in (1, 2, 3)]
    found = arrivals(switch(4, queue_bytes=100), *messages)
    assert found == pytest.approx([2.75, 2.95, 3.0], rel=0.01)


def test_fairness_at_two_ports():
    """A flow's place is the worst of those it has at its ports. The way 0 to 3 is the first at both of its ports."""
    messages = (0, 3, 6000), (0, 2, 3000), (1, 3, 3000)
    assert arrivals(switch(4, fairness=0.5), *messages) == pytest.approx([9, 9, 9])


def test_ways_in_and_out_are_apart():
    assert arrivals(switch(3), (0, 1, 2000), (1, 0, 2000)) == pytest.approx([2, 2])
    assert arrivals(switch(3), (0, 1, 2000), (1, 2, 2000)) == pytest.approx([2, 2])
    assert arrivals(switch(3, medium="shared"), (0, 1, 2000), (1, 0, 2000)) == pytest.approx([4, 4])


def test_messages_of_one_pair_follow_each_other():
    assert arrivals(switch(2), (0, 1, 1000), (0, 1, 2000), (0, 1, 3000)) == pytest.approx([1, 3, 6])


def test_what_a_slow_link_leaves_the_other_flow_takes():
    """Max-min fairness: 200 bytes/s over the link, the other 800 of the port to the other flow."""
    link = [{"from": 0, "to": 1, "bandwidth": "1.6 kbit"}]
    assert arrivals(switch(3, link=link), (0, 1, 1000), (0, 2, 4000)) == pytest.approx([5, 5])


def test_fair_shares_three_flows_two_ports():
    """0->2 and 1->2 meet at the way in of 2, 1->3 has the rest of the way out of 1 after 2's port is divided."""
    ports = [{"rank": 2, "bandwidth": "3.2 kbit"}]  # 200 each for the flows into 2; 800 left for 1 -> 3
    assert arrivals(switch(4, port=ports), (0, 2, 1000), (1, 2, 1000), (1, 3, 4000)) == pytest.approx([5, 5, 5])


def test_a_flow_is_held_up_through_a_third():
    """A flow that begins elsewhere changes the share of one it never meets."""
    # 2's way out is 400 bytes/s. 0->1 and 2->1 meet at the way in of 1: 600 and 400, until from 1 s on 2->3 takes half
    # of 2's way out and leaves 800 to 0->1.
    ports = [{"rank": 2, "bandwidth": "3.2 kbit"}]
    messages = (0, 1, 600 + 1600), (2, 1, 400 + 400), (2, 3, 400, 1.0)
    assert arrivals(switch(4, port=ports), *messages) == pytest.approx([3, 3, 3])


def test_links_and_ports_of_their_own():
    link = [
        {"from": 0, "to": 1, "bandwidth": "4 kbit", "latency": "2 s", "both_ways": True},
        {"from": 0, "to": 2, "latency": "1 s"},
    ]
    port = [{"rank": 3, "bandwidth": "2 kbit"}]

    def alone(source, dest):
        return arrivals(switch(5, link=link, port=port), (source, dest, 1000))

    assert alone(0, 1) == alone(1, 0) == pytest.approx([2 + 2])
    assert alone(0, 2) == pytest.approx([1 + 1])
    assert alone(2, 0) == pytest.approx([1])  # one way only
    assert alone(0, 3) == alone(3, 0) == pytest.approx([4])
    assert alone(0, 4) == alone(2, 4) == pytest.approx([1])


def test_a_link_faster_than_its_ports_does_not_help():
    link = [{"from": 0, "to": 1, "bandwidth": "1 gbit"}]
    assert arrivals(switch(2, link=link), (0, 1, 1000)) == pytest.approx([1])


def test_a_multicast_is_as_slow_as_its_slowest_receiver():
    ranks = switch(3, multicast=True, port=[{"rank": 2, "bandwidth": "4 kbit"}])
    ranks.finish([multicast(comm, array(1000)) for comm in ranks.comms])
    assert ranks.env.now == pytest.approx(2)
    ranks = switch(3, multicast=True, link=[{"from": 0, "to": 2, "bandwidth": "2 kbit", "latency": "3 s"}])
    ranks.finish([multicast(comm, array(1000)) for comm in ranks.comms])
    assert ranks.env.now == pytest.approx(4 + 3)


def test_many_flows_without_a_limit():
    """Infinite shares of infinite ports."""
    ranks = Ranks(4, network_of(latency="1 s"))
    messages = [(i, j, 1000) for i in range(4) for j in range(4) for _ in range(3)]
    assert arrivals(ranks, *messages) == [1.0] * len(messages)


@seeded
@given(
    messages=st.lists(
        st.tuples(st.integers(0, 3), st.integers(0, 3), st.integers(1, 5000), st.floats(0, 5)).filter(
            lambda message: message[0] != message[1]
        ),
        min_size=1,
        max_size=12,
    ),
    medium=st.sampled_from(["switch", "shared"]),
)
def test_no_port_carries_more_than_it_can(messages, medium):
    """In the time from the first beginning to the last arrival; and a single flow is never slower than alone after
    all the others."""
    messages = [(source, dest, 4 * nbytes, begin) for source, dest, nbytes, begin in messages]
    seen = arrivals(switch(4, medium=medium), *messages)
    first = min(begin for *_, begin in messages)
    total = sum(nbytes for _, _, nbytes, _ in messages)
    for (_, _, nbytes, begin), end in zip(messages, seen, strict=True):
        assert end >= begin + nbytes / 1000 - 1e-9
        assert end <= max(begin for *_, begin in messages) + total / 1000 + 1e-9
    if medium == "shared":
        assert max(seen) >= first + total / 1000 - 1e-9
    for rank in range(4):
        for side in (0, 1):
            mine = [(message, end) for message, end in zip(messages, seen, strict=True) if message[side] == rank]
            if mine:
                span = max(end for _, end in mine) - min(message[3] for message, _ in mine)
                assert span >= sum(message[2] for message, _ in mine) / 1000 - 1e-9


# ---- max-min fairness itself


@st.composite
def shared_ports(draw):
    """Ports, and flows that each take some of them and may have a limit and a weight of their own."""
    weights = st.just(1.0) if draw(st.booleans()) else st.sampled_from([1.0, 0.8, 0.64, MIN_WEIGHT])
    capacities = st.floats(1e-3, 1e9) | st.sampled_from([1.0, 3.0, math.inf])
    ports = [Port(draw(capacities)) for _ in range(draw(st.integers(1, 6)))]
    flows = []
    for _ in range(draw(st.integers(1, 12))):
        chosen = draw(st.lists(st.sampled_from(ports), min_size=1, max_size=3, unique=True))
        flow = Flow(None, Connection(tuple(chosen), draw(capacities), []), 1, None)
        flow.weight = draw(weights)
        flows.append(flow)
        for port in chosen:
            port.flows[flow] = None
    return flows, ports


@seeded
@given(shared_ports())
def test_rates_are_max_min_fair(drawn):
    """No port carries more than it can, and every flow has a bottleneck: its own limit, or a full port at which no
    other flow gets more for its weight. This is equivalent to max-min fairness (Bertsekas, Gallager 1992)."""
    flows, ports = drawn
    rates = max_min_fair(flows, ports)
    assert set(rates) == set(flows)
    assert all(rate > 0 for rate in rates.values())
    for port in ports:
        assert sum(rates[flow] for flow in port.flows) <= port.bandwidth * (1 + 1e-9)
    for flow in flows:
        rate, connection = rates[flow], flow.connection
        assert rate <= connection.limit * (1 + 1e-9)

        def full(port):
            return sum(rates[other] for other in port.flows) >= port.bandwidth * (1 - 1e-9)

        bottlenecks = [
            port
            for port in connection.ports
            if full(port)
            and max(rates[other] / other.weight for other in port.flows) <= rate / flow.weight * (1 + 1e-9)
        ]
        assert bottlenecks or rate >= connection.limit * (1 - 1e-9)


@seeded
@given(shared_ports())
def test_rates_do_not_depend_on_the_order(drawn):
    flows, ports = drawn
    rates = max_min_fair(flows, ports)
    again = max_min_fair(flows[::-1], ports[::-1])
    for flow in flows:
        assert again[flow] == pytest.approx(rates[flow], rel=1e-9)


def test_a_limit_holds_a_flow_whatever_its_weight():
    port = Port(10.0)
    slow, fast, heavy = (Flow(None, Connection((port,), limit, []), 1, None) for limit in (1.0, 2.0, math.inf))
    fast.weight = heavy.weight = 0.5
    for flow in (slow, fast, heavy):
        port.flows[flow] = None
    assert max_min_fair([slow, fast], [port]) == {slow: 1.0, fast: 2.0}
    assert max_min_fair([slow, fast, heavy], [port]) == {slow: 1.0, fast: 2.0, heavy: 7.0}


def test_where_others_fill_a_port_nothing_is_left():
    """Of flows whose rates are not looked at anew."""
    port = Port(10.0)
    kept, new = (Flow(None, Connection((port,), math.inf, []), 1, None) for _ in range(2))
    port.flows |= {kept: None, new: None}
    for rate, left in ((10.0, 0.0), (12.0, 0.0), (4.0, 6.0)):
        kept.rate = rate
        assert max_min_fair([new], [port]) == {new: left}
