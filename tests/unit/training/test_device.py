"""Which device a rank takes; no GPU is needed."""

import pytest
import torch

from grsgd.errors import ConfigError
from grsgd.training import device as gpu
from grsgd.training.device import pick_device


@pytest.fixture
def two_gpus(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(gpu, "find_spec", lambda name: object())


@pytest.mark.parametrize("name", ["auto", "cuda"])
def test_ranks_of_a_host_take_its_gpus_in_turn(two_gpus, name):
    assert [pick_device(name, rank).index for rank in range(5)] == [0, 1, 0, 1, 0]
    assert pick_device(name).type == "cuda"


def test_the_cpu_if_asked_for(two_gpus):
    assert pick_device("cpu", 1) == torch.device("cpu")


def test_no_gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert pick_device("auto") == torch.device("cpu")
    with pytest.raises(ConfigError, match="device = 'cuda': torch finds no GPU here; allowed: auto, cpu"):
        pick_device("cuda")


def test_no_cupy(two_gpus, monkeypatch):
    monkeypatch.setattr(gpu, "find_spec", lambda name: None)
    assert pick_device("auto") == torch.device("cpu")
    with pytest.raises(ConfigError, match="CuPy is not installed"):
        pick_device("cuda")
