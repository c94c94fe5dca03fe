"""A training loop of a user's own, on ranks that are threads: its model, its optimizer and its steps."""

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
"""Held while torch's seed is set, because all threads share it."""


@pytest.fixture
def leaves_nothing(monkeypatch):
    """Keep `distribute` from ending the process; after the test, remove everything that it leaves in the process."""
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
