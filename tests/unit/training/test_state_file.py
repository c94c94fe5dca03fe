"""State dicts in files of torch.save and of safetensors."""

import sys
from pathlib import Path

import pytest
import torch

import grsgd
from grsgd.cli.from_python import simulate
from grsgd.errors import ConfigError, ModelError
from grsgd.training.state_file import bytes_of, check_format, state_in

STATE = {"a": torch.arange(6.0).reshape(2, 3), "b": torch.tensor([1, 2]), "c": torch.ones(2, dtype=torch.bfloat16)}


@pytest.mark.parametrize("name", ["model.pt", "model.safetensors"])
def test_a_state_comes_back(name):
    path = Path(name)
    found = state_in(path, bytes_of(path, STATE).getvalue())
    assert found.keys() == STATE.keys()
    assert all(torch.equal(found[key], value) and found[key].dtype == value.dtype for key, value in STATE.items())


@pytest.mark.parametrize("content", [b"", b"PK\3\4", bytes(range(200)), b"\xff" * 8 + b"{}"])
def test_another_file_is_refused(content):
    with pytest.raises(ModelError, match="model.safetensors: is not a file of safetensors"):
        state_in(Path("model.safetensors"), content)


def test_the_missing_package_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "safetensors.torch", None)
    with pytest.raises(ConfigError, match="pip install safetensors"):
        check_format(Path("model.safetensors"))
    with pytest.raises(ModelError, match="pip install safetensors"):
        state_in(Path("model.safetensors"), b"")


def test_a_run_saves_safetensors_that_load_model_reads(tmp_path):
    config = {"data": {"name": "digits"}, "model": {"name": "mlp"}, "train": {"steps": 3}}
    config |= {"algorithm": {"name": "dpsgd"}}
    models = []
    for name in ("model.pt", "model.safetensors"):
        simulate(config, 2, out=tmp_path / "run.h5", save=tmp_path / name)
        models.append(grsgd.load_model(tmp_path / "run.h5"))
    assert all(map(torch.equal, models[0].parameters(), models[1].parameters()))
    assert grsgd.load_model(tmp_path / "model.safetensors", tmp_path / "run.h5") is not None
