"""Which rank asks git for the commit of a run."""

from grsgd import config
from grsgd.simulator.network import network
from grsgd.simulator.simulation import Simulation
from grsgd.training import description

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


def test_one_rank_asks_git(monkeypatch, tmp_path):
    monkeypatch.setattr(description, "commit", lambda: "0123")
    assert [description.describe(trainer)["commit"] for trainer in simulated(tmp_path).trainers] == ["0123", None, None]
