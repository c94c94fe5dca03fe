"""The algorithms that exchange models with neighbours, on topologies that are not their default."""

import numpy as np
import pytest

from grsgd.algorithms import ALGORITHMS
from grsgd.comm.topologies.topology import TOPOLOGIES, build, equal_weights, named
from grsgd.testing.quadratic import STEPS, Job, Reference, random_speeds
from grsgd.testing.simulated import network_of

ON_ONE_GRAPH = {"choco_sgd", "exact_diffusion"}
"""Algorithms that refuse a topology of several graphs."""
OPTIONS = {"gosgd": {"p": 1.0}}
TOPOLOGICAL = {
    name: OPTIONS.get(name, {})
    for name, cls in ALGORITHMS.items()
    if "topology" in cls.Options.model_fields and name not in ON_ONE_GRAPH
}
"""Every algorithm that takes a topology, with options for many exchanges."""


@pytest.fixture
def one_peer_hypercube():
    """A registered topology: in each step every rank exchanges with one other, along one side of a cube in turn."""

    @named("one-peer-hypercube")
    def matrices(n):
        return np.stack([equal_weights(n, lambda i, hop=hop: (i ^ hop,)) for hop in (1, 2, 4)])

    yield "one-peer-hypercube"
    del TOPOLOGIES["one-peer-hypercube"]


def test_which_algorithms_take_a_topology():
    assert TOPOLOGICAL.keys() >= {"dpsgd", "gradient_tracking", "sgp", "adpsgd", "grsgd", "gossip", "gosgd"}


@pytest.mark.parametrize("name", TOPOLOGICAL)
def test_a_topology_that_is_registered_reaches_all(name, one_peer_hypercube):
    """Messages, those of the end included, go along its edges, and along all of them; and the ranks agree."""
    options = TOPOLOGICAL[name] | {"topology": one_peer_hypercube}
    ALGORITHMS[name].check(ALGORITHMS[name].Options(**options), 8)
    unequal = np.linspace(1, 1.1, 8)  # or both ranks of a pair would begin an exchange with each other at the same time
    job = Job(name, 8, lambda rank, step: unequal[rank], network_of(latency="0.01 s"), rate=0.0, **options)
    for rank, algorithm in enumerate(job.algorithms):
        algorithm.x.array[:] = rank
    job.train(60)
    traffic = [comm.traffic for comm in job.ranks.comms]
    hops = np.bitwise_xor.outer(np.arange(8), np.arange(8))
    edges = np.isin(hops, (1, 2, 4))
    np.testing.assert_array_equal(np.array([one.sent > 0 for one in traffic]), edges)
    np.testing.assert_array_equal(np.array([one.headers > 0 for one in traffic]) & ~edges, False)
    assert job.nothing_is_left()
    assert np.ptp(job.X) < 0.2
    job.average()
    assert np.abs(job.X - 3.5).max() < 1e-12


@pytest.mark.parametrize("name", ["dpsgd", "sgp"])
def test_each_step_has_its_graph(name, one_peer_hypercube):
    """Against the dense reference, whatever the speeds."""
    job = Job(name, 8, random_speeds(8), random=np.random.default_rng(8), topology=one_peer_hypercube).train()
    reference = Reference(8)
    for step in range(STEPS):
        W, before = build(one_peer_hypercube, 8).matrix(step), reference.X.copy()
        reference.step(step)
        update = reference.X - before
        reference.X = W @ before + update if name == "dpsgd" else W @ reference.X
    assert np.abs(job.X - reference.X).max() < 1e-12
    sent = np.array([comm.traffic.messages for comm in job.ranks.comms])
    assert sent[0, [1, 2, 4]].tolist() == [7, 7, 6]


COLUMNS = np.array([[0.5, 0.2, 0.0, 0.6], [0.5, 0.5, 0.0, 0.0], [0.0, 0.3, 0.9, 0.0], [0.0, 0.0, 0.1, 0.4]])


def matrix_file(folder, matrix) -> str:
    np.savetxt(folder / "matrix.txt", matrix)
    return str(folder / "matrix.txt")


