"""docs/results.md, and the pages of the papers beside it: what the scales that were made have given."""

import json
import re
from dataclasses import replace

import numpy as np
import pytest

from experiments.runner.outcome import BreakEven, Figure, Outcome, load
from experiments.tables import headlines, paper_page, repetition, results_page, trust
from experiments.tables.claims import read_claims
from experiments.tables.draw import in_words
from tests.support import outcomes as made_up
from tests.support.numbers import OF_THE_TEMPLATE, all_numbers, told

CLAIMS = """\
[paper]
name = "Fast SGD"
title = "On SGD that is fast"
authors = "A. Author"
published = "A journal, 2020"
read = "the abstract"
headline = "faster"
beside = ["traffic"]

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
id = "traffic"
statement = "It sends less."
kind = "direction"
method = "reconstructed"
source = "abstract"
targets = ["fast-traffic"]

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
not_covered = "Its contents could not be had. Nor could those of table 2."
"""
LINK = re.compile(r"\]\((?!http)([^)#]+)")


@pytest.fixture
def paper(tmp_path, monkeypatch):
    """A paper of three claims and more, of which pictures are not drawn: test_headlines.py draws them."""
    monkeypatch.setattr(headlines, "draw", lambda by_paper: in_words(SVG, "Main claims", headlines.describe(by_paper)))
    monkeypatch.setattr(paper_page, "case_drawing", lambda result: "")
    folder = tmp_path / "fast_2020"
    folder.mkdir()
    (folder / "claims.toml").write_text(CLAIMS)
    return folder


SVG = '<?xml version="1.0"?>\n<svg xmlns="http://www.w3.org/2000/svg"><g/></svg>\n'


def make(paper, scale: str, target: str, claim: str, **other):
    """Make up the outcome of a target that decides one claim, with a figure."""
    folder = paper.parent / "results" / scale
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{target}-1.svg").write_text(SVG)
    found = Outcome(target, f"Title of {target}", "fast", scale, f"make table-{target}")
    made = {"machine": "2 cores", "code of the runs": "abc1234", "made": "2026-01-02 03:04 UTC"}
    finding = made_up.finding(read_claims([paper])[claim], np.random.default_rng(len(target)))
    runs = [{"command": f"grsgd simulate {target}", "file": "a/b.h5", "commit": "abc1234", "seed": "0"}]
    figures = [Figure("Seconds to 80 %.", f"{target}-1.svg")]
    whole = {"findings": [finding], "figures": figures, "runs": runs, "provenance": made}
    replace(found, **whole | other).save(folder)


def built(paper) -> str:
    docs = paper.parent / "docs"
    path = results_page.build(paper.parent / "results", [paper], docs)
    assert path == docs / "results.md"
    return path.read_text()


def own_page(paper) -> str:
    return (paper.parent / "docs" / "results" / "fast.md").read_text()


def test_evidence_of_all_scales_is_one_answer(paper):
    """Of two scales with the same measured cases, the one that says most is named."""
    make(paper, "smoke", "fast-time", "faster")
    only_smoke = built(paper)
    make(paper, "desk", "fast-traffic", "traffic")
    both = built(paper)
    row = next(line for line in both.splitlines() if line.startswith("| [**Fast SGD**](results/fast.md) It is faster"))
    assert row in only_smoke and "● " in row and "(`smoke`)" in row
    assert "| It sends less. | " in both and "(`desk`)" in both
    assert "It is faster where n &lt; 8 \\| more. *40 % less time* |" in row


def test_a_scale_without_runs_is_said_to_have_none(paper):
    make(paper, "smoke", "fast-time", "faster")
    make(paper, "desk", "fast-traffic", "traffic", runs=[], findings=[])
    page = built(paper)
    assert "Of `desk` no target has runs today." in page
    assert "Of `smoke` only these targets have runs today: `fast-time`." in page


