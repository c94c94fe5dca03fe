"""How long messages take that share cables, against closed forms: M bytes, bandwidth B, latency L; and what cables
carry."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from grsgd import load_run
from grsgd.algorithms.dpsgd import neighbour_exchange
from grsgd.cli import main
from grsgd.comm.allreduce import ring_allreduce
from grsgd.simulator.flows import Connection, Flow, Port, max_min_fair
from grsgd.testing.simulated import Ranks, network_of
from tests.support.arrivals import array, arrivals
from tests.support.seeded import seeded

B = 125e6
L = 50e-6
M = 100_000_000
"""Large against B L, 6250 bytes, and against a ring's pieces of 1 MiB."""
GIGABIT = dict(bandwidth="1 gbit", latency="50 us")


def one_per_cent(value):
    return pytest.approx(value, rel=0.01)


def kilobyte(n, medium, **options):
    """Ranks on cables of 1000 bytes/s."""
    return Ranks(n, network_of(**dict(medium=medium, bandwidth="8 kbit", latency="0 s", eager_bytes=0) | options))


LEAVES = [{"from": "leaf 0", "to": [0, 1]}, {"from": "leaf 1", "to": [2, 3]}, {"from": "leaf 0", "to": "leaf 1"}]


def test_two_flows_share_the_cable_between_their_switches():
    """Halves, until the shorter one is through; the other direction is apart."""
    assert arrivals(kilobyte(4, "cables", cable=LEAVES), (0, 2, 2000)) == pytest.approx([2])
    messages = (0, 2, 1000), (1, 3, 3000), (3, 1, 4000)
    assert arrivals(kilobyte(4, "cables", cable=LEAVES), *messages) == pytest.approx([2, 4, 4])
    assert arrivals(kilobyte(4, "cables", cable=LEAVES), (0, 1, 1000), (2, 3, 1000)) == pytest.approx([1, 1])


def test_what_a_full_cable_leaves_goes_to_others():
    """0 and 1 have 250 each of a middle cable of 500 bytes/s; 0 -> 1 has the rest of 0's cable."""
    cables = [*LEAVES[:2], LEAVES[2] | {"bandwidth": "4 kbit"}]
    messages = (0, 2, 1000), (1, 3, 1000), (0, 1, 3000)
    assert arrivals(kilobyte(4, "cables", cable=cables), *messages) == pytest.approx([4, 4, 4])


def test_latencies_of_the_cables_of_a_route_add_up():
    cables = [*LEAVES[:2], LEAVES[2] | {"latency": "3 s"}]
    ranks = kilobyte(4, "cables", cable=cables, latency="1 s")
    assert ranks.network.latency(0, 2) == 5 and ranks.network.latency(0, 1) == 2
    assert arrivals(ranks, (0, 2, 4000)) == pytest.approx([4 + 5])
    for medium, far, near in (("fat-tree:k=4", 6, 2), ("torus:4x4", 2, 1), ("hosts:4x4", 1, 1e-6)):
        network = kilobyte(16, medium, latency="1 s").network
        assert (network.latency(0, 15), network.latency(0, 1)) == (far, near)


def test_a_host_has_one_card_for_all_its_ranks():
    assert arrivals(kilobyte(4, "hosts:2x2"), (0, 2, 1000), (1, 3, 1000)) == pytest.approx([2, 2])
    assert arrivals(kilobyte(6, "hosts:3x2"), (0, 2, 1000), (4, 3, 1000)) == pytest.approx([2, 2])
    assert arrivals(kilobyte(4, "hosts:2x2"), (0, 2, 1000), (3, 1, 1000)) == pytest.approx([1, 1])
    memory = {"bandwidth": "16 kbit", "latency": "3 s"}
    messages = (0, 1, 1000), (1, 0, 1000), (0, 2, 1000)
    assert arrivals(kilobyte(4, "hosts:2x2", memory=memory), *messages) == pytest.approx([4, 4, 1])


def allreduce_seconds(n, medium, **options):
    ranks = Ranks(n, network_of(**GIGABIT, medium=medium, **options))
    ranks.finish([ring_allreduce(comm, array(M)) for comm in ranks.comms])
    return ranks.env.now


