"""How fast mixing brings models together: Base-(k+1) graphs, spectral gaps, steps to consensus, and the command."""

import numpy as np
import pytest

from grsgd.cli import main
from grsgd.comm.topologies.base_graph import base_graph
from grsgd.comm.topologies.consensus import is_doubly_stochastic, most_neighbours, spectral_gap, steps_to_consensus
from grsgd.comm.topologies.topology import TOPOLOGIES, Topology, build


@pytest.mark.parametrize("base", [2, 3, 4, 5])
def test_one_turn_of_a_base_graph_is_the_exact_mean_for_every_number_of_ranks(base):
    """In at most as many steps as the paper proves."""
    for n in range(1, 65):
        product, matrices = np.eye(n), base_graph(n, base)
        for W in matrices:
            product = W @ product
        assert np.abs(product - 1 / n).max() < 1e-15, n
        topology = Topology(matrices)
        topology.require_stochastic("row", "column")
        assert most_neighbours(topology) <= base - 1, n
        if n > 1:
            assert steps_to_consensus(topology) == len(matrices) <= 2 * np.log(n) / np.log(base) + 2, n


@pytest.mark.parametrize(
    "n, base, steps", [(2, 2, 1), (3, 2, 3), (8, 2, 3), (6, 2, 4), (9, 3, 2), (6, 3, 2), (5, 5, 1), (25, 5, 2)]
)
def test_lengths_of_base_graphs(n, base, steps):
    """Powers of the base, and numbers without a larger prime factor, take one step a factor."""
    assert len(base_graph(n, base)) == steps


@pytest.mark.parametrize("n", [8, 16, 32])
def test_the_gap_of_a_ring(n):
    assert spectral_gap(build("ring", n)) == pytest.approx(1 - (1 + 2 * np.cos(2 * np.pi / n)) / 3)


def by_hand(topology: Topology, left: float) -> int:
    product, steps = np.eye(topology.size), 0
    while np.linalg.norm(product - 1 / topology.size, 2) > left:
        product, steps = topology.matrix(steps) @ product, steps + 1
    return steps


@pytest.mark.parametrize("name", [name for name in TOPOLOGIES if name != "hypercube"])
@pytest.mark.parametrize("n", [1, 2, 5, 12])
def test_steps_to_consensus(name, n):
    topology = build(name, n)
    for left in (0.5, 0.01, 1e-9):
        assert steps_to_consensus(topology, left) == by_hand(topology, left)


def test_long_ways():
    """Rounding does not add up over a hundred thousand steps."""
    ring = build("ring", 256)
    assert steps_to_consensus(ring) == pytest.approx(-np.log(1e-12) / spectral_gap(ring), rel=1e-3)
    rounded = Topology(np.where(np.eye(3, dtype=bool), 0.3333333334, 0.3333333333))
    assert steps_to_consensus(rounded, 1e-6) == 1


def test_neighbours_are_others():
    mixed = Topology(np.array([[0.0, 0.5, 0.5], [0.5, 0.5, 0.0], [0.5, 0.0, 0.5]]))
    assert most_neighbours(mixed) == 2


def test_models_that_never_agree():
    """Two graphs that undo each other's work: each swaps a pair, and none mixes."""
    swap = Topology(np.array([[0.0, 1.0], [1.0, 0.0]]))
    assert steps_to_consensus(swap) is None and spectral_gap(swap) == pytest.approx(0)


def test_the_command(capsys, tmp_path):
    assert main(["topology", "--ranks", "12"]) == 0
    rows = {line.split("|")[1].strip(): line for line in capsys.readouterr().out.splitlines()}
    assert rows.keys() >= set(TOPOLOGIES)
    assert "the number of ranks must be a power of two" in rows["hypercube"]
    assert [cell.strip() for cell in rows["base-2"].split("|")[2:7]] == ["1", "5", "1", "5", "5"]
    columns = tmp_path / "columns.txt"
    np.savetxt(columns, [[0.5, 0.5], [0.5, 0.25]])
    assert not is_doubly_stochastic(build(str(columns), 2))
    assert main(["topology", str(columns), "--ranks", "2"]) == 0
    assert "rows and columns do not all sum to 1" in capsys.readouterr().out
    assert main(["topology", "none", "--ranks", "2"]) == 2
    assert "grsgd: error: 'none' is neither a matrix file nor one of ring, " in capsys.readouterr().err
    assert main(["topology", "ring", "--ranks", "0"]) == 2
