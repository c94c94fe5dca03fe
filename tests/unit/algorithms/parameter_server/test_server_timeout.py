"""How long a parameter server waits."""

from grsgd import config
from grsgd.simulator.driver import SimulatedDriver
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


def test_the_server_gives_up_before_the_workers_do(monkeypatch, tmp_path):
    monkeypatch.setattr(SimulatedDriver, "timeout", 10.0)
    assert simulated(tmp_path).trainers[-1].algorithm.server.timeout == 8.0
