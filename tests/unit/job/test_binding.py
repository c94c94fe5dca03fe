"""Binding of the ranks of a job, with Slurm's answers as text; the shares are in ``tests/unit/machine``."""

from types import SimpleNamespace

import pytest
import torch

from grsgd.job import binding
from tests.support.threads import on_threads


@pytest.fixture
def slurm(monkeypatch):
    """A function that sets Slurm's plug-in, without variables of a real allocation."""
    for name in ("SLURM_CPU_BIND", "SLURM_GPUS_ON_NODE", "SLURM_JOB_GPUS", "GRSGD_BIND"):
        monkeypatch.delenv(name, raising=False)

    def answers(text):
        monkeypatch.setattr(binding.subprocess, "run", lambda *_, **__: SimpleNamespace(stdout=text))

    answers("SwitchType = x\nTaskPlugin              = task/affinity,task/cgroup\n")
    return answers


def test_srun_binds_ranks_without_gpus(slurm, monkeypatch):
    assert binding.srun_options(trains=True) == binding.srun_options(trains=False) == ["--cpu-bind=cores"]
    assert binding.srun_options(True, "off") == []
    slurm("TaskPlugin = task/none\nTaskPluginParam = affinity\n")
    assert binding.srun_options(trains=True) == []


@pytest.mark.parametrize("name", ["SLURM_GPUS_ON_NODE", "SLURM_JOB_GPUS"])
def test_ranks_with_gpus_bind_themselves(name, slurm, monkeypatch):
    monkeypatch.setenv(name, "0,1")
    assert binding.srun_options(trains=True) == ["--cpu-bind=none"] and binding.srun_options(trains=False) == []


@pytest.mark.parametrize("name, value", [("SLURM_CPU_BIND", "quiet,mask_cpu:0x1"), ("GRSGD_BIND", "off")])
def test_srun_is_left_to_its_default(name, value, slurm, monkeypatch):
    monkeypatch.setenv(name, value)
    assert binding.srun_options(trains=True) == []


def test_without_slurm_nothing_is_asked_of_it(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert not binding.slurm_binds()


def test_the_first_line_names_the_cores_of_some_ranks(capsys):
    binding.tell([f"core {rank} of NUMA node 0, bound by the rank itself" for rank in range(6)], 1)
    line = capsys.readouterr().err
    assert line == (
        "cores: rank 0: core 0 of NUMA node 0; rank 1: core 1 of NUMA node 0; rank 2: core 2 of NUMA node 0; "
        "rank 3: core 3 of NUMA node 0; and 2 more ranks; bound by the rank itself; computing threads per rank: 1\n"
    )
    binding.tell(["core 0, bound by the rank itself", "cores 1-2, not bound, more ranks than cores"], 2)
    line = capsys.readouterr().err
    assert "rank 0: core 0, bound by the rank itself; rank 1: cores 1-2, not bound, more ranks than cores; comp" in line
    binding.tell([f"cores 0-1, {binding.NO_ALLOCATION}"] * 2, 1)
    assert capsys.readouterr().err == ""


def test_the_node_of_a_gpu_is_asked_of_the_system(monkeypatch):
    properties = SimpleNamespace(pci_domain_id=0, pci_bus_id=0x3B, pci_device_id=0)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    monkeypatch.setattr(binding, "numa_node", {"0000:3b:00.0": 1}.__getitem__)
    assert binding.node_of(torch.device("cuda", 2)) == 1 and binding.node_of(torch.device("cpu")) == -1


def test_a_spare_is_not_bound_and_takes_no_share(monkeypatch):
    allowed = frozenset({0, 1})
    asked = []
    monkeypatch.setattr(binding, "allowed_cores", lambda: allowed)
    monkeypatch.setattr(binding, "bind", lambda share: share)

    def sharing(number, cores, nodes):
        asked.append((number, len(cores)))
        return binding.Sharing(frozenset({number}), "bound by the rank itself")

    monkeypatch.setattr(binding, "sharing", sharing)
    texts = on_threads(monkeypatch, 3, lambda mpi: binding.bind_ranks(mpi, 2, torch.device("cpu")))
    assert sorted(asked) == [(0, 2), (1, 2)]
    assert [text.split(", ")[-1] for text in texts[0]] == ["bound by the rank itself"] * 2 + ["a spare process"]
