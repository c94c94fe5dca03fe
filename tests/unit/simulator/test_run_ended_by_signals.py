"""Simulated runs that signals end: what is evaluated, what is saved, and what is said."""

import os
import signal
from pathlib import Path

import numpy as np

from grsgd import config, load_run
from grsgd.cli import main
from grsgd.job.signals import TERMINATED
from grsgd.simulator.driver import SimulatedDriver
from grsgd.training import run_evaluation
from grsgd.training.trainer import Trainer

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


SIMULATE = ["--compute", "constant:0.01", "--ranks", "3", "--set", "train.steps=1000"]


def simulate_with_signals(monkeypatch, tmp_path, place, name, after) -> tuple[int, Path]:
    """Exit code and run file of a simulation that gets a SIGTERM after so many calls of a method of ``place``."""
    parsed(tmp_path, name="dpsgd")
    method, calls = getattr(place, name), []

    def called(*arguments):
        calls.append(None)
        if len(calls) in after:
            os.kill(os.getpid(), signal.SIGTERM)
        return method(*arguments)

    monkeypatch.setattr(place, name, called)
    out = tmp_path / "run.h5"
    arguments = [*SIMULATE, "--out", str(out), "--save", str(tmp_path / "model.pt")]
    return main(["simulate", str(tmp_path / "run.toml"), *arguments]), out


def test_a_simulation_that_a_signal_ends_is_evaluated(monkeypatch, tmp_path, capsys):
    code, out = simulate_with_signals(monkeypatch, tmp_path, Trainer, "take_snapshot", [1])
    run, said = load_run(out), capsys.readouterr().err
    assert code == 130 and run.attributes["reason"] == TERMINATED
    assert run.attributes["final_test_accuracy"] == run.curve["test_accuracy"][-1] > 0
    assert run.ranks["steps"].max() < 1000 and (tmp_path / "model.pt").exists()
    assert f"{TERMINATED}: the result so far is evaluated" in said and f"{out}: stopped early: {TERMINATED}: " in said


def test_a_second_signal_ends_a_simulation_at_once(monkeypatch, tmp_path, capsys):
    code, out = simulate_with_signals(monkeypatch, tmp_path, SimulatedDriver, "begin", [100, 101])
    run, said = load_run(out), capsys.readouterr().err
    assert code == 130 and run.attributes["reason"] == TERMINATED
    assert np.isnan(run.attributes["final_test_accuracy"]) and not (tmp_path / "model.pt").exists()
    assert "model.pt: not saved, because nothing was evaluated" in said and "the result so far" not in said


def test_a_simulation_whose_evaluation_a_signal_ends_is_saved(monkeypatch, tmp_path, capsys):
    monkeypatch.setitem(globals(), "SIMULATE", [*SIMULATE, "--set", "train.steps=3"])
    code, out = simulate_with_signals(monkeypatch, tmp_path, run_evaluation, "quality_of_replicas", [2])
    run, said = load_run(out), capsys.readouterr().err
    assert code == 130 and run.attributes["reason"] == "steps"
    assert np.isnan(run.curve["test_accuracy"]).all()
    assert f"{out}: {TERMINATED} while accuracies were computed: they are missing" in said