@pytest.mark.parametrize("tau", [0, 2])
def test_sgp_with_weights_of_any_directed_graph(tau, tmp_path):
    """Shares that do not mix to means: the push-sum weights set that right, and the mean of the models stays."""
    options = {"topology": matrix_file(tmp_path, COLUMNS), "tau": tau}
    ALGORITHMS["sgp"].check(ALGORITHMS["sgp"].Options(**options), 4)
    job = Job("sgp", 4, spec=network_of(latency="0.3 s"), rate=0.0, **options)
    for rank, algorithm in enumerate(job.algorithms):
        algorithm.x.array[:] = rank
    job.train(100)
    assert np.abs(job.X - 1.5).max() < 1e-3
    weights = [algorithm.w for algorithm in job.algorithms]
    assert abs(sum(weights) - 4) < 1e-12 and max(weights) > 1.5
    job.average()
    assert np.abs(job.X - 1.5).max() < 1e-12


def refusal(name, ranks, **options) -> str:
    with pytest.raises(ValueError) as caught:
        ALGORITHMS[name].check(ALGORITHMS[name].Options(**options), ranks)
    return str(caught.value)


@pytest.mark.parametrize("name", TOPOLOGICAL)
def test_topologies_that_cannot_be(name, tmp_path):
    assert "neither a matrix file nor one of" in refusal(name, 4, topology="star")
    assert "not connected" in refusal(name, 4, topology=matrix_file(tmp_path, np.eye(4)))
    why = "is a mixing matrix for 4 ranks; this job has 3 ranks"
    assert why in refusal(name, 3, topology=matrix_file(tmp_path, COLUMNS))


def test_what_an_algorithm_needs_of_its_topology(tmp_path):
    path = matrix_file(tmp_path, COLUMNS)
    assert refusal("dpsgd", 4, topology=path).endswith("mixing matrix whose row 3 sums to 0.5; the sum must be 1")
    assert refusal("adpsgd", 8, topology="exponential") == (
        "topology exponential: graph with an edge from rank 6 to rank 0 and no edge back"
    )
    path = matrix_file(tmp_path, COLUMNS.T)
    assert refusal("sgp", 4, topology=path).endswith("mixing matrix whose column 3 sums to 0.5; the sum must be 1")
    path = matrix_file(tmp_path, [[0, 1], [1, 0]])
    assert refusal("sgp", 2, topology=path).endswith("rank 0 gives its own model no weight")
    star_of_actives = [[0.4, 0.3, 0, 0.3], [0.3, 0.4, 0.3, 0], [0, 0.3, 0.7, 0], [0.3, 0, 0, 0.7]]
    ALGORITHMS["adpsgd"].check(ALGORITHMS["adpsgd"].Options(topology=matrix_file(tmp_path, star_of_actives)), 4)


def test_adpsgd_where_the_graph_has_no_two_sides(tmp_path):
    """A triangle with a tail: ranks of odd number are active, and rank 4 has only a passive neighbour."""
    links = [(0, 1), (1, 2), (0, 2), (2, 4), (3, 4)]
    W = np.eye(5)
    for i, j in links:
        W[i, j] = W[j, i] = 0.1
    assert "is not connected by the edges from active ranks [1, 3]" in refusal(
        "adpsgd", 5, topology=matrix_file(tmp_path, W)
    )
    W[0, 3] = W[3, 0] = 0.1
    path = matrix_file(tmp_path, W)
    ALGORITHMS["adpsgd"].check(ALGORITHMS["adpsgd"].Options(topology=path), 5)
    job = Job("adpsgd", 5, spec=network_of(latency="0.01 s"), topology=path).train()
    sent = np.array([comm.traffic.sent for comm in job.ranks.comms]) > 0
    active_edges = {(1, 0), (1, 2), (3, 4), (3, 0)}
    assert set(zip(*np.nonzero(sent), strict=True)) == active_edges | {(j, i) for i, j in active_edges}


def test_gossip_where_a_rank_has_no_neighbour_in_some_steps(tmp_path):
    """Then it does not exchange, and the next time it is due it has the next step's neighbours."""
    steps = [[0.5, 0.5, 0], [0.5, 0.5, 0], [0, 0, 1], [1, 0, 0], [0, 0.5, 0.5], [0, 0.5, 0.5]]
    path = matrix_file(tmp_path, steps)
    for name in ("gossip", "gosgd", "grsgd", "sgp", "dpsgd", "gradient_tracking"):
        job = Job(name, 3, spec=network_of(latency="0.01 s"), topology=path, **TOPOLOGICAL[name]).train(20)
        sent = np.array([comm.traffic.sent for comm in job.ranks.comms])
        assert (sent > 0).tolist() == [[False, True, False], [True, False, True], [False, True, False]]
        assert job.nothing_is_left()
