"""Memory, shared memory and limits."""

import os

import pytest

from grsgd.doctor import room
from grsgd.doctor.room import RoomFacts

HEALTHY = RoomFacts(2**34, 2**33, 2**33, -1, 4096, -1, True)


def hurting(*ranks) -> dict[str, str]:
    return {each.name: each.remedy for each in room.findings(ranks) if each.remedy}


def test_a_healthy_room():
    assert hurting(HEALTHY, HEALTHY._replace(locked=8 * 2**20, has_rdma=False)) == {}
    values = {each.name: each.value for each in room.findings([HEALTHY, HEALTHY._replace(free=2**30)])}
    assert values["free memory"] == "1.00 GiB at least (rank 1)" and values["locked memory"] == "unlimited"


@pytest.mark.parametrize(
    "change, name, words",
    [
        ({"shared_free": 64 * 2**20, "shared": 64 * 2**20}, "/dev/shm", "--shm-size"),
        ({"shared_free": None, "shared": None}, "/dev/shm", "mount a tmpfs"),
        ({"locked": 65536}, "locked memory", "ulimit -l unlimited"),
        ({"files": 256}, "open files", "ulimit -n 264"),
        ({"address_space": 2**32}, "address space", "ulimit -v unlimited"),
    ],
)
def test_a_room_that_hurts(change, name, words):
    found = hurting(HEALTHY, HEALTHY._replace(**change))
    assert {*found} == {name} and words in found[name]


def test_the_facts_of_this_system(tmp_path, monkeypatch):
    found = room.facts(tmp_path, tmp_path)
    assert not found.has_rdma and 0 < found.shared_free <= found.shared and found.files > 0
    with monkeypatch.context() as patched:  # as on a file system that is mounted read-only
        patched.setattr(room.os, "access", lambda path, mode: mode != os.W_OK)
        assert room.facts(tmp_path).shared is None
    found = room.facts(tmp_path / "none", tmp_path / "none")
    assert found.shared is None and not found.has_rdma


@pytest.mark.parametrize(
    "layer, state, is_infiniband",
    [("InfiniBand", "4: ACTIVE", True), ("InfiniBand", "1: DOWN", False), ("Ethernet", "4: ACTIVE", False)],
)
def test_only_an_active_port_of_infiniband_counts(layer, state, is_infiniband, tmp_path):
    """An Ethernet card such as mlx5 is listed, too; its messages lock no memory, and may take over 1 s per GB."""
    (tmp_path / "mlx5_1/ports/1").mkdir(parents=True)
    (tmp_path / "mlx5_0/ports/1").mkdir(parents=True)
    for name, text in (("link_layer", layer), ("state", state)):
        (tmp_path / "mlx5_0/ports/1" / name).write_text(f"{text}\n")
    assert room.facts(devices=tmp_path).has_rdma == is_infiniband
