"""The size of a model, and the room that its snapshots need."""

from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch

from grsgd.errors import ConfigError
from grsgd.job import prepare
from tests.support.training import config


def test_model_bytes_are_those_of_what_is_trained():
    model = torch.nn.Linear(3, 2)
    model.bias.requires_grad_(False)
    assert prepare.model_bytes(model, config("dpsgd")) == 4 * 6
    assert prepare.model_bytes(model, config("dpsgd", dtype="float64")) == 8 * 6


def test_snapshots_must_fit_into_the_temporary_folder(monkeypatch):
    model = torch.nn.BatchNorm1d(10)  # 20 parameters, 20 statistics, and a number that counts
    chosen = config("dpsgd", train={"steps": 8, "snapshots": 4})
    for free, memory, fits in ((640, 0, True), (639, 0, False), (0, 640, True), (639, 639, False)):
        monkeypatch.setattr(prepare, "MEMORY", memory)
        monkeypatch.setattr(prepare.shutil, "disk_usage", lambda folder, free=free: SimpleNamespace(free=free))
        with nullcontext() if fits else pytest.raises(ConfigError, match="train.snapshots = 4: .* take fewer"):
            assert prepare.check_room(chosen, model) == 0
    monkeypatch.setattr(prepare, "MEMORY", 10 * 160)
    assert prepare.check_room(chosen, model) == 6
