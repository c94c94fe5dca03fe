"""The numbers that pages quote: where they are recorded beside the page, the page has the recorded ones."""

import csv
import re
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

import pytest

from experiments import figures
from experiments.asynchronous import draw as asynchronous_draw
from experiments.asynchronous.points import StrategyRun
from experiments.asynchronous.result import StrategyNumbers
from experiments.asynchronous.verdict import verdicts as asynchronous_verdicts
from experiments.atlas import draw as atlas_draw
from experiments.atlas.points import AtlasRun
from experiments.bench import side_by_side
from experiments.multicast import measure as multicast_measure
from experiments.multicast import verdict as multicast_verdict
from experiments.papers import ROOT
from experiments.swing import measure as swing_measure
from experiments.swing import tables as swing_tables
from experiments.swing.verdict import verdicts as swing_verdicts
from grsgd.errors import UsageError


class Page(NamedTuple):
    """A page, and what it must have of numbers that are recorded: types of their points and results, and its lines."""

    name: str
    point: type
    result: type
    lines: Callable[[dict], Iterable[str]]


def of_multicast(results: dict) -> Iterable[str]:
    return [multicast_verdict.table(results, ranks) for ranks in sorted({point.ranks for point in results})]


PAGES = {
    "figure-atlas.csv": Page(
        "findings/atlas.md", AtlasRun, atlas_draw.AtlasNumbers, lambda found: [atlas_draw.table(found)]
    ),
    "verdict-asynchronous.csv": Page(
        "findings/asynchronous.md",
        StrategyRun,
        StrategyNumbers,
        lambda found: [
            asynchronous_draw.overview(found),
            asynchronous_draw.table(found),
            *asynchronous_verdicts(found),
        ],
    ),
    "verdict-swing.csv": Page(
        "findings/swing.md",
        swing_measure.AllreduceRun,
        swing_measure.AllreduceNumbers,
        lambda found: [swing_tables.times(found), swing_tables.traffic(found), *swing_verdicts(found)],
    ),
    "verdict-multicast.csv": Page(
        "findings/multicast.md", multicast_measure.MediumRun, multicast_measure.MediumNumbers, of_multicast
    ),
}
BENCH = {"bench-training-2.csv": "Steps", "bench-wire-4.csv": "Between hosts"}
"""The section of docs/findings/benchmarks.md whose medians with ranges a CSV file records."""
WITH_RANGE = re.compile(r"\d+\.\d+ \(\d+\.\d+-\d+\.\d+\)")


def unlike(page: str, lines: Iterable[str]) -> list[str]:
    """Return the lines that a page does not have, whatever the width of tables and the marks of lists."""
    there = {plain(line) for line in page.splitlines()}
    wanted = [line for text in lines for line in text.splitlines()]
    return [line for line in wanted if plain(line) and plain(line) not in there]


def plain(line: str) -> str:
    return re.sub(r"[\s|:-]+", " ", line).strip()


def test_pages_have_the_numbers_that_are_recorded():
    """Of each experiment whose numbers lie beside the pages by now."""
    files = sorted(figures.RECORDED.glob("*.csv"))
    assert PAGES.keys() & {file.name for file in files}, "without recorded numbers this test shows nothing"
    for file in files:
        if file.name in PAGES:
            page = PAGES[file.name]
            results = figures.read_csv(file, page.point, page.result)
            assert unlike((ROOT / "docs" / page.name).read_text(), page.lines(results)) == [], file.name
        elif file.name in BENCH:
            text = (ROOT / "docs" / "findings" / "benchmarks.md").read_text()
            section = re.search(rf"^### {BENCH[file.name]}$(.*?)(?=^##|\Z)", text, re.M | re.S)[1]
            with file.open(newline="") as numbers:
                values = {row["value"] for row in csv.DictReader(numbers)}
            assert set(WITH_RANGE.findall(section)) <= values, file.name


# ---- how they are written and recorded

NAN = float("nan")
ATLAS = {
    AtlasRun("gpt", "lasgd", 4, "10mbit", 4, True): atlas_draw.AtlasNumbers(0.2, 0.9, 12.0, 113.0, 120.0),
    AtlasRun("gpt", "lasgd", 4, "10mbit", 4, False): atlas_draw.AtlasNumbers(0.18, 0.9, NAN, 113.0, NAN),
}


def test_numbers_are_read_as_they_were_written(tmp_path, monkeypatch):
    monkeypatch.setattr(figures, "commit", lambda: "0123456789ab")
    figures.write_csv(ATLAS, tmp_path / "a.csv")
    read = figures.read_csv(tmp_path / "a.csv", AtlasRun, atlas_draw.AtlasNumbers)
    assert repr(read) == repr(ATLAS)
    with (tmp_path / "a.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert all(row["commit"] == "0123456789ab" and row["machine"] and row["made"] for row in rows)


def test_a_page_with_another_number_is_found():
    page = f"# The atlas\n\n{atlas_draw.table(ATLAS)}\n\n- A step takes long.\n"
    lines = [atlas_draw.table(ATLAS), "A step takes long."]
    assert unlike(page, lines) == []
    (line,) = unlike(re.sub(r"\b200\b", "201", page), lines)
    assert "lasgd" in line


@pytest.mark.parametrize("commit", ["0123456789ab-dirty", None])
def test_numbers_of_code_that_was_not_committed_are_not_recorded(commit, tmp_path, monkeypatch):
    monkeypatch.setattr(figures, "commit", lambda: commit)
    figures.write_csv(ATLAS, tmp_path / "a.csv")
    with pytest.raises(UsageError, match="--record: .*a.csv: numbers of .*(dirty|None)"):
        figures.record(tmp_path / "a.csv", tmp_path / "docs")
    monkeypatch.setattr(figures, "commit", lambda: "0123456789ab")
    figures.write_csv(ATLAS, tmp_path / "a.csv")
    assert (
        figures.record(tmp_path / "a.csv", tmp_path / "docs", "b.csv").read_text() == (tmp_path / "a.csv").read_text()
    )


def test_the_tables_of_a_benchmark_are_numbers_in_a_file(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    mpi = SimpleNamespace(rank=0, size=2)
    monkeypatch.setattr("sys.argv", ["bench"])
    monkeypatch.setitem(sys.modules, "__main__", SimpleNamespace(__file__="experiments/bench/training.py"))
    for title in ("first", "second"):
        side_by_side.report(mpi, title, ["", "steps/s", "ratio"], [["ours", "3", "1.10 (1.00-1.20)"]])
    with side_by_side.numbers_file("training", 2, False).open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(row["table"], row["column"], row["value"]) for row in rows] == [
        (title, *cell) for title in ("first", "second") for cell in (("steps/s", "3"), ("ratio", "1.10 (1.00-1.20)"))
    ]
    monkeypatch.setattr("sys.argv", ["bench", "--quick"])
    side_by_side.report(mpi, "quick", ["", "ms"], [["ours", "3"]])
    assert "quick" in capsys.readouterr().out and "quick" not in Path("results/bench-training-2.csv").read_text()
