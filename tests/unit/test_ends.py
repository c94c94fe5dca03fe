"""Smaller things about how runs begin and end."""

import os
import signal
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from grsgd import config, load_run
from grsgd.cli import main
from grsgd.cli.arguments import default_out
from grsgd.comm.communicator import LostRank
from grsgd.errors import ConfigError, RunFileError
from grsgd.job import launch, prepare
from grsgd.job.signals import TERMINATED
from grsgd.own_loop import distributed_optimizer
from grsgd.simulate.driver import SimulatedDriver
from grsgd.simulate.network import network
from grsgd.simulate.simulation import Simulation
from grsgd.training import description, run_evaluation
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


def simulated(tmp_path, **options):
    return Simulation(parsed(tmp_path, **options), 3, network(), "constant:0.01")


def test_the_server_gives_up_before_the_workers_do(monkeypatch, tmp_path):
    monkeypatch.setattr(SimulatedDriver, "timeout", 10.0)
    assert simulated(tmp_path).trainers[-1].algorithm.server.timeout == 8.0


def test_one_rank_asks_git(monkeypatch, tmp_path):
    monkeypatch.setattr(description, "commit", lambda: "0123")
    assert [description.describe(trainer)["commit"] for trainer in simulated(tmp_path).trainers] == ["0123", None, None]


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
    assert f"{TERMINATED}: what was simulated is evaluated" in said and f"{out}: stopped early: {TERMINATED}: " in said


def test_a_second_signal_ends_a_simulation_at_once(monkeypatch, tmp_path, capsys):
    code, out = simulate_with_signals(monkeypatch, tmp_path, SimulatedDriver, "begin", [100, 101])
    run, said = load_run(out), capsys.readouterr().err
    assert code == 130 and run.attributes["reason"] == TERMINATED
    assert np.isnan(run.attributes["final_test_accuracy"]) and not (tmp_path / "model.pt").exists()
    assert "model.pt: not saved, for nothing was evaluated" in said and "what was simulated" not in said


def test_a_simulation_whose_evaluation_a_signal_ends_is_saved(monkeypatch, tmp_path, capsys):
    monkeypatch.setitem(globals(), "SIMULATE", [*SIMULATE, "--set", "train.steps=3"])
    code, out = simulate_with_signals(monkeypatch, tmp_path, run_evaluation, "quality_of_replicas", [2])
    run, said = load_run(out), capsys.readouterr().err
    assert code == 130 and run.attributes["reason"] == "steps"
    assert np.isnan(run.curve["test_accuracy"]).all()
    assert f"{out}: {TERMINATED} while accuracies were computed: they are missing" in said


def test_names_of_runs_of_one_second_differ(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert len({default_out("dpsgd") for _ in range(4)}) == 4


def test_no_folder_for_results(monkeypatch, tmp_path, capsys):
    parsed(tmp_path, name="dpsgd")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "results").touch()
    with pytest.raises(RunFileError, match="results: File exists: name another file with --out"):
        default_out("dpsgd")
    assert main(["simulate", "run.toml"]) == 2
    assert capsys.readouterr().err == "grsgd: error: results: File exists: name another file with --out\n"


def test_snapshots_that_do_not_fit_are_refused_before_training(monkeypatch, tmp_path):
    chosen = parsed(tmp_path, name="dpsgd", snapshots=10**6)
    model = simulated(tmp_path, name="dpsgd").trainers[0].replica.model
    monkeypatch.setattr(prepare.shutil, "disk_usage", lambda folder: SimpleNamespace(free=2**30))
    with pytest.raises(ConfigError, match=r"train.snapshots = 1000000: .* GiB a rank do not fit into "):
        prepare.check_room(chosen, model)
    monkeypatch.setattr(prepare.shutil, "disk_usage", lambda folder: SimpleNamespace(free=2**50))
    prepare.check_room(chosen, model)


@pytest.fixture
def rank(monkeypatch):
    """The end of a communicator of which nothing but the number of the rank is needed, and what `abort` was given."""
    aborted = []
    monkeypatch.setattr(launch, "abort", lambda mpi, failed_here=True, code=1: aborted.append(failed_here))
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    monkeypatch.setattr(threading, "excepthook", threading.excepthook)
    return SimpleNamespace(rank=0, size=2), aborted


def test_a_forked_process_is_no_rank(rank, monkeypatch, capsys):
    """What it raises, and that it exits, concerns nobody else."""
    mpi, aborted = rank
    process = os.getpid()
    backend = SimpleNamespace(mpi=mpi)
    unfinished = SimpleNamespace(_uncounted_comm=SimpleNamespace(backend=backend), _process=process, end_is_told=False)
    launch.abort_on_error(mpi)
    monkeypatch.setattr(os, "getpid", lambda: process + 1)
    distributed_optimizer.DistributedOptimizer._check_finished(unfinished)
    sys.excepthook(ValueError, ValueError("in the child"), None)
    assert not aborted and "grsgd" not in (said := capsys.readouterr().err) and "in the child" in said
    monkeypatch.setattr(os, "getpid", lambda: process)
    distributed_optimizer.DistributedOptimizer._check_finished(unfinished)
    assert len(aborted) == 1 and "without optimizer.finish()" in capsys.readouterr().err


@pytest.mark.parametrize(
    "error, failed_here",
    [
        (ValueError("boom"), True),
        (LostRank("rank 1 lost"), False),
        (KeyboardInterrupt("terminated (SIGTERM)"), False),
    ],
)
def test_errors_that_say_all_have_no_traceback(error, failed_here, rank, capsys):
    mpi, aborted = rank
    launch.abort_on_error(mpi)
    sys.excepthook(type(error), error, None)
    said = capsys.readouterr().err
    assert aborted == [failed_here] and said.count(str(error)) == 1
    lines = [" failed:", "ValueError: boom"] if failed_here else [f": {error}"]
    assert said == "\n".join(["", f"grsgd: rank 0 of 2{lines[0]}", *lines[1:], ""])
