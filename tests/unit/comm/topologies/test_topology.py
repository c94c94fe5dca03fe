"""Topologies: the named ones, those from files, and refusals."""

import numpy as np
import pytest

from grsgd.comm.topologies.topology import TOPOLOGIES, Topology, TopologyError, build, from_file


def refusal(function, *args) -> str:
    with pytest.raises(TopologyError) as caught:
        function(*args)
    message = str(caught.value)
    assert "\n" not in message
    return message


ALL = [(name, n) for name in TOPOLOGIES for n in (1, 2, 3, 4, 5, 8, 13, 16) if name != "hypercube" or not n & (n - 1)]


@pytest.mark.parametrize("name, n", ALL)
def test_doubly_stochastic(name, n):
    topology = build(name, n)
    assert topology.size == n
    for W in topology.matrices:
        assert W.shape == (n, n) and W.dtype == np.float64
        assert (W >= 0).all() and (np.diag(W) > 0).all()
        np.testing.assert_allclose(W.sum(0), 1, atol=1e-14)
        np.testing.assert_allclose(W.sum(1), 1, atol=1e-14)
    topology.require_stochastic("row", "column")


@pytest.mark.parametrize("name, n", ALL)
def test_repeated_mixing_reaches_the_mean(name, n):
    product = np.eye(n)
    for step in range(2000):
        product = build(name, n).matrix(step) @ product
    np.testing.assert_allclose(product, 1 / n, atol=1e-9)


def test_ring():
    third = 1 / 3
    np.testing.assert_array_equal(
        build("ring", 4).matrix(0),
        [[third, third, 0, third], [third, third, third, 0], [0, third, third, third], [third, 0, third, third]],
    )
    np.testing.assert_array_equal(build("ring", 2).matrix(0), np.full((2, 2), 0.5))
    np.testing.assert_array_equal(build("ring", 1).matrix(0), [[1.0]])
    assert build("ring", 5).in_neighbours(0) == build("ring", 5).out_neighbours(0) == [1, 4]
    assert (build("ring", 2).in_neighbours(1), build("ring", 1).in_neighbours(0)) == ([0], [])


def test_erdos_renyi():
    """Connected, with about 2 ln(n) neighbours; weights by the larger number of neighbours."""
    for n in (2, 10, 60):
        W = build("erdos-renyi", n).matrix(0)
        edges = (W > 0) & ~np.eye(n, dtype=bool)
        degrees = edges.sum(1)
        assert (W == W.T).all() and np.abs(degrees.mean() - min(2 * np.log(n), n - 1)) < 2
        for i, j in np.argwhere(edges):
            assert W[i, j] == 1 / (1 + max(degrees[i], degrees[j]))
    assert (build("erdos-renyi", 20).matrix(0) == TOPOLOGIES["erdos-renyi"](20)).all()


def test_directed_ring():
    topology = build("directed-ring", 5)
    assert (topology.out_neighbours(4), topology.in_neighbours(4)) == ([0], [3])
    np.testing.assert_array_equal(topology.matrix(0)[0], [0.5, 0, 0, 0, 0.5])


def test_exponential_is_directed():
    topology = build("exponential", 8)
    assert topology.in_neighbours(0) == [4, 6, 7]  # -4, -2, -1
    assert topology.out_neighbours(0) == [1, 2, 4]
    np.testing.assert_array_equal(topology.matrix(0)[0], [0.25, 0, 0, 0, 0.25, 0, 0.25, 0.25])
    assert build("exponential", 2).in_neighbours(0) == [1]
    assert build("exponential", 5).in_neighbours(0) == [1, 3, 4]


