"""Sweeps: which runs a command makes, which are there already, and what it says of those that fail."""

import csv
from pathlib import Path
from types import SimpleNamespace

import pytest

from grsgd import config
from grsgd.cli import main
from grsgd.cli import sweep as module
from grsgd.cli.child import INTERRUPTED
from grsgd.cli.sweep import combinations, jobs_of, last_line, split, sweep
from grsgd.cli.sweep_result import NUMBERS, PLOT, TABLE, show
from grsgd.control_groups import GroupQuota
from grsgd.errors import UsageError
from grsgd.runs.run_file import load_run, save_run
from tests.support.runs import fake_run

DEMO = str(Path(__file__).parents[3] / "experiments" / "demo" / "dpsgd.toml")


@pytest.fixture(autouse=True)
def shown(monkeypatch):
    """The files of each table, in place of tables and plots."""
    found = []
    monkeypatch.setattr(module, "show", lambda files, folder: found.append([file.name for file in files]))
    return found


def options(folder, vary=("seed=0,1",), arguments=(), ranks=2, simulate=True, jobs="1"):
    given = {"config": DEMO, "vary": list(vary), "arguments": list(arguments), "out": str(folder)}
    return SimpleNamespace(ranks=ranks, simulate=simulate, jobs=jobs, **given)


def load(arguments):
    sets = [after for before, after in zip(arguments, arguments[1:], strict=False) if before == "--set"]
    return config.load(DEMO, sets)


class Process:
    def __init__(self, poll):
        self.poll = poll


class Runs:
    """Makes run files in place of ``grsgd``; ``codes``: exit codes by what the arguments have; ``reason``: of the
    runs' ends. A run ends at the ``looks``-th look at its process."""

    def __init__(self, codes=(), reason="epochs", looks=1):
        self.codes, self.reason, self.looks, self.made, self.logs, self.at_once = dict(codes), reason, looks, [], [], []
        self.running = 0

    def __call__(self, arguments, log=None):
        self.made.append(arguments)
        self.logs.append(log)
        self.running += 1
        self.at_once.append(self.running)
        return Process(self.polls(arguments, log).__next__)

    def polls(self, arguments, log):
        for _ in range(self.looks - 1):
            yield None
        self.running -= 1
        code = next((code for word, code in self.codes.items() if word in arguments), 0)
        if log:
            log.write_text("begun\nwhat went wrong\n\n")
        if not code or self.reason != "epochs":
            save_run(arguments[-1], fake_run(seed=len(self.made), reason=self.reason))
        while True:
            yield code


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


def test_a_run_that_leaves_no_file_is_no_success(tmp_path, capsys):
    assert sweep(options(tmp_path), load, lambda arguments, log=None: Process(lambda: 0)) == 1
    assert "0 of 2 runs are finished" in capsys.readouterr().err


@pytest.mark.parametrize("option", ["--save=model.pt", "--csv", "--checkpoint"])
def test_a_file_for_all_runs_is_refused(option, tmp_path):
    with pytest.raises(UsageError, match="names one file or folder"):
        sweep(options(tmp_path, arguments=[option, "x"]), load, Runs())


def test_a_run_that_diverges_is_finished(tmp_path, capsys):
    runs = Runs({"seed=0": 1}, reason="non-finite loss (nan) on rank 0 at step 3")
    assert sweep(options(tmp_path / "a"), load, runs) == 0 and len(runs.made) == 2
    assert sweep(options(tmp_path / "a"), load, runs) == 0 and len(runs.made) == 2
    assert "exit code" not in capsys.readouterr().err


def test_a_run_that_was_killed_before_its_models_were_tested_is_made_again(tmp_path):
    runs = Runs()
    sweep(options(tmp_path), load, runs)
    file = next(tmp_path.glob("seed=1-*.h5"))
    save_run(file, fake_run(accuracy=False))
    assert sweep(options(tmp_path), load, runs) == 0 and len(runs.made) == 3
    save_run(file, fake_run(accuracy=False, timing_only=True))
    assert sweep(options(tmp_path), load, runs) == 0 and len(runs.made) == 3