@pytest.mark.parametrize(("hosts", "each"), [(2, 2), (2, 4), (4, 2)])
def test_ring_allreduce_over_hosts(hosts, each):
    """One rank of each host sends over the card, at its full rate; within the hosts it is faster."""
    n = hosts * each
    expected = 2 * (n - 1) / n * M / B + 2 * (n - 1) * L
    assert allreduce_seconds(n, f"hosts:{hosts}x{each}") == one_per_cent(expected)


def test_hosts_of_slow_memory_hold_up_a_ring():
    """Each host's memory carries the messages of 3 of its 4 ranks."""
    memory = {"bandwidth": "1 gbit", "latency": "0 s"}
    assert allreduce_seconds(8, "hosts:2x4", memory=memory) == one_per_cent(3 * 2 * 7 / 8 * M / B)


@pytest.mark.parametrize("medium", ["torus:3x3", "torus:2x2x2", "torus:5", "torus:4x4"])
def test_ring_allreduce_on_a_torus(medium):
    """Where rank i + 1 is not a neighbour the route has two cables, of which other pairs use one at most."""
    ranks = Ranks(network_of(medium=medium).cabling.places, network_of(**GIGABIT, medium=medium))
    n = len(ranks.comms)
    routes = [ranks.network.spec.cabling.route(i, (i + 1) % n) for i in range(n)]
    most = max(Counter(cable for route in routes for cable in route).values())
    assert most == 1
    ranks.finish([ring_allreduce(comm, array(M)) for comm in ranks.comms])
    assert ranks.env.now == one_per_cent(2 * (n - 1) / n * M / B + 2 * (n - 1) * L)


def exchange(comm, x, others):
    yield from neighbour_exchange(comm, x, others, {other: array(x.nbytes) for other in others})


