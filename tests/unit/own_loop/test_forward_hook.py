"""The hook on a distributed model, and on its copies."""

import copy
import pickle

import pytest
import torch
from torch import nn

from grsgd.own_loop.forward_hook import BeforeForward


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2))


@pytest.mark.parametrize("how", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
def test_a_copy_of_the_model_has_a_hook_that_does_nothing(how):
    calls = []
    model = network()
    model.register_forward_pre_hook(BeforeForward(calls.append), with_kwargs=True)
    other = how(model)
    other(torch.randn(1, 4))
    assert not calls
    model(torch.randn(1, 4))
    with torch.no_grad():
        model(torch.randn(1, 4))
    model.eval()(torch.randn(1, 4))
    assert calls == [1]
