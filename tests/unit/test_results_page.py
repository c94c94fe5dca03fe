"""docs/results.md: what the scales that were made have given."""

import re

import pytest

from experiments.tables import results_page
from experiments.tables.claims import read_claims
from tests.support import outcomes as made_up

CLAIMS = """\
[paper]
name = "Fast SGD"
title = "On SGD that is fast"
authors = "A. Author"
published = "A journal, 2020"
read = "the abstract"
headline = "faster"

[[claim]]
id = "faster"
statement = "It is faster where n < 8 | more."
number = "40 % less time"
low = 40
kind = "number"
method = "reconstructed"
source = "abstract"
targets = ["fast-time"]

[[claim]]
id = "later"
statement = "It scales."
kind = "expected"
method = "stand-in"
source = "expected of the method"
targets = ["fast-ranks"]

[[claim]]
id = "unreachable"
statement = "Table 1 lists the machines."
kind = "direction"
method = "documented"
source = "table 1"
not_covered = "Its contents could not be had."
"""


@pytest.fixture
def paper(tmp_path):
    folder = tmp_path / "fast_2020"
    folder.mkdir()
    (folder / "claims.toml").write_text(CLAIMS)
    return folder


def make(paper, scale: str, target: str, claim: str):
    """Make up the outcome of a target that decides one claim."""
    folder = paper.parent / "results" / scale
    folder.mkdir(parents=True, exist_ok=True)
    made_up.outcome(target, [read_claims([paper])[claim]], folder).save(folder)


def built(paper) -> str:
    docs = paper.parent / "docs"
    path = results_page.build(paper.parent / "results", [paper], docs)
    assert path == docs / "results.md"
    return path.read_text()


def test_both_scales_stand_beside_each_other(paper):
    make(paper, "smoke", "fast-time", "faster")
    make(paper, "smoke", "fast-ranks", "later")
    make(paper, "desk", "fast-time", "faster")
    page = built(paper)
    assert page.index("| `desk` |") < page.index("| `smoke` |")
    assert "Not made yet at the scale `desk`: `fast-ranks`." in page and "yet at the scale `smoke`" not in page
    assert "\n| [Fast SGD](#fast-sgd) | It is faster where n &lt; 8 \\| more. | 40 % less time | " in page
    assert "(`desk`) |" in page and "The cases of that claim, at the scale `desk`:" in page
    assert "**At the scale `smoke`.** " in page and "Controls, at the scale `desk`:" in page
    rows = {
        line.split(" | ")[0]: line
        for line in page.splitlines()
        if line.startswith("| It") or line.startswith("| Table")
    }
    assert rows.keys() == {"| It is faster where n &lt; 8 \\| more.", "| It scales.", "| Table 1 lists the machines."}
    assert "| expected | stand-in |  | – not made yet | " in rows["| It scales."]
    assert rows["| Table 1 lists the machines."].count("∅ Its contents could not be had.") == 2


def test_tables_are_whole(paper):
    make(paper, "smoke", "fast-time", "faster")
    blocks = re.findall(r"(?:^\|.*\n)+", built(paper), re.MULTILINE)
    assert len(blocks) == 6  # the main claims, scales, cases, controls, the paper's claims, what is expected
    for block in blocks:
        widths = {len(re.findall(r"(?<!\\)\|", line)) for line in block.splitlines()}
        assert len(widths) == 1 and re.fullmatch(r"\|(---\|)+", block.splitlines()[1])


def test_pictures_are_there_small_and_of_this_making(paper):
    make(paper, "smoke", "fast-time", "faster")
    pictures = paper.parent / "docs" / "results"
    pictures.mkdir(parents=True)
    (pictures / "old.svg").write_text("<svg/>")
    (pictures / "records.csv").write_text("kept")
    names = set(re.findall(r"!\[.*\]\(results/(.*)\)", built(paper)))
    assert names == {"fast_2020-cases.svg", "fast-time-1.svg"}
    assert {path.name for path in pictures.iterdir()} == names | {"records.csv"}
    assert all((pictures / name).stat().st_size < results_page.MOST_BYTES for name in names)


def test_a_figure_that_is_too_large_is_left_out(paper):
    make(paper, "smoke", "fast-time", "faster")
    svg = paper.parent / "results" / "smoke" / "fast-time-1.svg"
    svg.write_text(svg.read_text() + " " * results_page.MOST_BYTES)
    assert "fast-time-1.svg" not in built(paper)


def test_nothing_made_is_no_page(paper):
    with pytest.raises(ValueError, match="nothing was made at the scales desk, smoke"):
        built(paper)
    assert not (paper.parent / "docs").exists()


def test_each_commit_of_the_runs_is_named_once(paper):
    claims = [read_claims([paper])["faster"]]
    outcomes = {target: made_up.outcome(target, claims, paper.parent) for target in ("one", "two", "three")}
    for outcome, commits in zip(outcomes.values(), ("b2, a1", "a1", "none"), strict=True):
        outcome.provenance["code of the runs"] = commits
    assert results_page.ScaleResult("smoke", outcomes, {}, []).commits == "a1, b2"
