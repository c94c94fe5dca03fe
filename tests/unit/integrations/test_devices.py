"""Devices of ranks that Lightning has started as one process each."""

import torch

from grsgd.integrations.devices import device_of


def test_ranks_of_a_host_take_its_gpus_in_turn(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    one = [torch.device("cuda", 0)]
    assert [device_of(rank, one).index for rank in range(6)] == [0, 1, 2, 3, 0, 1]


def test_devices_that_the_user_has_chosen_stay():
    chosen = [torch.device("cuda", 1), torch.device("cuda", 3)]
    assert [device_of(rank, chosen).index for rank in range(3)] == [1, 3, 1]
    assert device_of(5, [torch.device("cpu")]).type == "cpu"