def test_one_peer_exponential_changes_from_step_to_step():
    topology = build("one-peer-exponential", 8)
    assert [topology.out_neighbours(7, step) for step in range(5)] == [[0], [1], [3], [0], [1]]
    assert [topology.in_neighbours(0, step) for step in range(4)] == [[7], [6], [4], [7]]
    assert topology.out_neighbours(7) == [0, 1, 3]  # in any step
    assert topology.in_neighbours(0) == [4, 6, 7]
    np.testing.assert_array_equal(topology.matrix(4)[0], [0.5, 0, 0, 0, 0, 0, 0.5, 0])


def test_full():
    topology = build("full", 4)
    assert topology.in_neighbours(2) == topology.out_neighbours(2) == [0, 1, 3]
    np.testing.assert_array_equal(topology.matrix(7), 0.25)


def test_hypercube():
    assert build("hypercube", 8).out_neighbours(5) == [1, 4, 7]
    assert refusal(build, "hypercube", 6) == "a hypercube of 6 ranks; the number of ranks must be a power of two"


def test_torus():
    """Of 3 x 4 ranks, 0 to 2 in the first row."""
    assert build("torus", 12).out_neighbours(4) == [1, 3, 5, 7]
    assert build("torus", 12).out_neighbours(0) == [1, 2, 3, 9]
    assert build("torus", 5).out_neighbours(0) == build("ring", 5).out_neighbours(0)


@pytest.mark.parametrize("name, n", ALL)
def test_in_and_out_neighbours_fit_together(name, n):
    topology = build(name, n)
    for step in (None, 0, 1, 2, 5):
        for rank in range(n):
            sources = topology.in_neighbours(rank, step)
            assert sources == sorted(set(sources) - {rank})
            assert all(type(source) is int for source in sources)
            for source in sources:
                assert rank in topology.out_neighbours(source, step)
            receivers = sum(rank in topology.in_neighbours(other, step) for other in range(n))
            assert receivers == len(topology.out_neighbours(rank, step))


@pytest.mark.parametrize("name, n", ALL)
def test_symmetric(name, n):
    directed = ("directed-ring", "exponential", "one-peer-exponential")
    if name not in directed or n < 3:
        build(name, n).require_symmetric()
    elif (name, n) != ("exponential", 3):  # where all are neighbours
        assert "and no edge back" in refusal(build(name, n).require_symmetric)


@pytest.mark.parametrize(
    "name, n, sides",
    [
        ("ring", 4, [0, 1, 0, 1]),
        ("ring", 5, None),
        ("full", 2, [0, 1]),
        ("full", 4, None),
        ("hypercube", 4, [0, 1, 1, 0]),
        ("directed-ring", 4, [0, 1, 0, 1]),
        ("ring", 1, [0]),
    ],
)
def test_sides(name, n, sides):
    assert build(name, n).sides() == sides


DIRECTED = "0.5 0.5 0\n0 0.5 0.5\n0.5 0 0.5\n"


@pytest.mark.parametrize("text", [DIRECTED, DIRECTED.replace(" ", ", "), "# a comment\n" + DIRECTED + "\n"])
def test_file(tmp_path, text):
    path = tmp_path / "matrix.txt"
    path.write_text(text)
    topology = build(str(path), 3)
    np.testing.assert_array_equal(topology.matrix(3), [[0.5, 0.5, 0], [0, 0.5, 0.5], [0.5, 0, 0.5]])
    assert topology.in_neighbours(0) == [1]
    assert topology.out_neighbours(0) == [2]


def test_file_of_one_rank(tmp_path):
    path = tmp_path / "one.txt"
    path.write_text("1\n")
    assert build(str(path), 1).in_neighbours(0) == []


def test_file_of_several_steps(tmp_path):
    path = tmp_path / "matrices.txt"
    path.write_text("0.5 0.5 0\n0.5 0.5 0\n0 0 1\n\n1 0 0\n0 0.5 0.5\n0 0.5 0.5\n")
    topology = build(str(path), 3)
    assert [topology.out_neighbours(1, step) for step in range(3)] == [[0], [2], [0]]
    assert topology.out_neighbours(0, 1) == []