def test_neighbours_on_a_torus_exchange_at_full_rate_and_others_share():
    """Each rank with its 4 neighbours at once: M / B. With the rank half way round a ring of 8, both directions carry
    two messages each: twice that; with the rank 2 further on as well as the one 2 back, each cable has two, too."""
    ranks = Ranks(16, network_of(**GIGABIT, medium="torus:4x4"))
    near = [[(r // 4 * 4 + (r + d) % 4) for d in (1, 3)] + [(r + d) % 16 for d in (4, 12)] for r in range(16)]
    ranks.finish([exchange(comm, array(M), near[comm.rank]) for comm in ranks.comms])
    assert ranks.env.now == one_per_cent(M / B + L)
    for far in ([4], [2, 6]):
        ranks = Ranks(8, network_of(**GIGABIT, medium="torus:8"))
        others = [[(r + d) % 8 for d in far] for r in range(8)]
        ranks.finish([exchange(comm, array(M), others[comm.rank]) for comm in ranks.comms])
        assert ranks.env.now == one_per_cent(2 * M / B + far[0] * L)


@pytest.mark.parametrize("shift", [1, 2, 5, 8, 15])
def test_shifts_have_the_full_rate_of_a_fat_tree(shift):
    ranks = kilobyte(16, "fat-tree:k=4")
    messages = [(i, (i + shift) % 16, 4000) for i in range(16)]
    assert arrivals(ranks, *messages) == pytest.approx([4] * 16)


def test_receivers_with_the_same_digits_share_a_core_switch():
    """The price of routes that are fixed: ranks 4, 8 and 12 have the same way up, whichever pod they are in."""
    messages = [(0, 4, 1000), (1, 8, 1000)]
    assert arrivals(kilobyte(16, "fat-tree:k=4"), *messages) == pytest.approx([2, 2])
    assert arrivals(kilobyte(16, "fat-tree:k=4"), (0, 4, 1000), (1, 9, 1000)) == pytest.approx([1, 1])


def test_one_cable_joins_two_groups_of_a_dragonfly():
    messages = [(i, 8 + i, 1000) for i in range(8)]
    assert arrivals(kilobyte(72, "dragonfly:a=4,p=2,h=2"), *messages) == pytest.approx([8] * 8)
    messages = [(0, 8 * group, 1000) for group in (1, 3)] + [(2, 8 * 5, 1000)]
    assert arrivals(kilobyte(72, "dragonfly:a=4,p=2,h=2"), *messages) == pytest.approx([2, 2, 1])


def test_a_multicast_passes_each_cable_once():
    def broadcast(comm):
        yield comm.Ibcast(array(1000))

    for multicast, seconds, crossing in ((True, 1, 1), (False, 3, 2)):
        ranks = kilobyte(4, "cables", cable=LEAVES, multicast=multicast)
        ranks.finish([broadcast(comm) for comm in ranks.comms])
        assert ranks.env.now == pytest.approx(seconds)
        carried = {(cable.source, cable.dest): nbytes for cable, nbytes in ranks.network.bytes_of_cables().items()}
        assert carried["leaf 0", "leaf 1"] == crossing * 1000 and carried["leaf 1", "rank 2"] == 1000


def test_cables_without_a_limit_take_latencies_alone():
    """All pairs at once, on infinite shares of infinite cables."""
    ranks = Ranks(12, network_of(medium="torus:3x4", latency="1 s", eager_bytes=0))
    messages = [(i, j, 1000) for i in range(12) for j in range(12) if i != j for _ in range(2)]
    hops = [len(ranks.network.spec.cabling.route(i, j)) for i, j, _ in messages]
    assert arrivals(ranks, *messages) == hops


@seeded
@given(
    messages=st.lists(
        st.tuples(st.integers(0, 8), st.integers(0, 8), st.integers(1, 5000), st.floats(0, 5)).filter(
            lambda message: message[0] != message[1]
        ),
        min_size=1,
        max_size=25,
    ),
    fairness=st.sampled_from([1.0, 0.5]),
    queue_bytes=st.sampled_from([0, 1500]),
)
def test_no_cable_carries_more_than_it_can(messages, fairness, queue_bytes):
    """In the time from the first beginning to the last arrival; and no message is faster than alone."""
    messages = [(source, dest, 4 * nbytes, begin) for source, dest, nbytes, begin in messages]
    ranks = kilobyte(9, "torus:3x3", fairness=fairness, queue_bytes=queue_bytes)
    seen = arrivals(ranks, *messages)
    passing = {}
    for (source, dest, nbytes, begin), end in zip(messages, seen, strict=True):
        assert end >= begin + nbytes / 1000 - 1e-9
        for cable in ranks.network.spec.cabling.route(source, dest):
            passing.setdefault(cable, []).append((begin, end, nbytes))
    for there in passing.values():
        span = max(end for _, end, _ in there) - min(begin for begin, _, _ in there)
        assert span >= sum(nbytes for *_, nbytes in there) / 1000 - 1e-9


# ---- bytes


@seeded
@given(
    medium=st.sampled_from(["fat-tree:k=4", "torus:2x3x2", "dragonfly:a=2,p=2,h=1", "hosts:4x3"]),
    messages=st.lists(st.tuples(st.integers(0, 11), st.integers(0, 11), st.integers(1, 5000)), max_size=12),
)
def test_bytes_of_all_cables_are_those_of_all_messages_times_their_hops(medium, messages):
    messages = [(source, dest, 4 * nbytes) for source, dest, nbytes in messages if source != dest]
    ranks = kilobyte(12, medium)
    arrivals(ranks, *messages)
    routes = [(ranks.network.spec.cabling.route(source, dest), nbytes) for source, dest, nbytes in messages]
    expected = Counter()
    for route, nbytes in routes:
        expected.update(dict.fromkeys(route, nbytes))
    assert ranks.network.bytes_of_cables() == expected
    assert sum(expected.values()) == sum(len(route) * nbytes for route, nbytes in routes)
    ranks.network.forget_bytes()
    assert ranks.network.bytes_of_cables() == {}


CONFIG = """
[algorithm]
name = "dpsgd"
[model]
name = "mlp"
hidden = [4]
[data]
name = "synthetic"
[train]
steps = 3
"""


def simulated(tmp_path, *arguments):
    (tmp_path / "run.toml").write_text(CONFIG)
    out = tmp_path / "run.h5"
    options = ("--ranks", "8", "--timing-only", "--out", str(out), *arguments)
    return main(["simulate", str(tmp_path / "run.toml"), *options]), out


@pytest.mark.parametrize("medium", ["fat-tree:k=4", "torus:2x2x2", "hosts:2x4"])
def test_a_run_file_has_the_bytes_of_each_cable(medium, tmp_path, capsys):
    """Their sum is that of the messages of training times the lengths of their routes, and no more."""
    code, out = simulated(tmp_path, "--topology", medium)
    assert code == 0, capsys.readouterr().err
    run = load_run(out)
    cables, cabling = run.extra["traffic"]["cables"], network_of(medium=medium).cabling
    sent = run.traffic["sent"] + run.traffic["headers"]
    hops = [[len(cabling.route(i, j)) for j in range(8)] for i in range(8)]
    assert cables["bytes"].sum() == (sent * hops).sum() > 0
    busy = list(cables["bytes"] / cables["bandwidth"])
    assert busy == sorted(busy, reverse=True)
    out_of_0 = cables["bytes"][cables["from"] == ("rank 0" if medium[0] != "h" else "host 0")].sum()
    if medium[0] == "f":
        assert out_of_0 == sent[0].sum()
    elif medium[0] == "h":
        assert out_of_0 == sent[:4].sum()
    assert run.units["traffic/cables/bytes"][0] == "bytes"
    assert run.attributes["network"].startswith(f"{medium}, 1gbit, 50us")
    assert main(["report", str(out), "--format", "md"]) == 0
    assert f"| {cables['from'][0]} " in capsys.readouterr().out


def test_a_run_file_of_a_switch_has_no_cables(tmp_path, capsys):
    code, out = simulated(tmp_path)
    assert code == 0 and "traffic" not in load_run(out).extra
    main(["report", str(out), "--format", "md"])
    assert "cable" not in capsys.readouterr().out


def test_check_knows_the_topology(tmp_path, capsys):
    assert simulated(tmp_path, "--check", "--topology", "torus:2x4")[0] == 0
    assert simulated(tmp_path, "--check", "--topology", "torus:2x3")[0] == 2
    assert "--topology: torus:2x3 has places for 6 ranks, and the run has 8 ranks" in capsys.readouterr().err


# ---- max-min fairness on routes


def filled(passes, bandwidths):
    """Max-min fair rates by the textbook: ``passes[p, f]``, whether flow f passes port p. Raise all that are not held
    alike until a port is full, hold what passes it, and so on."""
    rates, held = np.zeros(passes.shape[1]), np.zeros(passes.shape[1], bool)
    while not held.all():
        growing = passes @ ~held
        room = np.where(growing > 0, (bandwidths - passes @ rates) / np.maximum(growing, 1), np.inf)
        rates[~held] += room.min()
        full = room <= room.min() * (1 + 1e-9) + 1e-12
        held |= passes[full].any(axis=0)
    return rates


@seeded
@given(st.data(), st.sampled_from(["fat-tree:k=4", "torus:3x3", "dragonfly:a=2,p=2,h=1", "hosts:4x4"]))
def test_rates_on_routes_are_those_of_the_textbook(data, medium):
    cabling = network_of(medium=medium).cabling
    ranks = st.integers(0, cabling.places - 1)
    ends = st.tuples(ranks, ranks).filter(lambda pair: pair[0] != pair[1])
    drawn = data.draw(st.lists(ends, min_size=1, max_size=20))
    routes = [cabling.route(*pair) for pair in drawn]
    cables = sorted({cable for route in routes for cable in route})
    bandwidths = [data.draw(st.sampled_from([1.0, 2.5, 10.0]) | st.floats(0.1, 100)) for _ in cables]
    ports = dict(zip(cables, map(Port, bandwidths), strict=True))
    flows = []
    for route in routes:
        flow = Flow(None, Connection(tuple(ports[cable] for cable in route), np.inf, []), 1, None)
        flows.append(flow)
        for port in flow.connection.ports:
            port.flows[flow] = None
    rates = max_min_fair(flows, list(ports.values()))
    passes = np.array([[float(cable in route) for route in routes] for cable in cables])
    assert [rates[flow] for flow in flows] == pytest.approx(filled(passes, np.array(bandwidths)), rel=1e-6)
