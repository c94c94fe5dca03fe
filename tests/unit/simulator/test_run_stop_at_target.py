"""Simulated runs that end when they have reached their target accuracy."""

import numpy as np
import pytest
import torch

from grsgd.algorithms import ALGORITHMS
from grsgd.errors import ConfigError
from grsgd.runs.ending import TARGET_REACHED
from grsgd.runs.run_file import load_run
from grsgd.simulator.run import simulate
from grsgd.testing.simulated import network_of
from grsgd.training.saving import ModelFiles
from tests.support.exhaustive import exhaustive_unless
from tests.support.training import CONSTANT, SLOW, config, simulation

SOME = ("ring_allreduce", "grsgd", "lasgd", "parameter_server", "cssgd")
"""Algorithms of each kind."""
LENGTH = {"steps": 40, "snapshots": 20}


def made(path, name, lr=0.05, models=None, **train):
    """The run and why it ended."""
    chosen = config(name, seed=3, optimizer={"lr": lr}, train=LENGTH | train)
    reason = simulate(chosen, 3, network_of(**SLOW), path, CONSTANT, models=models)
    return load_run(path), reason


@pytest.mark.parametrize("name", exhaustive_unless(lambda name: name in SOME, sorted(ALGORITHMS)))
def test_the_curve_is_the_beginning_of_the_whole_run_s(name, tmp_path):
    whole, _ = made(tmp_path / "whole.h5", name)
    accuracy = whole.curve["test_accuracy"]
    target = float(accuracy[:15].max())
    at = int((accuracy >= target).argmax())
    stopped, reason = made(tmp_path / "stopped.h5", name, target_accuracy=target, stop_at_target=True)
    assert reason == stopped.attributes["reason"] == TARGET_REACHED
    assert stopped.attributes["ended"] == "completed"
    length = len(stopped.curve["time"])
    assert at < length <= at + 3
    for column, values in stopped.curve.items():
        np.testing.assert_array_equal(values, whole.curve[column][:length], column)
    assert stopped.attributes["final_test_accuracy"] == stopped.curve["test_accuracy"][-1]
    assert stopped.ranks["steps"].sum() < whole.ranks["steps"].sum()


@pytest.mark.parametrize("name", ["ring_allreduce", "asgd", "grsgd"])
def test_a_target_out_of_reach_changes_nothing(name, tmp_path):
    """Evaluating while training disturbs neither the training nor what is evaluated in the end."""
    whole, _ = made(tmp_path / "whole.h5", name, lr=1e-4)
    looked, reason = made(tmp_path / "looked.h5", name, lr=1e-4, target_accuracy=1.0, stop_at_target=True)
    assert reason == "steps" and whole.curve["test_accuracy"].max() < 1
    for group in ("curve", "ranks", "traffic"):
        for column, values in getattr(whole, group).items():
            np.testing.assert_array_equal(values, getattr(looked, group)[column], column)
    assert whole.attributes["final_test_accuracy"] == looked.attributes["final_test_accuracy"]


def test_models_that_are_saved_are_those_of_the_last_snapshot(tmp_path):
    models = ModelFiles(tmp_path / "final.pt", tmp_path / "best.pt")
    run, _ = made(tmp_path / "run.h5", "dpsgd", models=models, target_accuracy=0.55, stop_at_target=True)
    final, best = (torch.load(tmp_path / f"{name}.pt") for name in ("final", "best"))
    assert run.attributes["best_test_accuracy"] == run.curve["test_accuracy"].max()
    assert run.curve["test_accuracy"].argmax() == len(run.curve["time"]) - 1
    assert all((final[key] == best[key]).all() for key in final)


def test_where_there_is_no_target_or_no_accuracy():
    with pytest.raises(ConfigError, match="train: stop_at_target = true needs target_accuracy"):
        config("dpsgd", train=LENGTH | {"stop_at_target": True})
    with pytest.raises(ConfigError, match="train.stop_at_target = true with --timing-only"):
        simulation("dpsgd", 2, timing_only=True, train=LENGTH | {"target_accuracy": 0.9, "stop_at_target": True})