def test_one_rank_alone_is_compared_with_in_words(paper, monkeypatch):
    case = made_up.finding(read_claims([paper])["faster"], np.random.default_rng(1)).evidence[0]
    row = headlines.Row("for comparison", [replace(case, condition="a slow rank")], is_control=True)
    monkeypatch.setattr(headlines, "rows", lambda answer: [row])
    make(paper, "smoke", "fast-time", "faster")
    assert f"samples of all ranks: Fast SGD takes {case.text()}, a slow rank.\n" in built(paper)


def test_what_is_not_decided_or_not_tried_has_a_line_with_the_reason(paper):
    make(paper, "smoke", "fast-time", "faster")
    page = built(paper)
    assert "- *Fast SGD: It sends less.* not made yet, `make table-fast-traffic`" in page
    assert "- *Fast SGD: Table 1 lists the machines.* Its contents could not be had.\n" in page
    assert "It scales." not in page, "what is expected of the method is on the paper's own page"


def test_every_claim_has_a_row_on_the_page_of_its_paper(paper):
    make(paper, "smoke", "fast-time", "faster")
    make(paper, "desk", "fast-ranks", "later")
    built(paper)
    page = own_page(paper)
    statements = [" ".join(claim["statement"].split()) for claim in read_claims([paper]).values()]
    rows = [line for line in page.splitlines() if line.startswith("| ")]
    cells = [statement.replace("<", "&lt;").replace("|", "\\|") for statement in statements]
    assert [sum(row.startswith(f"| {cell}") for row in rows) for cell in cells] == [1] * len(statements)
    assert "not tried: Its contents could not be had. Nor could those of table 2." in page
    assert "Not made at the scale `desk`: `fast-time`, `fast-traffic`." in page


def test_tables_are_whole(paper):
    make(paper, "smoke", "fast-time", "faster")
    make(paper, "desk", "fast-traffic", "traffic")
    for page in (built(paper), own_page(paper)):
        blocks = re.findall(r"(?:^\|.*\n)+", page, re.MULTILINE)
        assert blocks
        for block in blocks:
            widths = {len(re.findall(r"(?<!\\)\|", line)) for line in block.splitlines()}
            assert len(widths) == 1 and re.fullmatch(r"\|(---\|)+", block.splitlines()[1])


def test_the_pages_link_to_what_is_there_and_old_files_are_gone(paper, monkeypatch):
    monkeypatch.undo()
    make(paper, "smoke", "fast-time", "faster", break_evens=[BreakEven("ours", "theirs", 1.0, 0.5, 2.0, 0.1, 9.0)])
    folder = paper.parent / "docs" / "results"
    (folder / "smoke").mkdir(parents=True)
    (folder / "fast_2020-old.svg").write_text("<svg/>")
    (folder / "faster.csv").write_text("of another page")
    (folder / "smoke" / "fast.tar.xz").write_bytes(b"kept")
    (paper.parent / "docs" / "how-to").mkdir()
    (paper.parent / "docs" / "how-to" / "tables.md").write_text("")
    page = built(paper)
    assert not (folder / "fast_2020-old.svg").exists()
    assert (folder / "smoke" / "fast.tar.xz").exists() and (folder / "faster.csv").exists()
    assert {"results/forest.svg", "results/break-even.svg", "results/cases.csv"} <= set(LINK.findall(page))
    linked = [(folder.parent / link) for link in LINK.findall(page)]
    linked += [(folder / link) for link in LINK.findall(own_page(paper))]
    assert [str(path) for path in linked if not path.exists()] == []


def test_pictures_that_are_too_large_are_left_out(paper):
    make(paper, "smoke", "fast-time", "faster")
    svg = paper.parent / "results" / "smoke" / "fast-time-1.svg"
    built(paper)
    assert "fast-time-1-smoke.svg" in own_page(paper)
    svg.write_text(svg.read_text() + " " * 200_000)
    built(paper)
    assert "fast-time-1-smoke.svg" not in own_page(paper)


