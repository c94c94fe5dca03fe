"""Mixing matrices: the built-in ones, those from files, and refusals."""

import math

import numpy as np
import pytest

from grsgd.comm.topology import TOPOLOGIES, Topology, TopologyError, build, exponential, from_file, full, ring


def refusal(function, *args) -> str:
    with pytest.raises(TopologyError) as caught:
        function(*args)
    message = str(caught.value)
    assert "\n" not in message
    return message


@pytest.mark.parametrize("name", TOPOLOGIES)
@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 8, 13, 16])
def test_doubly_stochastic(name, n):
    topology = build(name, n)
    assert topology.size == n
    assert topology.matrix.shape == (n, n)
    assert topology.matrix.dtype == np.float64
    assert (topology.matrix >= 0).all()
    np.testing.assert_allclose(topology.matrix.sum(0), 1, atol=1e-14)
    np.testing.assert_allclose(topology.matrix.sum(1), 1, atol=1e-14)


@pytest.mark.parametrize("name", TOPOLOGIES)
@pytest.mark.parametrize("n", [1, 2, 3, 5, 8])
def test_repeated_mixing_reaches_the_mean(name, n):
    powers = np.linalg.matrix_power(build(name, n).matrix, 2000)
    np.testing.assert_allclose(powers, 1 / n, atol=1e-9)


@pytest.mark.parametrize("n, gap", [(8, 0.195), (16, 0.051), (32, 0.013)])
def test_spectral_gap_of_known_rings(n, gap):
    assert ring(n).spectral_gap == pytest.approx(gap, abs=5e-4)


@pytest.mark.parametrize("n", [3, 4, 5, 7, 8, 16, 32])
def test_spectral_gap_of_a_ring_in_closed_form(n):
    assert ring(n).spectral_gap == pytest.approx(1 - (1 + 2 * math.cos(2 * math.pi / n)) / 3, abs=1e-12)


def test_spectral_gap_of_others():
    assert build("ring", 1).spectral_gap == 1
    assert ring(2).spectral_gap == pytest.approx(1)
    for n in (2, 3, 8):
        assert full(n).spectral_gap == pytest.approx(1)
    assert exponential(16).spectral_gap > 5 * ring(16).spectral_gap
    assert Topology(np.array([[0.0, 1.0], [1.0, 0.0]])).spectral_gap == pytest.approx(0)  # it only swaps


def test_ring():
    third = 1 / 3
    np.testing.assert_array_equal(
        ring(4).matrix,
        [[third, third, 0, third], [third, third, third, 0], [0, third, third, third], [third, 0, third, third]],
    )
    np.testing.assert_array_equal(ring(2).matrix, np.full((2, 2), 0.5))
    np.testing.assert_array_equal(ring(1).matrix, [[1.0]])
    assert (ring(5).sources(0), ring(5).receivers(0)) == ([1, 4], [1, 4])
    assert (ring(2).sources(1), ring(1).sources(0)) == ([0], [])


def test_exponential_is_directed():
    topology = exponential(8)
    assert topology.sources(0) == [4, 6, 7]  # -4, -2, -1
    assert topology.receivers(0) == [1, 2, 4]
    np.testing.assert_array_equal(topology.matrix[0], [0.25, 0, 0, 0, 0.25, 0, 0.25, 0.25])
    assert exponential(2).sources(0) == [1]
    assert exponential(5).sources(0) == [1, 3, 4]


def test_full():
    assert full(4).sources(2) == full(4).receivers(2) == [0, 1, 3]
    np.testing.assert_array_equal(full(4).matrix, 0.25)


@pytest.mark.parametrize("name", TOPOLOGIES)
@pytest.mark.parametrize("n", [1, 2, 5, 8])
def test_sources_and_receivers_fit_together(name, n):
    topology = build(name, n)
    for rank in range(n):
        sources = topology.sources(rank)
        assert sources == sorted(set(sources) - {rank})
        assert all(type(source) is int for source in sources)
        for source in sources:
            assert rank in topology.receivers(source)
        assert sum(rank in topology.sources(other) for other in range(n)) == len(topology.receivers(rank))


DIRECTED = "0.5 0.5 0\n0 0.5 0.5\n0.5 0 0.5\n"


@pytest.mark.parametrize("text", [DIRECTED, DIRECTED.replace(" ", ", "), "# a comment\n" + DIRECTED + "\n"])
def test_file(tmp_path, text):
    path = tmp_path / "matrix.txt"
    path.write_text(text)
    topology = build(str(path), 3)
    np.testing.assert_array_equal(topology.matrix, [[0.5, 0.5, 0], [0, 0.5, 0.5], [0.5, 0, 0.5]])
    assert topology.sources(0) == [1]
    assert topology.receivers(0) == [2]


def test_file_of_one_rank(tmp_path):
    path = tmp_path / "one.txt"
    path.write_text("1\n")
    assert build(str(path), 1).sources(0) == []


def test_file_for_another_number_of_ranks(tmp_path):
    path = tmp_path / "matrix.txt"
    path.write_text(DIRECTED)
    assert refusal(build, str(path), 4) == f"{path} is a mixing matrix for 3 ranks; this job has 4"


def test_unknown_name():
    assert "is neither a matrix file" in refusal(build, "x" * 5000, 4)
    assert refusal(build, "torus", 4) == "'torus' is neither a matrix file nor one of ring, exponential, full"


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
        (np.ones(3), "of shape (3,); it must be square"),
        (np.full((2, 3), 0.5), "of shape (2, 3); it must be square"),
        ([[1.5, -0.5], [-0.5, 1.5]], "negative or non-finite"),
        ([[np.nan, 1], [1, 0]], "negative or non-finite"),
        ([[np.inf, 1], [1, 0]], "negative or non-finite"),
        ([[0.5, 0.5], [0.5, 0.25]], "row 1 sums to 0.75; it must sum to 1"),
        ([[0.5, 0.5, 0], [0.5, 0.5, 0], [0.5, 0, 0.5]], "column 0 sums to 1.5; it must sum to 1"),
        (np.eye(2), "not connected"),
        (np.kron(np.eye(2), np.full((2, 2), 0.5)), "not connected"),
    ],
)
def test_unusable_matrix(matrix, reason):
    assert reason in refusal(Topology, np.asarray(matrix, float))


def test_a_long_directed_cycle_is_connected():
    n = 9
    W = (np.eye(n) + np.roll(np.eye(n), 1, axis=1)) / 2
    assert Topology(W).receivers(0) == [n - 1]
