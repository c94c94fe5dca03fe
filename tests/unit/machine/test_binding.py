"""Shares of cores on machines that do not exist, and a binding on this machine."""

import os
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grsgd.errors import ConfigError
from grsgd.machine import binding, cores
from grsgd.machine.binding import Sharing, bind, computing_threads, describe, shares, sharing, way
from tests.support.seeded import seeded

SLURM = {"SLURM_JOB_ID": "7", "SLURM_CPUS_ON_NODE": "8"}
TWO_NODES = {0: frozenset(range(4)), 1: frozenset(range(4, 8))}
ALL = frozenset(range(8))


@pytest.fixture(autouse=True)
def machine(monkeypatch, tmp_path):
    """A machine of 8 cores on two NUMA nodes, without hardware threads that share a core."""
    monkeypatch.setattr(binding.os, "cpu_count", lambda: 8)
    for node, text in enumerate(("0-3", "4-7")):
        (tmp_path / f"node{node}").mkdir()
        (tmp_path / f"node{node}" / "cpulist").write_text(text)
    monkeypatch.setattr(binding, "numa_nodes", partial(cores.numa_nodes, tmp_path))
    monkeypatch.setattr(binding, "with_siblings", lambda core: frozenset({core}))


def of_all(allowed, nodes=None, environment=SLURM) -> list[Sharing]:
    nodes = nodes or [-1] * len(allowed)
    return [sharing(number, allowed, nodes, environment) for number in range(len(allowed))]


@pytest.mark.parametrize(
    "ranks, expected",
    [
        (2, [range(4), range(4, 8)]),
        (3, [range(2), range(2, 4), range(4, 6)]),
        (4, [range(2), range(2, 4), range(4, 6), range(6, 8)]),
        (8, [range(core, core + 1) for core in range(8)]),
    ],
)
def test_ranks_share_all_cores_evenly_and_no_rank_has_cores_of_two_nodes(ranks, expected):
    found = of_all([ALL] * ranks)
    assert [share.cores for share in found] == [frozenset(cores) for cores in expected]
    assert all(share.is_new for share in found)


def test_a_rank_has_cores_of_two_nodes_if_it_cannot_be_avoided():
    small = {0: frozenset(range(3)), 1: frozenset({3}), 2: frozenset(range(4, 8))}
    assert shares(ALL, [-1] * 2, small) == [frozenset(range(4)), frozenset(range(4, 8))]


def test_ranks_are_near_their_gpus():
    found = of_all([ALL] * 4, [1, 0, 1, 0])
    assert [sorted(share.cores) for share in found] == [[4, 5], [0, 1], [6, 7], [2, 3]]
    alone = of_all([ALL], [1])[0]
    assert alone.cores == TWO_NODES[1] and alone.is_new
    crowded = of_all([ALL] * 5, [0] * 5)
    assert all(len(share.cores) == 1 for share in crowded) and len({share.cores for share in crowded}) == 5


def test_hardware_threads_of_a_core_stay_together(monkeypatch):
    monkeypatch.setattr(binding, "with_siblings", lambda core: frozenset({core % 4, core % 4 + 4}))
    whole = {0: ALL}
    assert shares(ALL, [-1] * 2, whole) == [{0, 4, 1, 5}, {2, 6, 3, 7}]
    assert [len(share) for share in shares(ALL, [-1] * 8, whole)] == [1] * 8


@seeded
@given(
    st.integers(1, 9),
    st.sets(st.integers(0, 15), min_size=1),
    st.lists(st.integers(-1, 2), min_size=9, max_size=9),
    st.lists(st.integers(0, 2), min_size=16, max_size=16),
)
def test_shares_are_equal_apart_and_allowed(ranks, allowed, preferred, node_of_core):
    system = {node: frozenset(core for core in range(16) if node_of_core[core] == node) for node in range(3)}
    found = shares(frozenset(allowed), preferred[:ranks], system)
    if len(allowed) < ranks:
        assert found is None
        return
    assert len(found) == ranks and len({len(share) for share in found}) == 1 and all(found)
    assert frozenset().union(*found) <= allowed and sum(map(len, found)) == len(frozenset().union(*found))


@pytest.mark.parametrize(
    "allowed, environment, reason",
    [
        ([ALL] * 2, {}, "not bound, outside of an allocation of Slurm"),
        ([ALL] * 2, {"SLURM_JOB_ID": "7"}, "not bound, the allocation has fewer cores than its ranks may use"),
        ([ALL] * 2, SLURM | {"SLURM_CPUS_ON_NODE": "4"}, "not bound, the allocation has fewer cores than"),
        ([ALL] * 2, SLURM | {"GRSGD_BIND": "off"}, "not bound, GRSGD_BIND=off"),
        ([ALL] * 9, SLURM, "not bound, more ranks than cores"),
        ([ALL] * 9, {"GRSGD_BIND": "on"}, "not bound, more ranks than cores"),
        ([ALL], SLURM, "not bound, the only rank on these cores"),
        ([TWO_NODES[0], TWO_NODES[1]], {}, "given by the launcher or the batch system"),
        ([TWO_NODES[0], ALL], {"GRSGD_BIND": "on"}, "given by the launcher or the batch system"),
    ],
)
def test_a_rank_keeps_its_cores_and_says_why(allowed, environment, reason):
    for share, before in zip(of_all(allowed, environment=environment), allowed, strict=True):
        assert share.cores == before and share.reason.startswith(reason) and bind(share) is share


def test_groups_of_ranks_that_the_launcher_has_put_on_a_node_share_it():
    found = of_all([TWO_NODES[0], TWO_NODES[0], TWO_NODES[1], TWO_NODES[1]])
    assert [sorted(share.cores) for share in found] == [[0, 1], [2, 3], [4, 5], [6, 7]]


def test_ranks_are_bound_outside_of_an_allocation_only_if_asked():
    assert not any(share.is_new for share in of_all([ALL] * 2, environment={}))
    assert all(share.is_new for share in of_all([ALL] * 2, environment={"GRSGD_BIND": "on"}))


def test_a_wrong_way_is_refused():
    assert way({"GRSGD_BIND": ""}) == "auto"
    with pytest.raises(ConfigError, match="^GRSGD_BIND = no: must be one of auto, on, off$"):
        way({"GRSGD_BIND": "no"})


def test_a_thread_runs_on_its_share_only():
    before = os.sched_getaffinity(0)
    try:
        share = Sharing(frozenset({max(before)}), binding.SHARED)
        assert bind(share) == share and os.sched_getaffinity(0) == {max(before)}
    finally:
        os.sched_setaffinity(0, before)
    refused = bind(Sharing(frozenset({10_000}), binding.SHARED))
    assert refused.cores == before and "the system refuses: Invalid argument" in refused.reason


def test_what_the_run_file_says():
    share = Sharing(frozenset({2, 3, 4}), binding.SHARED)
    assert describe(share) == "cores 2-4 of NUMA nodes 0, 1, bound by the rank itself"
    assert describe(Sharing(frozenset({5}), binding.GIVEN), {}) == "core 5, given by the launcher or the batch system"


@pytest.mark.parametrize("cores, threads", [(1, 1), (2, 2), (3, 3), (4, 3), (16, 15)])
def test_from_four_cores_on_one_is_left_to_messages(cores, threads):
    assert computing_threads(cores) == threads
