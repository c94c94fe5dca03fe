"""GPUs, told by doubles of the system's files."""

from types import SimpleNamespace

import pytest

from grsgd.doctor import gpus
from grsgd.doctor.gpus import GpuFacts, can_try, gtl
from grsgd.doctor.places import PlaceFacts
from tests.support.threads import Group, Mpi

HEALTHY = GpuFacts(2, ("0000:01:00.0", "0000:81:00.0"), ("H200", "H200"), (0, 1), "12.8")
PLACES = [PlaceFacts("a", "a", frozenset((rank,)), 2, (rank,), None, "") for rank in range(2)]


def hurting(*ranks, places=PLACES) -> dict[str, str]:
    return {each.name: each.remedy for each in gpus.findings(ranks, places[: len(ranks)], None) if each.remedy}


def test_healthy_gpus():
    assert hurting(HEALTHY, HEALTHY) == {} == hurting(GpuFacts(0), GpuFacts(0)) and can_try([HEALTHY, HEALTHY])
    values = {each.name: each.value for each in gpus.findings([HEALTHY, HEALTHY], PLACES, "direct, tried")}
    assert values["devices"] == "H200 0000:01:00.0 (rank 0), H200 0000:81:00.0 (rank 1)"
    assert values["transfer"] == "direct, tried"


@pytest.mark.parametrize(
    "change, name, words",
    [
        ({"has_cupy": False}, "libraries", "CuPy is missing"),
        ({"visible": (), "torch_cuda": ""}, "devices", "built without"),
        ({"visible": (), "hidden": ""}, "devices", "CUDA_VISIBLE_DEVICES is empty"),
        ({"visible": ()}, "devices", "update the driver"),
        ({"visible": (), "on_host": 0}, "devices", "start all ranks on hosts with GPUs"),
        ({"visible": ("0000:01:00.0",), "numa": (1,)}, "devices", "ranks 0, 1 share a GPU"),
    ],
)
def test_gpus_that_hurt(change, name, words):
    found = hurting(HEALTHY, HEALTHY._replace(**change))
    assert {*found} == {name} and words in found[name]
    assert can_try([HEALTHY, HEALTHY._replace(**change)]) == ("numa" in change)


def test_a_gpu_far_from_the_cores_of_its_rank_hurts():
    assert "NUMA node 0" in hurting(HEALTHY, places=PLACES[1:])["NUMA node of the GPU"]


def test_gtl_that_is_asked_for_and_missing_hurts(monkeypatch):
    monkeypatch.setenv("MPICH_GPU_SUPPORT_ENABLED", "1")
    found = gtl("MPI VERSION : CRAY MPICH version 8.1")
    assert "GTL is not linked" in found.value and "LD_PRELOAD" in found.remedy and gtl("MPICH 5") is None


def test_the_trial_of_gpu_memory_has_the_time_of_the_examination(monkeypatch):
    """The limit of the library's trial is given, which is 60 s in a run."""
    limits = []

    def select_transport(backend, device, wanted, nbytes, timeout, library_seconds):
        limits.append((timeout, library_seconds))
        return SimpleNamespace(name="staged")

    monkeypatch.setattr("grsgd.comm.gpu.select.select_transport", select_transport)
    monkeypatch.setattr("grsgd.training.device.pick_device", lambda wanted, local_rank: "cuda:0")
    monkeypatch.setattr("grsgd.training.device.use", lambda device: None)
    assert gpus.transfer(Mpi(Group([0]), 0), 0, 7.5).startswith("staged, found out by a trial of each way: ")
    assert limits == [(gpus.TRIAL_SECONDS, 7.5)]


def test_a_host_without_gpus(tmp_path):
    assert gpus.facts(tmp_path, tmp_path) == GpuFacts(0)


def test_a_host_with_gpus_that_torch_does_not_use(tmp_path, monkeypatch):
    (tmp_path / "driver/nvidia/gpus/0000:01:00.0").mkdir(parents=True)
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    found = gpus.facts(tmp_path, tmp_path)
    assert found.on_host == 1 and found.visible == ()
