"""The smallest of ``make figures-multicast``: it measures, goes on where it was ended, and writes what it found."""

import csv
import sys

import pytest

from experiments.multicast.figures import __main__ as program
from grsgd.testbed.hosts import Testbed, TestbedError

ARGUMENTS = ["--figure=8", "--figure=9", "--ranks=3", "--rounds=1"]


@pytest.fixture
def machine():
    """One that can have a testbed."""
    try:
        with Testbed(hosts=4, cpu=0.2, medium="shared") as testbed:
            testbed.mpiexec([])
    except TestbedError as error:
        pytest.skip(str(error))


def test_two_figures_of_three_nodes(machine, monkeypatch, tmp_path, capfd):
    monkeypatch.setattr(sys, "argv", ["figures", *ARGUMENTS, f"--out={tmp_path}"])
    assert program.main() == 0
    assert "7 runs, of which 0 exist" in capfd.readouterr().out
    with (tmp_path / "measured.csv").open() as file:
        rows = {row["method"]: row for row in csv.DictReader(file)}
    assert len(rows) == 7 and len({row["samples"] for row in rows.values()}) == 1, "equal work"
    reference, unicast, coded = (rows[name] for name in ("SSGD by multicast", "SSGD by unicast", "CSSGD, r = 2"))
    model = float(reference["once"]) / 3
    for row, models, sent_again in ((reference, 3, 0.1), (unicast, 6, 0.5), (coded, 1.5, 0.1)):
        assert float(row["once"]) == pytest.approx(models * model, rel=0.01)
        assert 1 <= float(row["interfaces"]) / float(row["once"]) < 1 + sent_again
    assert float(coded["per_receiver"]) == pytest.approx(2 * float(coded["once"]))
    for name in ("figure-8.png", "figure-9.csv", "page.md"):
        assert (tmp_path / name).stat().st_size > 100
    assert program.main() == 0
    assert "7 runs, of which 7 exist; the others take about 0 s" in capfd.readouterr().out