def test_the_lists_are_cut_where_there_is_no_room(paper, monkeypatch):
    make(paper, "smoke", "fast-time", "faster")
    whole = len(built(paper).encode())
    monkeypatch.setattr(results_page, "MAX_BYTES", whole - 1)
    assert "- 1 more: the papers' own pages." in built(paper)
    monkeypatch.setattr(results_page, "MAX_BYTES", 1000)
    with pytest.raises(ValueError, match="results.md has more than 1000 bytes"):
        built(paper)


def test_what_the_trust_rests_on_is_said_with_date_and_commit(paper):
    make(paper, "smoke", "fast-time", "faster", simulator_errors=[("ring", -0.19), ("ring", -0.02)])
    assert "to twelve digits" not in built(paper)
    record = paper.parent / "docs" / "results" / trust.RECORD.name
    record.write_text(json.dumps(vars(trust.Trust("2026-01-02", "abc1234", 2000, 3.1, 2.4, 20, 19))))
    page = built(paper)
    assert "19 of 20 recorded simulated runs that were made again on 2026-01-02 with commit abc1234 came out" in page
    assert "wrongly support at most 3.1 % of findings, and wrongly refute at most 2.4 %" in page
    assert "ring -19 to -2 %" in page


def test_nothing_made_is_no_page(paper):
    with pytest.raises(ValueError, match="nothing was made at the scales desk, smoke"):
        built(paper)
    assert not (paper.parent / "docs").exists()


def test_every_number_of_the_page_is_in_an_outcome_or_the_papers_own(paper):
    make(paper, "smoke", "fast-time", "faster", simulator_errors=[("ring", -0.19)])
    make(paper, "desk", "fast-traffic", "traffic")
    page = built(paper)
    known = all_numbers(read_claims([paper]))
    evidence = 0
    for file in (paper.parent / "results").glob("*/*.json"):
        known |= all_numbers(json.loads(file.read_text()))
        evidence += sum(len(finding.evidence) for finding in load(file).findings)
    known |= OF_THE_TEMPLATE | {str(evidence), "3"}  # the cases, and the paper's own claims, counted
    assert told(page) - known == set()


def test_a_sentence_on_a_paper_is_left_out_when_verdicts_change(paper, capsys):
    name = 'name = "Fast SGD"\n'
    said = CLAIMS.replace(name, f'{name}in_short = "is quick if n < 8."\nin_short_of = "0"\n')
    (paper / "claims.toml").write_text(said)
    make(paper, "smoke", "fast-time", "faster")
    assert "is quick" not in built(paper)
    told = 'fast_2020/claims.toml: read in_short again, and set in_short_of = "(.{8})": left out\n'
    now = re.fullmatch(told, capsys.readouterr().err)[1]
    (paper / "claims.toml").write_text(said.replace('in_short_of = "0"', f'in_short_of = "{now}"'))
    assert "\n\n- **Fast SGD** is quick if n &lt; 8.\n\nThe table" in built(paper)
    make(paper, "smoke", "fast-traffic", "traffic")
    assert "is quick" not in built(paper)


def test_a_second_recording_is_told(paper):
    make(paper, "smoke", "fast-time", "faster")
    assert "a second time" not in built(paper)
    again = repetition.Repetition("smoke", "2026-01-03", "8 cores, X", "abc1234", 20, 14, 5, 1, 2, 1, {paper.name: 3})
    (paper.parent / "docs" / "results" / repetition.RECORD).write_text(json.dumps(vars(again)))
    page = built(paper)
    assert "`smoke` was made a second time (2026-01-03, 8 cores, X): 14 of 20 verdicts are [the same]" in page
    assert "5 cases are decided in one recording only, and 1 verdicts are reversed." in page
    assert "- The intervals of 3 cases do not overlap in the two recordings (Fast SGD: 3): an interval at" in page
    assert "- 2 cases count in the first recording only, 1 because" in page
    assert "only, 1 because simulated times are off by more than 10 % in the second ([errors](results/rep" in page
