"""Sweeps: which runs a command makes, which are there already, and what it says of those that fail."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from grsgd import config
from grsgd.cli import main
from grsgd.cli.child import INTERRUPTED
from grsgd.cli.sweep import combinations, split, sweep
from grsgd.errors import UsageError
from grsgd.runs.run_file import load_run, save_run
from tests.support.runs import fake_run

DEMO = str(Path(__file__).parents[3] / "experiments" / "demo" / "dpsgd.toml")


def options(folder, vary=("seed=0,1",), arguments=(), ranks=2, simulate=True):
    return SimpleNamespace(
        config=DEMO, vary=list(vary), arguments=list(arguments), ranks=ranks, simulate=simulate, out=str(folder)
    )


def load(arguments):
    sets = [after for before, after in zip(arguments, arguments[1:], strict=False) if before == "--set"]
    return config.load(DEMO, sets)


class Runs:
    """Makes run files in place of ``grsgd``; ``codes``: exit codes by what the arguments have."""

    def __init__(self, codes=()):
        self.codes, self.made = dict(codes), []

    def __call__(self, arguments):
        self.made.append(arguments)
        if code := next((code for word, code in self.codes.items() if word in arguments), 0):
            return code
        save_run(arguments[-1], fake_run())
        return 0


def test_all_combinations_are_run_once(tmp_path):
    runs = Runs()
    both = ["seed=0,1", "optimizer.lr=0.05,0.1"]
    assert sweep(options(tmp_path / "a", both), load, runs) == 0
    sets = [[word for word in arguments if "=" in word and "/" not in word] for arguments in runs.made]
    assert sets == [[f"seed={seed}", f"optimizer.lr={lr}"] for seed in (0, 1) for lr in (0.05, 0.1)]
    assert runs.made[0][:2] == ["simulate", DEMO] and runs.made[0][2:4] == ["--ranks", "2"]
    assert sweep(options(tmp_path / "a", both), load, runs) == 0 and len(runs.made) == 4
    assert sweep(options(tmp_path / "a", ["seed=0,1,2", both[1]]), load, runs) == 0 and len(runs.made) == 6
    sweep(options(tmp_path / "b", simulate=False), load, runs)
    assert runs.made[-1][:4] == ["run", "-n", "2", DEMO]


def test_a_run_of_other_ranks_options_or_networks_is_not_taken_for_one(tmp_path):
    runs, network = Runs(), tmp_path / "network.toml"
    network.write_text('bandwidth = "1gbit"')
    given = {"arguments": ["--network", str(network)]}
    for changed in ({}, {"ranks": 4}, {"arguments": ["--network", "1gbit,50us"]}, given, {"simulate": False}):
        before = len(runs.made)
        for expected in (2, 2):
            sweep(options(tmp_path / "a", **changed), load, runs)
            assert len(runs.made) == before + expected
    network.write_text('bandwidth = "2gbit"')
    sweep(options(tmp_path / "a", **given), load, runs)
    assert len(runs.made) == 12


def test_a_run_that_fails_is_named_and_made_again(tmp_path, capsys):
    runs = Runs({"seed=0": 1})
    assert sweep(options(tmp_path / "a"), load, runs) == 1 and len(runs.made) == 2
    assert "grsgd sweep: seed=0: exit code 1" in capsys.readouterr().err
    runs.codes = {}
    assert sweep(options(tmp_path / "a"), load, runs) == 0 and len(runs.made) == 3
    interrupted = Runs({"seed=0": INTERRUPTED})
    assert sweep(options(tmp_path / "b"), load, interrupted) == INTERRUPTED and len(interrupted.made) == 1


def test_values_between_commas():
    assert split("0.05,0.1") == ["0.05", "0.1"]
    assert split('[1, 2], [3],"a,b",{x = 1, y = 2}') == ["[1, 2]", "[3]", '"a,b"', "{x = 1, y = 2}"]
    for wrong in ("seed", "seed=", "=1", "seed= ,1"):
        with pytest.raises(UsageError, match="expected KEY=VALUE,VALUE"):
            list(combinations([wrong]))


def test_wrong_keys_and_options_are_refused_before_the_first_run(tmp_path, capsys):
    words = ["sweep", "-n", "2", "--simulate", "--out", str(tmp_path / "a"), "--vary"]
    assert main([*words, "train.speed=1,2", DEMO]) == 2 and "speed" in capsys.readouterr().err
    assert main([*words, "seed=1,2", DEMO, "--out", "x"]) == 2 and "--out: not after" in capsys.readouterr().err
    assert not (tmp_path / "a").exists()


@pytest.mark.exhaustive
def test_a_sweep_in_simulated_time(tmp_path):
    few = ["--set", "data.name='synthetic'", "--set", "data.samples=40", "--set", "data.shape=[1,2,2]"]
    few += ["--set", "data.classes=2", "--set", "train.epochs=1", "--compute", "constant:0.1"]
    words = ["sweep", "-n", "2", "--simulate", "--out", str(tmp_path), "--vary", "seed=3"]
    assert main([*words, DEMO, *few]) == 0
    (file,) = tmp_path.glob("seed=3-*.h5")
    assert load_run(file).attributes["seed"] == 3
