"""Facts about cores and NUMA nodes, from files as Linux has them."""

import os

import pytest

from grsgd.machine import cores
from grsgd.machine.gpus import address, numa_node


def test_nodes_and_hardware_threads_are_read_from_the_files_of_the_system(tmp_path):
    for name, text in {"node0": "0-1,4-5\n", "node1": "2-3,6-7\n", "node2": "\n", "node3": "x"}.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "cpulist").write_text(text)
    (tmp_path / "node4").mkdir()
    nodes = cores.numa_nodes(tmp_path)
    assert nodes == {0: frozenset({0, 1, 4, 5}), 1: frozenset({2, 3, 6, 7}), 2: frozenset()}
    (tmp_path / "cpu1" / "topology").mkdir(parents=True)
    (tmp_path / "cpu1" / "topology" / "thread_siblings_list").write_text("1,5\n")
    assert cores.with_siblings(1, tmp_path) == {1, 5} and cores.with_siblings(2, tmp_path) == {2}
    assert cores.numa_nodes(tmp_path / "none") == {}


@pytest.mark.parametrize("text", ["", "3", "0-3", "0-3,8", "0,2,4-5"])
def test_a_list_of_cores_is_read_and_written(text):
    assert cores.cores_in_words(cores.cores_in(f"{text}\n")) == text


def test_a_list_that_is_none_is_an_error():
    with pytest.raises(ValueError):
        cores.cores_in("0-x")


def test_this_machine_has_the_cores_on_which_this_process_runs():
    allowed = cores.allowed_cores()
    assert allowed == os.sched_getaffinity(0) and all(core in cores.with_siblings(core) for core in allowed)
    nodes = cores.numa_nodes()
    assert not nodes or allowed <= frozenset().union(*nodes.values())
    assert cores.machine() == cores.machine() != ""


def test_the_numa_node_of_a_gpu(tmp_path):
    class Properties:
        pci_domain_id, pci_bus_id, pci_device_id = 0, 0x3B, 0

    place = tmp_path / "bus/pci/devices/0000:3b:00.0"
    place.mkdir(parents=True)
    (place / "numa_node").write_text("1\n")
    assert numa_node(address(Properties, 0), tmp_path) == 1
    assert numa_node(address(object(), 3), tmp_path) == -1 and address(object(), 3) == "GPU 3"
