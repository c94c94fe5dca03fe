"""The sweep behind `make figure-scaling`, on few ranks."""

import csv

import numpy as np
import pytest

from experiments.runner import code, store
from experiments.runner.kept import KeptRuns
from experiments.runner.run_spec import Link
from experiments.scaling import __main__ as scaling
from grsgd.algorithms import ALGORITHMS
from grsgd.simulator.run import simulate
from tests.support.runs import fake_run


def run(monkeypatch, out, *arguments):
    monkeypatch.setattr("sys.argv", ["scaling", "--out", str(out), "--workers", "1", *arguments])
    return scaling.main()


@pytest.mark.parametrize(
    "algorithms",
    [("ring_allreduce", "gosgd"), pytest.param(tuple(ALGORITHMS), marks=pytest.mark.exhaustive)],
    ids=["two", "all"],
)
def test_sweep(algorithms, monkeypatch, tmp_path, capsys):
    out = tmp_path / "scaling.pdf"
    names = [] if len(algorithms) == len(ALGORITHMS) else [f"--algorithm={name}" for name in algorithms]
    arguments = "--ranks", "3", "--steps", "2", *names
    monkeypatch.setattr(scaling, "NETWORKS", {"1 Gbit/s, 50 us": Link("1gbit", nominal=True)})
    assert run(monkeypatch, out, *arguments) == 0
    printed = capsys.readouterr().out
    with out.with_suffix(".csv").open() as file:
        rows = list(csv.DictReader(file))
    assert {row["algorithm"] for row in rows} == set(algorithms)
    assert all(name in printed for name in algorithms)
    assert len(rows) == len(algorithms) * len(scaling.SPEEDS)
    seconds = {(r["algorithm"], r["ranks"], r["network"], r["speed"]): float(r["seconds_per_step"]) for r in rows}
    assert all(value >= scaling.COMPUTE_SECONDS * (1 - 1e-9) for value in seconds.values())
    one_gigabit, equal = next(iter(scaling.NETWORKS)), next(iter(scaling.SPEEDS))
    M = 25_557_032 * 4
    ring = scaling.COMPUTE_SECONDS + 2 * (3 - 1) / 3 * M * 8 / 1e9
    assert seconds["ring_allreduce", "3", one_gigabit, equal] == pytest.approx(ring, rel=0.01)
    waits_for_nobody = seconds["gosgd", "3", one_gigabit, equal]
    assert waits_for_nobody == pytest.approx(scaling.COMPUTE_SECONDS), "what is drained at the end is not a step's"
    drained = {row["algorithm"]: float(row["drain_seconds"]) for row in rows if row["speed"] == equal}
    assert drained["gosgd"] > 0.5 * M * 8 / 1e9 and drained["ring_allreduce"] == 0
    sent = {row["algorithm"]: float(row["models_sent_per_step"]) for row in rows if row["speed"] == equal}
    assert sent["ring_allreduce"] == pytest.approx(2 * (3 - 1) / 3) and sent["gosgd"] < 1
    assert all(out.with_suffix(suffix).stat().st_size > 10_000 for suffix in (".pdf", ".png"))

    def not_again(*arguments, **options):
        raise AssertionError("simulated again")

    monkeypatch.setattr(store, "simulate", not_again)
    assert run(monkeypatch, out, *arguments) == 0
    assert capsys.readouterr().out == printed


def test_every_algorithm_can_be_swept(capsys):
    network = "1 Gbit/s, 50 us"
    points = [scaling.ScalingRun(name, 3, network, speed, 2) for name in ALGORITHMS for speed in scaling.SPEEDS]
    assert scaling.select_possible(points) == points and not capsys.readouterr().err


def test_time_per_step_is_that_of_the_steps():
    """Two ranks that take 10 steps of 2 s, and 30 of 1 s: 1.5 a second together. What comes after them is drained."""
    run = fake_run(ranks=2, snapshots=2, batch_size=50, model_bytes=2**20)
    run.ranks |= {
        "steps": np.array([10, 30]),
        "compute_seconds": np.array([12.0, 24.0]),
        "communicate_seconds": np.array([5.0, 5.0]),
        "wait_seconds": np.array([3.0, 1.0]),
    }
    run.curve["time"] = np.array([0.0, 37.0])
    assert scaling.numbers_of(run) == pytest.approx((2 / 1.5, 7.0, 2 / 40))


@pytest.fixture
def point():
    return scaling.ScalingRun("dpsgd", 2, *(next(iter(table)) for table in (scaling.NETWORKS, scaling.SPEEDS)), steps=1)


def test_a_run_is_kept_until_its_code_changes(point, tmp_path, monkeypatch):
    assert not KeptRuns(tmp_path).load([point])
    assert KeptRuns(tmp_path).make_all([point]).keys() == KeptRuns(tmp_path).load([point]).keys() == {point}
    monkeypatch.setattr(code, "digest_code", lambda: "another version")
    assert not KeptRuns(tmp_path).load([point])


def test_a_run_that_has_not_finished_is_removed(point, tmp_path, monkeypatch):
    def interrupted(config, ranks, spec, out, compute, timing_only):
        simulate(config, ranks, spec, out, compute, timing_only=timing_only)
        return "interrupted"

    monkeypatch.setattr(store, "simulate", interrupted)
    with pytest.raises(scaling.Unfinished, match="dpsgd-n2-.*: interrupted"):
        KeptRuns(tmp_path).store.simulate(point.spec())
    assert not list(tmp_path.rglob("*.h5"))


def test_impossible_points_are_named(capsys, monkeypatch):
    def refuse(options, ranks):
        raise ValueError("too many")

    monkeypatch.setattr(ALGORITHMS["dpsgd"], "check", refuse)
    points = [scaling.ScalingRun(name, 2, "1 Gbit/s, 50 us", "equal speeds", 1) for name in ("dpsgd", "grsgd")]
    assert [point.algorithm for point in scaling.select_possible(points)] == ["grsgd"]
    assert "dpsgd on 2 ranks: algorithm dpsgd: too many" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments", [["--ranks", "1"], ["--ranks", "four"], ["--steps", "0"], ["--workers", "0"], ["--algorithm", "none"]]
)
def test_bad_options(monkeypatch, tmp_path, capsys, arguments):
    with pytest.raises(SystemExit) as ended:
        run(monkeypatch, tmp_path / "x.pdf", *arguments)
    assert ended.value.code == 2