def test_file_for_another_number_of_ranks(tmp_path):
    path = tmp_path / "matrix.txt"
    path.write_text(DIRECTED)
    assert refusal(build, str(path), 4) == f"{path} is a mixing matrix for 3 ranks; this job has 4 ranks"


def test_all_ranks_of_a_simulation_share_the_matrices(tmp_path):
    path = tmp_path / "matrix.txt"
    path.write_text(DIRECTED)
    shared = build(str(path), 3)
    assert build(str(path), 3) is shared and build("ring", 3) is build("ring", 3)
    path.write_text("0.25 0.75\n0.75 0.25\n")
    assert build(str(path), 2).matrix(0)[0].tolist() == [0.25, 0.75]


def test_unknown_name():
    assert "is neither a matrix file" in refusal(build, "x" * 5000, 4)
    names = "ring, directed-ring, exponential, one-peer-exponential, full, hypercube, torus, erdos-renyi, "
    names += "base-2, base-3, base-5"
    assert refusal(build, "star", 4) == f"'star' is neither a matrix file nor one of {names}"


def test_missing_file(tmp_path):
    assert "No such file" in refusal(from_file, tmp_path / "absent.txt")


@pytest.mark.filterwarnings("ignore:loadtxt. input contained no data")
@pytest.mark.parametrize("text", ["a b\nc d\n", "1 0\n1\n", "", "0.5 0.5\n"])
def test_file_without_a_square_of_numbers(tmp_path, text):
    path = tmp_path / "matrix.txt"
    path.write_text(text)
    assert refusal(from_file, path).startswith(f"{path}: ")


@pytest.mark.parametrize(
    "matrix, reason",
    [
        (np.ones(3), "of shape (3,); a mixing matrix must be square"),
        (np.full((2, 3), 0.5), "of shape (2, 3); a mixing matrix must be square"),
        ([[1.5, -0.5], [-0.5, 1.5]], "negative or non-finite"),
        ([[np.nan, 1], [1, 0]], "negative or non-finite"),
        ([[np.inf, 1], [1, 0]], "negative or non-finite"),
        (np.eye(2), "not connected"),
        (np.kron(np.eye(2), np.full((2, 2), 0.5)), "not connected"),
        ([[0.5, 0.5], [0, 1]], "not connected"),  # rank 0 hears from rank 1, and rank 1 from none
        ([[1, 0], [0.5, 0.5]], "not connected"),
    ],
)
def test_unusable_matrix(matrix, reason):
    assert reason in refusal(Topology, np.asarray(matrix, float))


@pytest.mark.parametrize(
    "matrix, kinds, reason",
    [
        ([[0.5, 0.5], [0.5, 0.25]], ["row", "column"], "row 1 sums to 0.75; the sum must be 1"),
        ([[0.5, 0.5, 0], [0.3, 0.4, 0.3], [0.5, 0, 0.5]], ["row", "column"], "column 0 sums to 1.3; the sum must be 1"),
        ([[[0.5, 0.5], [0.5, 0.5]], [[1, 0], [1, 1]]], ["column"], "column 0 sums to 2; the sum must be 1"),
    ],
)
def test_weights_that_an_algorithm_cannot_use(matrix, kinds, reason):
    topology = Topology(np.asarray(matrix, float), "mine")
    assert refusal(topology.require_stochastic, *kinds) == f"topology mine: mixing matrix whose {reason}"


def test_a_rank_that_keeps_nothing():
    topology = Topology(np.array([[0.5, 0.5], [1.0, 0.0]]), "mine")
    topology.require_stochastic("row")
    assert "rank 1 gives its own model no weight" in refusal(topology.require_own_weights)


def test_a_long_directed_cycle_is_connected():
    n = 9
    W = (np.eye(n) + np.roll(np.eye(n), 1, axis=1)) / 2
    assert Topology(W).out_neighbours(0) == [n - 1]
