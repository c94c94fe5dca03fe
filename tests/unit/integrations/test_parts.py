"""Parts of a model, one per optimizer."""

import copy

import pytest
import torch
from torch import nn

from grsgd.errors import ConfigError
from grsgd.integrations.parts import parts_of


class Mixed(nn.Module):
    """Model whose head has parameters of two optimizers, and which has parameters and buffers of its own."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))
        self.head = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 1, bias=False))
        self.scale = nn.Parameter(torch.ones(1))
        self.frozen = nn.Linear(1, 1).requires_grad_(False)
        self.register_buffer("count", torch.zeros(1))
        self.outside = object()


def sgd(*parameters) -> torch.optim.Optimizer:
    return torch.optim.SGD([p for each in parameters for p in each], lr=0.1)


def names(model: nn.Module, part: nn.Module) -> set[str]:
    """Return the names in ``model`` of the parameters and buffers of a part."""
    own = {id(tensor) for tensor in [*part.parameters(), *part.buffers()]}
    return {name for name, tensor in [*model.named_parameters(), *model.named_buffers()] if id(tensor) in own}


def test_one_optimizer_has_the_whole_model():
    model = Mixed()
    (part,) = parts_of(model, [sgd(model.parameters())])
    assert names(model, part) == {name for name, _ in [*model.named_parameters(), *model.named_buffers()]}


def test_each_optimizer_has_its_modules_and_the_first_one_the_rest():
    model = Mixed()
    first, second = model.body.parameters(), [*model.head[1].parameters(), model.scale]
    parts = parts_of(model, [sgd(first, model.head[0].parameters()), sgd(second)])
    assert names(model, parts[1]) == {"head.1.weight", "scale"}
    everything = {name for name, _ in [*model.named_parameters(), *model.named_buffers()]}
    assert names(model, parts[0]) == everything - names(model, parts[1])


def test_a_part_shares_its_tensors_with_the_model_and_a_copy_of_it_does_not():
    model = Mixed()
    (part,) = parts_of(model, [sgd(model.parameters())])
    copied = copy.deepcopy(part)
    model.body[0].weight.data.fill_(7)
    assert any((tensor == 7).all() for tensor in part.parameters())
    assert not any((tensor == 7).all() for tensor in copied.parameters())
    assert not any(module is model for module in part.modules())


def test_a_parameter_of_two_optimizers_is_refused():
    model = Mixed()
    with pytest.raises(ConfigError, match=r"optimizers 0 and 1 both train a parameter of shape \(3, 2\)"):
        parts_of(model, [sgd(model.parameters()), sgd(model.body.parameters())])
