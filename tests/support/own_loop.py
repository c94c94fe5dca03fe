"""Model, optimizer and steps of a user's own training loop, for tests on ranks that are threads."""

import atexit
import os
import threading
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from grsgd.comm import watchdog
from grsgd.job import ending, launch
from grsgd.own_loop import distributed_optimizer
from tests.support.threads import close_drivers

SEEDING = threading.Lock()
"""Lock that a thread holds while it sets torch's seed, because all threads share this seed."""


@pytest.fixture
def leaves_nothing(monkeypatch):
    """Keep `distribute` from ending the process of the tests. After the test, remove all objects that `distribute` has
    left."""
    monkeypatch.setattr(launch, "abort_on_error", lambda mpi: None)
    monkeypatch.setattr(watchdog, "os", SimpleNamespace(**vars(os) | {"_exit": lambda code: code or os._exit(code)}))
    yield
    for optimizer in distributed_optimizer.unfinished:
        atexit.unregister(optimizer._check_finished)
    distributed_optimizer.unfinished.clear()
    ending.BEFORE_ABORT.clear()
    close_drivers()


def network(seed=0):
    with SEEDING:
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2)).double()


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.1)


def loss(model, rank, step, part=0):
    random = torch.Generator().manual_seed(100 * step + 10 * part + rank)
    return model(torch.randn(5, 4, dtype=torch.float64, generator=random)).square().sum()


def vector(model):
    return nn.utils.parameters_to_vector(model.parameters()).detach().clone()


def plain(model, optimizer, losses, k):
    optimizer.zero_grad()
    losses(k).backward()
    optimizer.step()
