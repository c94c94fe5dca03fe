"""Hosts, cores and NUMA nodes of ranks."""

import pytest

from grsgd.doctor import places
from grsgd.doctor.places import PlaceFacts


def place(host="a", machine=None, cores=(0, 1), all_cores=4, quota=None, threads=""):
    return PlaceFacts(host, machine or host, frozenset(cores), all_cores, (0,), quota, threads)


def hurting(*ranks, **environment) -> dict[str, str]:
    return {each.name: each.remedy for each in places.findings(ranks, environment) if each.remedy}


def test_healthy_places():
    two = place(cores=(0, 1)), place(cores=(2, 3), threads="2"), place("b")
    assert hurting(*two, SLURM_JOB_NUM_NODES="2") == {}
    values = {each.name: each.value for each in places.findings(two, {})}
    assert values["hosts"] == "2: a (ranks 0, 1), b (rank 2)"
    assert values["cores"] == "a: 0-1 (rank 0), a: 2-3 (rank 1), b: 0-1 (rank 2)"
    assert values["binding"] == "bound, 2 of 4 cores" and values["NUMA nodes"] == "0"
    assert hurting(places.facts()).keys() <= {"processor quota", "OMP_NUM_THREADS"}


@pytest.mark.parametrize(
    "ranks, name, words",
    [
        ([place(cores=(0,)), place(cores=(0,))], "cores", "bind each rank to its own cores"),
        ([place(cores=(0,)), place(cores=(0, 1)), place(cores=(0, 1))], "cores", "bind"),
        ([place(cores=range(4))] * 5, "cores", "start fewer ranks per host"),
        ([place("n", "one"), place("n", "two")], "hosts", "several hosts have one name"),
        ([place(quota=1.5, cores=range(4))] * 2, "processor quota", "less than a core"),
        ([place(threads="8")], "OMP_NUM_THREADS", "OMP_NUM_THREADS=2"),
        ([place(cores=range(4), threads="4")] * 2, "OMP_NUM_THREADS", "OMP_NUM_THREADS=2"),
    ],
)
def test_places_that_hurt(ranks, name, words):
    found = hurting(*ranks)
    assert {*found} == {name} and words in found[name]


def test_ranks_that_crowd_on_one_node_hurt_and_spare_nodes_do_not():
    crowd = place(cores=(0,)), place(cores=(1,))
    assert "give mpiexec all hosts" in hurting(*crowd, SLURM_JOB_NUM_NODES="2")["hosts"]
    with_spare = *crowd, place("b", cores=(0,)), place("b", cores=(1,))
    assert hurting(*with_spare, SLURM_JOB_NUM_NODES="3") == {}
    value = places.findings(with_spare, {"SLURM_JOB_NUM_NODES": "3"})[0].value
    assert value.endswith("; the allocation has 3 nodes")
    assert hurting(place(), SLURM_JOB_NUM_NODES="2") == {}, "one rank has no other place"
