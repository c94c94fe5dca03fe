"""Networks of cables: their places, their routes, and how they are read and refused."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grsgd.errors import ConfigError
from grsgd.simulator.cabling.cable import Cable
from grsgd.simulator.cabling.own import OwnCabling
from grsgd.simulator.network import NetworkSpec, network
from grsgd.testing.simulated import network_of
from tests.support.seeded import seeded

BASE = 'bandwidth = "8gbit"\nlatency = "5us"\n'


def cabling(medium, **options):
    return network_of(medium=medium, bandwidth="8 bit", latency="1 s", **options).cabling


def hops(cabling, source, dest):
    return len(cabling.route(source, dest))


def pairs(cabling):
    return [(i, j) for i in range(cabling.places) for j in range(cabling.places) if i != j]


def is_simple(cabling, source, dest):
    """Whether a route is connected, begins and ends at the two ranks, and passes no place twice."""
    route = cabling.route(source, dest)
    joined = all(cable.dest == following.source for cable, following in pairwise(route))
    visited = [route[0].source, *(cable.dest for cable in route)]
    ends = visited[0] == f"rank {source}" and visited[-1] == f"rank {dest}"
    return joined and ends and len(set(visited)) == len(visited)


@pytest.mark.parametrize("medium", ["fat-tree:k=4", "torus:3x4x2", "torus:7", "dragonfly:a=3,p=2,h=1"])
def test_routes_are_simple_and_use_cables_that_lead_both_ways(medium):
    network = cabling(medium)
    cables = {cable for pair in pairs(network) for cable in network.route(*pair)}
    assert all(is_simple(network, *pair) for pair in pairs(network))
    assert {(cable.dest, cable.source) for cable in cables} == {(cable.source, cable.dest) for cable in cables}
    assert {(cable.bandwidth, cable.latency) for cable in cables} == {(1.0, 1.0)}
    assert network.route(1, 1) == []


# ---- fat tree


@pytest.mark.parametrize("k", [2, 4, 6])
def test_a_fat_tree_has_the_switches_and_cables_of_its_paper(k):
    tree = cabling(f"fat-tree:k={k}")
    assert tree.places == k**3 / 4
    cables = {(c.source, c.dest) for pair in pairs(tree) for c in tree.route(*pair)}
    places = {place for cable in cables for place in cable}
    for layer, number in (("rank", k**3 // 4), ("edge", k**2 // 2), ("aggregation", k**2 // 2), ("core", k**2 // 4)):
        assert sum(place.startswith(layer) for place in places) == number, layer
    for place in places:
        assert sum(source == place for source, _ in cables) == (1 if place.startswith("rank") else k)
    assert len(cables) == 2 * 3 * k**3 // 4


def test_a_fat_tree_is_left_at_the_lowest_switch_that_both_share():
    tree = cabling("fat-tree:k=4")
    assert [hops(tree, 0, dest) for dest in (1, 2, 3, 4, 15)] == [2, 4, 4, 6, 6]


@pytest.mark.parametrize("k", [4, 6])
def test_shifts_never_meet_in_a_fat_tree(k):
    """D-mod-k: of the messages i -> i + c of all ranks at once, no two pass one cable in one direction."""
    tree = cabling(f"fat-tree:k={k}")
    for shift in range(1, tree.places):
        passed = [cable for i in range(tree.places) for cable in tree.route(i, (i + shift) % tree.places)]
        assert len(set(passed)) == len(passed), shift


def test_a_file_that_lists_the_cables_of_a_fat_tree_has_its_routes():
    """The rule by which own networks choose among equal routes is D-mod-k there."""
    k, half = 4, 2
    cables = []
    for pod in range(k):
        for edge in range(half):
            first = (pod * half + edge) * half
            cables.append({"from": f"edge {pod}.{edge}", "to": list(range(first, first + half))})
            cables.append({"from": f"edge {pod}.{edge}", "to": [f"aggregation {pod}.{j}" for j in range(half)]})
        for j in range(half):
            cables.append({"from": f"aggregation {pod}.{j}", "to": [f"core {j}.{c}" for c in range(half)]})
    own, tree = cabling("cables", cable=cables), cabling(f"fat-tree:k={k}")
    assert own.places == tree.places
    assert all(own.route(*pair) == tree.route(*pair) for pair in pairs(tree))


# ---- torus


@pytest.mark.parametrize("sizes", [(5,), (2, 2), (4, 3), (3, 4, 2), (2, 3, 2, 2)])
def test_routes_on_a_torus_go_the_shorter_way_in_each_dimension(sizes):
    torus = cabling("torus:" + "x".join(map(str, sizes)))

    def coordinates(rank):
        found = []
        for size in reversed(sizes):
            rank, coordinate = divmod(rank, size)
            found.append(coordinate)
        return found[::-1]

    def distances(source, dest):
        apart = [abs(a - b) for a, b in zip(coordinates(source), coordinates(dest), strict=True)]
        return [min(far, size - far) for far, size in zip(apart, sizes, strict=True)]

    for source, dest in pairs(torus):
        route = torus.route(source, dest)
        assert len(route) == sum(distances(source, dest))
        ends = [(int(c.source.split()[1]), int(c.dest.split()[1])) for c in route]
        changed = [distances(*pair).index(1) for pair in ends]
        assert all(sum(distances(*pair)) == 1 for pair in ends)
        assert changed == sorted(changed)  # one dimension after the other


def test_half_way_round_both_directions_carry_alike():
    torus = cabling("torus:8")
    passed = [cable for i in range(8) for cable in torus.route(i, (i + 4) % 8)]
    assert {passed.count(cable) for cable in passed} == {2} and len(set(passed)) == 16


# ---- dragonfly


@pytest.mark.parametrize(("a", "p", "h"), [(4, 2, 2), (3, 1, 1), (1, 1, 3), (2, 3, 2)])
def test_a_dragonfly_joins_all_groups_and_all_routers_of_a_group_once(a, p, h):
    dragonfly = cabling(f"dragonfly:a={a},p={p},h={h}")
    groups = a * h + 1
    assert dragonfly.places == groups * a * p
    cables = {(c.source, c.dest) for pair in pairs(dragonfly) for c in dragonfly.route(*pair)}
    between = [ends for ends in cables if all(place.startswith("router") for place in ends)]

    def group(place):
        return place.split()[1].split(".")[0]

    outward = [(source, dest) for source, dest in between if group(source) != group(dest)]
    inward = [(source, dest) for source, dest in between if group(source) == group(dest)]
    assert len(outward) == len({(group(source), group(dest)) for source, dest in outward}) == groups * (groups - 1)
    assert len(inward) == groups * a * (a - 1)
    routers = {source for source, _ in outward}
    assert len(routers) == groups * a  # balanced: h at each router
    assert all(sum(source == router for source, _ in outward) == h for router in routers)
    assert max(hops(dragonfly, *pair) for pair in pairs(dragonfly)) <= 5


def test_cables_between_the_groups_of_a_dragonfly_lead_to_those_that_follow():
    """By hand: of group 0, cables 0 and 1 are at router 0 and lead to groups 1 and 2."""
    dragonfly = cabling("dragonfly:a=4,p=2,h=2")
    assert [cable.dest for cable in dragonfly.route(0, 8)] == ["router 0.0", "router 1.3", "router 1.0", "rank 8"]
    assert [cable.dest for cable in dragonfly.route(7, 8)][:2] == ["router 0.3", "router 0.0"]
    way = [cable.dest for cable in dragonfly.route(0, 71)]
    assert way == ["router 0.0", "router 0.3", "router 8.0", "router 8.3", "rank 71"]
    assert hops(dragonfly, 0, 1) == 2 and hops(dragonfly, 0, 2) == 3


# ---- hosts


def test_ranks_of_a_host_share_its_card():
    hosts = cabling("hosts:3x2")
    out, into = Cable("host 0", "switch", 1.0, 1.0), Cable("switch", "host 2", 1.0, 0.0)
    assert hosts.route(0, 5) == hosts.route(1, 4) == [out, into]
    memory = Cable("host 0", "memory 0", 150e9 / 8, 1e-6)
    assert hosts.route(0, 1) == hosts.route(1, 0) == [memory]
    assert hosts.places == 6


def test_the_memory_of_hosts_is_a_section_of_the_file(tmp_path):
    file = tmp_path / "network.toml"
    file.write_text(BASE + '[memory]\nbandwidth = "80gbit"\nlatency = "2us"\n')
    spec = network(f"{file}", "hosts:2x2")
    (memory,) = spec.cabling.route(0, 1)
    assert memory[2:] == pytest.approx((1e10, 2e-6))
    assert spec.summary() == "hosts:2x2, 8gbit, 5us, memory 80gbit 2us"
    with pytest.raises(ConfigError, match="memory: medium = 'switch' has no hosts; only media such as hosts:8x4"):
        network(f"{file}")


# ---- networks of one's own


def tree_of_two(**options):
    """Two leaves with two ranks each, and a spine."""
    leaves = [{"from": "leaf 0", "to": [0, 1]}, {"from": "leaf 1", "to": [2, 3]}]
    spine = {"from": "spine", "to": ["leaf 0", "leaf 1"]} | options
    return cabling("cables", cable=[*leaves, spine])


def test_own_cables_have_the_networks_rates_or_their_own():
    spine = tree_of_two(bandwidth="16 bit", latency="3 s")
    assert [cable[2:] for cable in spine.route(0, 3)] == [(1.0, 1.0), (2.0, 3.0), (2.0, 3.0), (1.0, 1.0)]
    assert hops(spine, 0, 1) == 2


def test_a_cable_may_lead_one_way():
    ring = cabling("cables", cable=[{"from": i, "to": (i + 1) % 3, "one_way": True} for i in range(3)])
    assert hops(ring, 0, 1) == 1 and hops(ring, 1, 0) == 2
    line = cabling("cables", cable=[{"from": 0, "to": 1, "one_way": True}])
    with pytest.raises(ConfigError, match="no cables lead from rank 1 to rank 0"):
        line.route(1, 0)


@seeded
@given(
    st.sets(st.tuples(st.integers(0, 7), st.integers(0, 7)).filter(lambda ends: ends[0] != ends[1]), min_size=1),
    st.integers(0, 7),
)
def test_own_routes_are_the_shortest(ends, source):
    """Against the distances of a search forwards, whatever the graph."""
    own = OwnCabling([(i, j, 1.0, 0.0) for i, j in sorted(ends)])
    distance = {source: 0} if any(source in pair for pair in ends) else {}
    for step in range(8):
        distance |= {j: step + 1 for i, j in ends if distance.get(i) == step and j not in distance}
    for dest in {place for pair in ends for place in pair} - {source}:
        if dest in distance:
            assert hops(own, source, dest) == distance[dest] and is_simple(own, source, dest)
        elif distance:
            with pytest.raises(ConfigError, match="no cables lead"):
                own.route(source, dest)


def test_equal_routes_are_spread_over_the_receivers():
    cables = [{"from": "left", "to": [0, "a", "b", "c"]}, {"from": "right", "to": [1, 2, 3, "a", "b", "c"]}]
    own = cabling("cables", cable=cables)
    assert [own.route(0, dest)[1].dest for dest in (1, 2, 3)] == ["b", "c", "a"]


# ---- reading and refusing


@pytest.mark.parametrize("text", ["fat-tree:k=4", "torus:2x3x4", "dragonfly:a=4,p=2,h=2", "hosts:8x4"])
def test_networks_of_the_command_line(text, tmp_path):
    spec = network(f"{text},8gbit,2us")
    assert (spec.medium, spec.bandwidth, spec.latency) == (text, 1e9, pytest.approx(2e-6))
    assert network("8gbit,2us", text).summary() == spec.summary() == network("switch,8gbit,2us", text).summary()
    assert spec.summary().startswith(f"{text}, 8gbit, 2us")
    assert network(text).summary() == network("switch", text).summary() == network(text + ",1gbit,50us").summary()
    (tmp_path / "network.toml").write_text(f'medium = "{text}"\n{BASE}multicast = true\n')
    assert network(f"{tmp_path / 'network.toml'}").medium == text
    (tmp_path / "network.toml").write_text(f"{BASE}multicast = true\n")
    spec = network(f"{tmp_path / 'network.toml'},8gbit,2us", text)
    assert spec.multicast and (spec.medium, spec.latency) == (text, pytest.approx(2e-6))


def test_a_network_in_the_program():
    spec = NetworkSpec(medium="cables", cable=[{"from": "s", "to": [0, 1]}], bandwidth="1gbit", latency="1us")
    assert hops(spec.cabling, 0, 1) == 2
    assert spec.summary() == "cables, 1gbit, 1us, 4 directed cables"


@pytest.mark.parametrize(
    ("topology", "network_text", "named"),
    [
        ("fat-tree:k=3", "switch", "'fat-tree:k=3': k must be even"),
        ("fat-tree:8", "switch", "write it as fat-tree:k=8"),
        ("fat-tree:k=", "switch", "write it as fat-tree:k=8"),
        ("torus:8", "torus:8", "--topology torus:8 and --network torus:8: only one"),
        ("torus:8", "shared", "only one of them"),
        ("torus:8x1", "switch", "each dimension must be 2 or more"),
        ("torus:8x-1", "switch", "write it as torus:8x8x8"),
        ("torus", "switch", "write it as torus:8x8x8"),
        ("hosts:8", "switch", "must be HOSTSxRANKS"),
        ("hosts:0x4", "switch", "both 1 or more"),
        ("dragonfly:a=4,h=2,p=2", "switch", "write it as dragonfly:a=4,p=2,h=2"),
        ("dragonfly:a=4,p=0,h=2", "switch", "a, p and h must be 1 or more"),
        ("tours:8x8", "switch", r"'tours:8x8' is unknown \(did you mean torus\?\); allowed: fat-tree:k=8"),
        ("ring", "switch", "'ring' is unknown.*algorithm.topology"),
        (None, "torus:8x8,1gbit", "give a rate and a latency"),
        (None, "torus:8x8,", "give a rate and a latency"),
        (None, "torus:8x8,1gbit,1us,2", "give a rate and a latency"),
        (None, "torus:8x1,1gbit,1us", "--network: medium.*each dimension must be 2"),
        (None, "dragonfly:a=4,1gbit,1us", "write it as dragonfly"),
    ],
)
def test_wrong_topologies(topology, network_text, named):
    with pytest.raises(ConfigError, match=named) as refused:
        network(network_text, topology)
    assert "\n" not in str(refused.value)


CABLES = 'medium = "cables"\n' + BASE


@pytest.mark.parametrize(
    ("text", "named"),
    [
        (CABLES, r"needs at least one \[\[cable\]\]"),
        (BASE + '[[cable]]\nfrom = "a"\nto = 0\n', "no other medium takes them"),
        (CABLES + '[[cable]]\nfrom = "a"\n', "cable.0.to: missing"),
        (CABLES + '[[cable]]\nfrom = "a"\nto = [0, 0]\n', "from a to rank 0 is given twice"),
        (CABLES + '[[cable]]\nfrom = "a"\nto = 0\n[[cable]]\nfrom = 0\nto = "a"\none_way = true\n', "given twice"),
        (CABLES + "[[cable]]\nfrom = 1\nto = 1\n", "from rank 1 to itself"),
        (CABLES + '[[cable]]\nfrom = "rank 1"\nto = 0\n', "neither the number of a rank nor the name of a switch"),
        (CABLES + "[[cable]]\nfrom = -1\nto = 0\n", "-1 is neither"),
        (CABLES + '[[cable]]\nfrom = "a"\nto = [true]\n', "true is neither"),
        (CABLES + '[[cable]]\nfrom = "a"\nto = 0\nspeed = 1\n', "from, to, bandwidth, latency, one_way"),
        (CABLES + 'cable = "x"\n', r"write a section \[\[cable\]\] for each cable"),
        ('medium = "torus:4"\n' + BASE + "[[link]]\nfrom = 0\nto = 1\n", r"takes no \[\[link\]\]"),
        ('medium = "hosts:2x2"\n' + BASE + '[memory]\nlatncy = "1us"\n', "memory.latncy: unknown key"),
        ('medium = "torus:4y"\n' + BASE, "write it as torus:8x8x8"),
    ],
)
def test_wrong_files(text, named, tmp_path):
    (tmp_path / "network.toml").write_text(text)
    with pytest.raises(ConfigError, match=named) as refused:
        network(str(tmp_path / "network.toml"))
    assert "\n" not in str(refused.value)


def test_every_rank_needs_a_place():
    spec = network("torus:2x2")
    spec.check_ranks(3, 1)
    for ranks, spares, there in ((5, 0, "5 ranks"), (3, 2, "3 ranks and 2 spares")):
        with pytest.raises(ConfigError, match=f"--network: torus:2x2 has places for 4 ranks, and the run has {there}"):
            spec.check_ranks(ranks, spares)
    own = network_of(medium="cables", cable=[{"from": "s", "to": [0, 1, 3]}])
    own.check_ranks(2)
    with pytest.raises(ConfigError, match="places for 2 ranks"):
        own.check_ranks(3)
