"""The sweep behind `make figure-scaling`, on few ranks."""

import csv

import pytest

from experiments.scaling import __main__ as scaling
from grsgd.algorithms import ALGORITHMS
from grsgd.simulate.run import simulate


def run(monkeypatch, out, *arguments):
    monkeypatch.setattr("sys.argv", ["scaling", "--out", str(out), "--workers", "1", *arguments])
    return scaling.main()


def test_sweep(monkeypatch, tmp_path, capsys):
    out = tmp_path / "scaling.pdf"
    arguments = "--ranks", "3", "--steps", "2"
    monkeypatch.setattr(scaling, "NETWORKS", {"1 Gbit/s, 50 us": "1gbit,50us"})
    assert run(monkeypatch, out, *arguments) == 0
    printed = capsys.readouterr().out
    with out.with_suffix(".csv").open() as file:
        rows = list(csv.DictReader(file))
    assert {row["algorithm"] for row in rows} == set(ALGORITHMS)
    assert all(name in printed for name in ALGORITHMS)
    assert len(rows) == len(ALGORITHMS) * len(scaling.SPEEDS)
    seconds = {(r["algorithm"], r["ranks"], r["network"], r["speed"]): float(r["seconds_per_step"]) for r in rows}
    assert all(value >= scaling.COMPUTE_SECONDS * (1 - 1e-9) for value in seconds.values())
    one_gigabit, equal = next(iter(scaling.NETWORKS)), next(iter(scaling.SPEEDS))
    M = 25_557_032 * 4
    ring = scaling.COMPUTE_SECONDS + 2 * (3 - 1) / 3 * M * 8 / 1e9
    assert seconds["ring_allreduce", "3", one_gigabit, equal] == pytest.approx(ring, rel=0.01)
    assert all(out.with_suffix(suffix).stat().st_size > 10_000 for suffix in (".pdf", ".png"))

    def not_again(*arguments, **options):
        raise AssertionError("simulated again")

    monkeypatch.setattr(scaling, "simulate", not_again)
    assert run(monkeypatch, out, *arguments) == 0
    assert capsys.readouterr().out == printed


def test_a_run_of_another_configuration_is_not_taken(tmp_path):
    cell = scaling.Cell("dpsgd", 2, *(next(iter(table)) for table in (scaling.NETWORKS, scaling.SPEEDS)), steps=1)
    assert scaling.done(cell, tmp_path) is None
    spec = scaling.network("1gbit,50us", "switch")
    simulate(cell.config(), 2, spec, cell.path(tmp_path), "constant:0.2", timing_only=True)
    assert scaling.done(cell, tmp_path) is None


def test_impossible_cells_are_named(capsys, monkeypatch):
    def refuse(options, ranks):
        raise ValueError("too many")

    monkeypatch.setattr(ALGORITHMS["dpsgd"], "check", refuse)
    cells = [scaling.Cell(name, 2, "1 Gbit/s, 50 us", "equal speeds", 1) for name in ("dpsgd", "grsgd")]
    assert [cell.algorithm for cell in scaling.possible(cells)] == ["grsgd"]
    assert "dpsgd on 2 ranks: algorithm dpsgd: too many" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [["--ranks", "1"], ["--ranks", "four"], ["--steps", "0"], ["--workers", "0"]])
def test_bad_options(monkeypatch, tmp_path, capsys, arguments):
    with pytest.raises(SystemExit) as ended:
        run(monkeypatch, tmp_path / "x.pdf", *arguments)
    assert ended.value.code == 2
