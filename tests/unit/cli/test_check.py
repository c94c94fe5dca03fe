"""``--check`` of train and simulate: what would be run, and the same refusals, with neither job nor training."""

import pytest

from grsgd import memory
from grsgd.cli import main

CONFIG = """
[algorithm]
name = "dpsgd"
[model]
name = "mlp"
hidden = [4]
[data]
name = "synthetic"
samples = 100
shape = [1, 4, 4]
batch_size = 4
[train]
epochs = 2
snapshots = 5
"""
SIZE = 4 * (16 * 4 + 4 + 4 * 10 + 10)


@pytest.fixture
def check(tmp_path, monkeypatch, capsys):
    """Checks a run; returns exit code, the lines that are printed by their first word, and stderr."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run.toml").write_text(CONFIG)

    def run(*arguments, command="train"):
        code = main([command, "run.toml", "--check", *arguments])
        output, error = capsys.readouterr()
        assert sorted(path.name for path in tmp_path.iterdir()) == ["run.toml"]
        return code, dict(line.split(maxsplit=1) for line in output.splitlines()), error

    return run


def test_what_would_be_run(check):
    code, found, error = check("-n", "5")
    assert code == 0 and not error
    assert found["algorithm"].startswith("dpsgd (synchronous) on 5 ranks, device ")
    assert found["model"] == f"mlp: {SIZE // 4} parameters, {SIZE} B in float32"
    expected = "synthetic: 100 training and 20 test samples of 1x4x4; 20 training samples per rank"
    assert found["data"].startswith(expected)
    assert found["end"] == "after 2 epochs: 200 samples of all ranks, 10 steps per rank"
    assert found["snapshots"].startswith("5, one every 2 steps; ")
    assert found["sent"].startswith(
        f"{2 * SIZE} B per rank that trains and step, {2 * SIZE * 50 / 1024:.2f} KiB in the run"
    )
    assert "on 5 ranks; " in found["memory"] and " are free on this host" in found["memory"]


def test_a_job_says_how_many_ranks_it_has(check, monkeypatch):
    assert " on 1 rank, " in check()[1]["algorithm"]
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "3")
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "0")
    assert " on 3 ranks, " in check()[1]["algorithm"]
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "1")
    assert check() == (0, {}, "")


@pytest.mark.parametrize(
    "settings, key, text",
    [
        (["train.steps=7"], "end", "after 1.4 epochs: 140 samples of all ranks, 7 steps per rank"),
        (["train.seconds=3"], "end", "after 3 s"),
        (["algorithm.name=asgd", "train.steps=7"], "algorithm", "asgd (asynchronous) on 5 ranks, of which 4 train, "),
        (["algorithm.name=cssgd"], "data", "; all ranks share each batch of 20"),
        (
            ["algorithm.name=gossip", "algorithm.adaptive=true"],
            "sent",
            "not known before the run: the models",
        ),
        (["algorithm.name=grsgd"], "sent", "on a network that keeps up; less on a slower one)"),
        (["data.alpha=0.5"], "data", " to "),
        (["data.replication=2"], "data", "; 40 training samples per rank"),
        (["dtype=float64"], "model", f"{2 * SIZE} B in float64"),
    ],
)
def test_what_depends_on_the_configuration(check, settings, key, text):
    code, found, error = check("--ranks", "5", *(word for setting in settings for word in ("--set", setting)))
    assert code == 0 and not error and text in found[key]


def test_simulated_runs(check):
    code, found, _ = check("--ranks", "3", "--network", "1gbit,50us", "--timing-only", command="simulate")
    assert code == 0 and " on 3 ranks, " in found["algorithm"] and found["memory"] == "none for models: --timing-only"


def test_a_run_stops_at_its_target_in_simulated_time_alone(check):
    arguments = "--ranks", "2", "--set", "train.target_accuracy=0.5", "--set", "train.stop_at_target=true"
    code, found, _ = check(*arguments, command="simulate")
    assert code == 0 and found["sent"].endswith("per rank)")
    code, found, error = check(*arguments)
    assert code == 2 and not found and "train.stop_at_target = true: only in simulated time" in error


@pytest.mark.parametrize("command", ["train", "simulate"])
@pytest.mark.parametrize(
    "arguments, reason",
    [
        (["--set", "train.epoch=3"], "train.epoch: unknown key (did you mean epochs?)"),
        (["--set", "algorithm.topology=circle"], "algorithm dpsgd: 'circle' is neither a matrix file nor one of ring"),
        (["--set", "stragglers.slowdown.9=2"], "stragglers.slowdown: rank 9 in a job of 4"),
        (["--set", "model.hidden=[4000000,4000000]"], " are free"),
        (["--set", "optimizer.momentun=0.9"], "optimizer.momentun: unknown key (did you mean momentum?)"),
        (["--set", "data.name=cifar-10"], "`grsgd data fetch cifar-10` gets it"),
        (["--out", "nowhere/run.h5"], "nowhere"),
        (["--ranks", "0"], "--ranks 0: must be 1 or more"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(check, command, arguments, reason):
    code, found, error = check("--ranks", "4", *arguments, command=command)
    assert code == 2 and not found and reason in error and error.count("\n") == 1, error


def test_memory_of_other_ranks_may_be_on_other_hosts(check, monkeypatch):
    monkeypatch.setattr(memory, "available", lambda: 25 * SIZE)
    code, found, _ = check("--ranks", "4")
    assert code == 0 and f"; only {25 * SIZE / 1024:.2f} KiB are free on this host" in found["memory"]


def test_ranks_are_for_the_check_alone(tmp_path, capsys):
    (tmp_path / "run.toml").write_text(CONFIG)
    assert main(["train", str(tmp_path / "run.toml"), "-n", "4"]) == 2
    expected = "grsgd: error: --ranks 4: only with --check; `grsgd run -n 4` starts 4 ranks\n"
    assert capsys.readouterr().err == expected
