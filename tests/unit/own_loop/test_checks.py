"""The memory of a distributed model must stay in its place."""

import pytest
import torch
from torch import nn

from grsgd.models.replica import Replica
from grsgd.own_loop.checks import InPlace


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2))


def test_in_place():
    model = network()
    model.register_buffer("mean", torch.zeros(2))
    replica = Replica(model)
    place = InPlace(replica)
    place.check()
    model.load_state_dict(network().state_dict() | {"mean": torch.ones(2)})
    place.check()
    model.mean = model.mean + 1
    place.check()
    assert replica.buffers.array.tolist() == [2, 2]
    model[2].weight.requires_grad_(False)
    with pytest.raises(RuntimeError, match="'2.weight' was frozen"):
        place.check()
    model[2].weight.requires_grad_(True)
    model.double()
    with pytest.raises(RuntimeError, match="'0.weight' was given new memory"):
        place.check()