def test_the_table_shows_finished_runs_and_the_others_are_named(tmp_path, capsys, shown):
    assert sweep(options(tmp_path, ["seed=0,1,2"]), load, Runs({"seed=1": 3})) == 3
    assert [name.partition("-")[0] for name in shown[0]] == ["seed=0", "seed=2"]
    assert capsys.readouterr().err.endswith(
        "grsgd sweep: 2 of 3 runs are finished; the same command goes on\n  seed=1: exit code 3\n"
    )
    interrupted = Runs({"seed=1": INTERRUPTED})
    assert sweep(options(tmp_path, ["seed=0,1,2,3"]), load, interrupted) == INTERRUPTED
    assert capsys.readouterr().err.endswith("  seed=1: exit code 130\n  seed=3: not made\n")
    assert sweep(options(tmp_path, ["seed=0,1,2,3"]), load, Runs()) == 0
    assert [name.partition("-")[0] for name in shown[2]] == [f"seed={seed}" for seed in range(4)]


def test_runs_side_by_side(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(module, "cores", lambda: 4)
    runs = Runs({"seed=3": 1}, looks=3)
    assert sweep(options(tmp_path, ["seed=0,1,2,3,4"], simulate=False, jobs="auto"), load, runs) == 1
    assert runs.at_once == [1, 2, 1, 2, 1] or max(runs.at_once) == 2
    assert [log.suffix for log in runs.logs] == [".log"] * 5 and len(set(runs.logs)) == 5
    assert "grsgd sweep: seed=3: exit code 1: what went wrong" in capsys.readouterr().err
    alone = Runs()
    sweep(options(tmp_path, ["seed=3"], simulate=False), load, alone)
    assert alone.logs == [None]


def test_no_run_begins_after_an_interruption(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "cores", lambda: 2)
    runs = Runs({"seed=0": INTERRUPTED})
    assert sweep(options(tmp_path, ["seed=0,1,2,3"], jobs="2"), load, runs) == INTERRUPTED
    assert len(runs.made) == 2


@pytest.mark.parametrize(
    ("jobs", "ranks", "simulate", "expected"),
    [("1", 2, False, 1), ("auto", 2, False, 4), ("auto", 3, False, 2), ("auto", 16, False, 1), ("auto", 16, True, 8)]
    + [("3", 2, False, 3), ("9", 2, False, 4), ("9", 9, False, 1), ("9", 9, True, 8)],
)
def test_runs_at_a_time_are_limited_by_the_cores(jobs, ranks, simulate, expected, monkeypatch, capsys):
    monkeypatch.setattr(module, "cores", lambda: 8)
    assert jobs_of(options("a", ranks=ranks, simulate=simulate, jobs=jobs)) == expected
    said = f"{expected} of 9 runs at a time, because there are 8 cores"
    assert (said in capsys.readouterr().err) == (jobs == "9")


def test_cores_are_those_that_this_process_may_use(monkeypatch):
    monkeypatch.setattr(module.os, "sched_getaffinity", lambda process: {0, 1, 2}, raising=False)
    for quota, expected in ((None, 3), (GroupQuota(2.5, 0.1), 2), (GroupQuota(0.5, 0.1), 1), (GroupQuota(9, 0.1), 3)):
        monkeypatch.setattr(module, "cpu_quota", lambda quota=quota: quota)
        assert module.cores() == expected


@pytest.mark.parametrize("jobs", ["0", "-1", "two", ""])
def test_wrong_numbers_of_jobs(jobs):
    with pytest.raises(UsageError, match="must be a whole number above 0, or auto"):
        jobs_of(options("a", jobs=jobs))


def test_the_last_line_of_a_log(tmp_path):
    log = tmp_path / "a.log"
    assert last_line(log) == ""
    log.write_text("one\n\n  two \n\n")
    assert last_line(log) == ": two"


def test_a_table_with_intervals_and_a_plot(tmp_path, capsys):
    files = [tmp_path / f"{rate}-{seed}.h5" for rate in (0.05, 0.1) for seed in range(3)]
    for file in files:
        rate, seed = file.stem.split("-")
        config = f"seed = {seed}\n[optimizer]\nlr = {rate}\n[algorithm]\nname = 'dpsgd'\n"
        accuracy = float(rate) + 0.01 * int(seed)
        save_run(file, fake_run("dpsgd", seed=int(seed), config=config, final_test_accuracy=accuracy))
    show(files, tmp_path)
    said = capsys.readouterr().out
    assert "6.00 ± 2.48" in said and "11.00 ± 2.48" in said and (tmp_path / TABLE).read_text() in said
    rows = list(csv.DictReader((tmp_path / NUMBERS).open()))
    assert [(row["optimizer.lr"], row["seeds"]) for row in rows] == [("0.05", "3"), ("0.1", "3")]
    assert (tmp_path / PLOT).read_bytes().startswith(b"\x89PNG")
    show([], tmp_path / "nothing")
    assert not (tmp_path / "nothing").exists()


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
