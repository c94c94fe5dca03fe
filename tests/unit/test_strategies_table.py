"""The tables of `make table-strategies`, from run files made by hand."""

import math
from dataclasses import replace

import numpy as np
import pytest
from runs import fake_run

from experiments.cache import source
from experiments.strategies import __main__ as strategies
from grsgd.results import save_run
from grsgd.strategies import STRATEGIES

EQUAL, STRAGGLERS = strategies.SETTINGS
SEEDS = [((0, 2, 4, 8), (10, 30)), ((0, 3, 6, 9), (20, 30)), ((0, 1, 2, 4), (0, 10))]
"""Times and steps."""


def hand_made(times=(0.0, 2.0, 4.0, 8.0), steps=(10, 30), **attributes):
    """Two workers and a server; accuracies 0, 0.2, 0.4, 0.6, of which the last is the target."""
    run = fake_run("parameter_server", ranks=3, snapshots=4, **attributes)
    run.curve["time"] = np.array(times)
    run.ranks["steps"] = np.array([*steps, 0])
    ages = np.array([0, 1, 2, 3, 5, 6, 100])
    of_server = np.array([4, 3, 3, 1, 3, 5, 1])
    run.staleness |= {"value": ages, "count": np.stack([0 * ages, 0 * ages, of_server])}
    return run


def test_result():
    found = strategies.result(hand_made())
    assert found.seconds == 8.0 and found.accuracy == pytest.approx(0.6)
    assert found.staleness == pytest.approx((3 + 6 + 3 + 15 + 30 + 100) / 20)
    assert found.buckets == pytest.approx((0.2, 0.3, 0.2, 0.3))
    assert found.shares == pytest.approx((0.25, 0.75))
    assert found.rate == pytest.approx(40 / 8)


def test_median_of_seeds():
    seeds = [strategies.result(hand_made(times, steps)) for times, steps in SEEDS]
    found = strategies.median(seeds)
    assert found.seconds == 8.0 and found.shares == pytest.approx((0.25, 0.75)) and found.rate == pytest.approx(5.0)
    missed = seeds[0]._replace(seconds=math.nan)
    assert math.isnan(strategies.median([missed, *seeds[1:]]).seconds)


def results(**seconds):
    made = strategies.result(hand_made())
    return {name: made._replace(seconds=seconds[name]) for name in STRATEGIES}


def test_table():
    found = results(bsp=10.0, asp=7.0, ssp=8.2, dssp=math.nan, adsp=8.0)
    lines = strategies.table(found, 0.6).splitlines()
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    assert cells[0][:3] == ["strategy", "to 60 % [s]", "best [%]"]
    assert [row[0] for row in cells[2:]] == list(STRATEGIES)
    assert cells[2] == ["bsp", "10.00", "60.0", "7.85", "20", "30", "20", "30", "25 75", "5.0"]
    assert cells[5][1] == "—"


def test_shares_of_many_workers():
    values = (0.11, 0.04, *8 * [0.1], 0.05)
    assert strategies.shares(values) == "worker 1: 4.0; others: 5.0 to 11.0"


def test_verdict_says_where_the_claim_does_not_hold():
    found = results(bsp=10.0, asp=7.0, ssp=8.2, dssp=math.nan, adsp=8.0)
    found["bsp"] = found["bsp"]._replace(accuracy=0.58)
    lines = strategies.verdict(found).splitlines()
    assert lines[0] == "adsp against bsp: 20.0 % less time; best +2.0 points"
    assert lines[1] == "adsp against asp: 14.3 % more time; best +0.0 points"
    assert lines[2] == "adsp against ssp: 2.4 % less time; best +0.0 points"
    assert "not known" in lines[3]
    assert lines[-1] == (
        "Here: as much less time as that, or more, than bsp; no less time than asp; less time, but not so much less, "
        "than ssp; time not known against dssp."
    )


def cells(ranks=3, simulated=False):
    return [
        strategies.Cell(strategy, setting, 0, ranks, simulated)
        for setting in strategies.SETTINGS
        for strategy in STRATEGIES
    ]


def today(cell):
    clock = {"clock": "virtual", "network": strategies.network(strategies.NETWORK, "switch").summary()}
    return source() | {
        "config": cell.config().toml(),
        "stopped": strategies.FINISHED,
        **(clock | {"compute": strategies.COMPUTE} if cell.simulated else {"clock": "wall"}),
    }


