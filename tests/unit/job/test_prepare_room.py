"""Snapshots that do not fit on a disk are refused before a run trains."""

from types import SimpleNamespace

import pytest

from grsgd import config
from grsgd.errors import ConfigError
from grsgd.job import prepare
from grsgd.simulator.network import network
from grsgd.simulator.simulation import Simulation

CONFIG = """
[algorithm]
name = "{name}"
[model]
name = "mlp"
hidden = [4]
[data]
name = "synthetic"
samples = 100
[train]
steps = 4
snapshots = {snapshots}
"""


def parsed(tmp_path, name="parameter_server", snapshots=2):
    (tmp_path / "run.toml").write_text(CONFIG.format(name=name, snapshots=snapshots))
    return config.load(tmp_path / "run.toml", [])


def simulated(tmp_path, **options):
    return Simulation(parsed(tmp_path, **options), 3, network(), "constant:0.01")


def test_snapshots_that_do_not_fit_are_refused_before_training(monkeypatch, tmp_path):
    chosen = parsed(tmp_path, name="dpsgd", snapshots=10**6)
    model = simulated(tmp_path, name="dpsgd").trainers[0].replica.model
    monkeypatch.setattr(prepare.shutil, "disk_usage", lambda folder: SimpleNamespace(free=2**30))
    with pytest.raises(ConfigError, match=r"train.snapshots = 1000000: .* GiB per rank do not fit into "):
        prepare.check_room(chosen, model)
    monkeypatch.setattr(prepare.shutil, "disk_usage", lambda folder: SimpleNamespace(free=2**50))
    prepare.check_room(chosen, model)