def save(run, path):
    known = {name: value for name, value in run.attributes.items() if value is not None}  # no commit without git
    save_run(path, replace(run, attributes=known))


@pytest.mark.parametrize("simulated", [False, True])
def test_tables_of_runs_that_are_there(simulated, tmp_path, monkeypatch, capsys):
    for cell in cells(simulated=simulated):
        save(hand_made(**today(cell)), cell.path(tmp_path))

    def not_again(*arguments, **options):
        raise AssertionError("run again")

    monkeypatch.setattr(strategies, "run_cell", not_again)
    monkeypatch.setattr("sys.argv", ["strategies", "--out", str(tmp_path), "--ranks", "3", *["--simulate"] * simulated])
    assert strategies.main() == 0
    printed = capsys.readouterr().out
    assert printed.count("to 60 % [s]") == 2 and "Worker 1 is 3 times slower" in printed
    assert ("simulated" in printed) == simulated
    assert all(printed.count(f"| {name} ") == 2 for name in STRATEGIES)


@pytest.mark.parametrize("simulated", [False, True])
def test_only_a_run_that_would_be_made_today_is_taken(simulated, tmp_path):
    cell = cells(simulated=simulated)[-1]
    assert strategies.done(cell, tmp_path) is None
    made = hand_made(**today(cell))
    save(made, cell.path(tmp_path))
    assert strategies.done(cell, tmp_path) is not None
    changes = {"version": "0.0.0", "commit": "0123456789ab", "stopped": "interrupted"}
    changes["config"] = made.attributes["config"].replace("batch_size = 16", "batch_size = 32")
    if simulated:
        changes |= {"compute": "constant:0.2", "network": "another"}
    for name, value in changes.items():
        save(replace(made, attributes=made.attributes | {name: value}), cell.path(tmp_path))
        assert strategies.done(cell, tmp_path) is None, name


def test_settings_differ_in_stragglers_alone():
    configs = {cell: cell.config() for cell in cells(ranks=4)}
    for cell, config in configs.items():
        config.check_ranks(4)
        assert config.algorithm_options.strategy == cell.strategy
        slow, paused = config.stragglers.slowdown, config.stragglers.tail
        assert (slow, set(paused)) == (({1: 3.0}, {0, 1, 2}) if cell.setting == STRAGGLERS else ({}, set()))
    first = cells(ranks=4)[0]
    plain = [replaced.config() for replaced in (first, first._replace(setting=STRAGGLERS))]
    assert plain[0] == plain[1].model_copy(update={"stragglers": plain[0].stragglers})
    assert len({cell.name for cell in cells() + cells(simulated=True)}) == 20


def test_simulated_run(tmp_path, monkeypatch):
    base = tmp_path / "base.toml"
    text = strategies.BASE.read_text().replace("epochs = 8", "epochs = 0.1").replace("snapshots = 32", "snapshots = 1")
    base.write_text(text.replace('"mnist-5k"', '"synthetic"').replace('"mlp"', '"dnn"'))
    monkeypatch.setattr(strategies, "BASE", base)
    cell = strategies.Cell("adsp", STRAGGLERS, 0, 3, True)
    (run,) = strategies.make_runs([cell], tmp_path).values()
    assert run.attributes["clock"] == "virtual" and strategies.done(cell, tmp_path) is not None
    assert len(strategies.result(run).shares) == 2


def test_a_run_that_fails_is_told_and_leaves_no_file(tmp_path, monkeypatch):
    monkeypatch.setattr(strategies, "find_mpiexec", lambda: "false")
    cell = strategies.Cell("bsp", EQUAL, 0, 3, False)
    with pytest.raises(strategies.Unfinished, match="bsp-equal-n2-mpi-seed0: exit code 1"):
        strategies.run_cell(cell, tmp_path)
    monkeypatch.setattr(strategies, "simulate", lambda *arguments: "interrupted")
    with pytest.raises(strategies.Unfinished, match="interrupted"):
        strategies.run_cell(cell._replace(simulated=True), tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("arguments", [["--ranks", "2"], ["--seeds", "0"]])
def test_bad_options(monkeypatch, arguments):
    monkeypatch.setattr("sys.argv", ["strategies", *arguments])
    with pytest.raises(SystemExit) as ended:
        strategies.main()
    assert ended.value.code == 2
