"""The page of the reproduction: complete, of one file, and what it says of claims."""

import base64
import csv
import io
import math
import re
from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
import pytest

from experiments import papers
from experiments.runner.outcome import (
    ALIKE,
    AT_LEAST,
    BY_CONSTRUCTION,
    CONTROL,
    INCONCLUSIVE,
    REFUTED,
    SUPPORTED,
    Case,
    Figure,
    Finding,
    Outcome,
    Table,
)
from experiments.runner.run_spec import MEASURED, SIMULATED
from experiments.runner.sample import Sample
from experiments.tables import draw
from experiments.tables.__main__ import main
from experiments.tables.claims import read_claims, results
from experiments.tables.downloads import seeds_of
from experiments.tables.forest import Differences, Ratios, forest, scale_of
from experiments.tables.report import build, inferred, numeric, text
from experiments.tables.targets import PAPERS
from experiments.tables.wording import MIXED, NOT_COVERED, NOT_MADE, grid, middle, overall, paper_figure
from tests.support import outcomes as made_up

CLAIMS = """\
[paper]
name = "Fast SGD"
title = "On SGD that is fast"
authors = "A. Author, B. Author"
published = "A journal, 2020"
read = "the abstract"
headline = "faster"

[[setup]]
what = "model"
paper = "ResNet-50"
here.smoke = "MLP"

[[claim]]
id = "faster"
statement = "It is faster where n < 8 & more."
quote = "本文算法更快"
translation = "the method here is faster"
number = 40.5
low = 30
high = 50
unit = "%"
kind = "number"
method = "reconstructed"
source = "abstract"
targets = ["fig1", "fig2"]

[[claim]]
id = "exact"
statement = "It is as accurate."
kind = "expected"
method = "documented"
source = "expected of the method"
targets = ["fig1"]

[[claim]]
id = "later"
statement = "It scales."
kind = "direction"
method = "stand-in"
source = "figure 3"
targets = ["fig3"]

[[claim]]
id = "unreachable"
statement = "Table 1 lists the machines."
kind = "direction"
method = "documented"
source = "table 1"
not_covered = "Its contents could not be had."
"""
README = """\
# Fast SGD

## Documented and inferred

| choice | standing | option |
|---|---|---|
| the order of `a` < b | inferred, see [there](there.md) | `order` |

## Elsewhere

| not | this | table |
"""
CASE = Case("equal ranks", "ring", SUPPORTED, 20.0, 10.0, 30.0, "% less time", 5, MEASURED)
SVG = """\
<?xml version="1.0" encoding="utf-8" standalone="no"?>
<!DOCTYPE svg PUBLIC "-//W3C//DTD SVG 1.1//EN" "http://www.w3.org/Graphics/SVG/1.1/DTD/svg11.dtd">
<svg xmlns:xlink="http://www.w3.org/1999/xlink" width="460.8pt" height="345.6pt" viewBox="0 0 460 345">
 <metadata><rdf:RDF><cc:Work><dc:type rdf:resource="http://purl.org/dc/dcmitype/StillImage"/></cc:Work></rdf:RDF></metadata>
 <defs><path id="m1" d="M 0 0"/><clipPath id="p1"><rect width="9"/></clipPath></defs>
 <g id="axes_1" clip-path="url(#p1)"><use xlink:href="#m1" x="1"/></g>
</svg>
"""  # noqa: E501


class Section(HTMLParser):
    """The ids, and the attributes that refer to something."""

    def __init__(self, source: str):
        super().__init__()
        self.ids, self.references, self.tags = [], [], []
        self.feed(source)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        for name, value in attrs:
            if name == "id":
                self.ids.append(value)
            elif name in ("src", "href", "xlink:href", "srcset", "data", "action"):
                self.references.append(value)
            self.references += re.findall(r"url\(([^)]*)\)", value or "")
            if name.endswith("labelledby"):
                self.references.append(f"#{value}")


def outcome(target: str, findings: list[Finding], **other) -> Outcome:
    return Outcome(
        target, f"Title of {target} <b>", "fast", "smoke", "python -m made --by <this>", findings=findings, **other
    )


@pytest.fixture
def paper(tmp_path):
    folder = tmp_path / "fast"
    folder.mkdir()
    (folder / "claims.toml").write_text(CLAIMS)
    (folder / "README.md").write_text(README)
    return folder


@pytest.fixture
def made(tmp_path):
    """Two targets, of three; the figures of both use the same ids."""
    folder = tmp_path / "smoke"
    folder.mkdir()
    (folder / "a.svg").write_text(SVG)
    (folder / "a.csv").write_text("panel,series,x,seed,y\np,ours,1,0,5\np,ours,1,1,6\np,theirs,1,0,7\np,level,,,7\n")
    runs = [{"command": "grsgd train <x>", "commit": "abc123", "source": "clock", "seed": "0"}, {"command": "bare"}]
    slow = replace(CASE, baseline="D-PSGD", verdict=REFUTED, estimate=-5.0, low=-8.0, high=-2.0)
    outcome(
        "fig1",
        [
            Finding("faster", "wall time, 4 ranks", [CASE, slow], "since a < b"),
            Finding("exact", "test set", [replace(CASE, kind=CONTROL)]),
        ],
        tables=[Table("Times <s>", ["method", "time"], [["<script>alert(1)</script>", "1.5"], ["b", "–"]])],
        figures=[Figure('Over "time" & <space>', "a.svg"), Figure("Again", "a.svg")],
        notes=["not <i>measured</i>"],
        provenance={"machine": "2 cores", "made": "2026-01-02 03:04", "code of the runs": "abc123"},
        runs=runs,
    ).save(folder)
    simulated = replace(CASE, source=SIMULATED, simulator_error="median +3 %")
    outcome("fig2", [Finding("faster", "", [simulated])], figures=[Figure("B", "a.svg")]).save(folder)
    return folder


@pytest.fixture
def page(paper, made, tmp_path):
    build(made, [paper], tmp_path / "site" / "report.html")
    assert [path.name for path in (tmp_path / "site").iterdir()] == ["report.html"]
    return (tmp_path / "site" / "report.html").read_text()


def plain(html: str) -> str:
    return re.sub(r"\s+", " ", re.sub(r"<[^>]*>", " ", html))


def part(page: str, tag: str, name: str) -> str:
    """The section, or article, with an id, as plain text."""
    return plain(re.search(rf'<{tag}[^>]* id="{name}">.*?</{tag}>', page, re.DOTALL)[0])


def claim(page: str, name: str) -> str:
    return part(page, "article", f"claim-{name}")


def test_page_is_one_file_whose_references_lead_somewhere(page):
    read = Section(page)
    inside = [reference for reference in read.references if not reference.startswith("data:")]
    assert len(inside) > 20 and all(reference.startswith("#") for reference in inside)
    assert {reference[1:] for reference in inside} <= set(read.ids)
    assert "script" not in read.tags and "@import" not in page and "url(http" not in page


def test_ids_are_unique_though_figures_share_theirs(page):
    ids = Section(page).ids
    assert len(ids) == len(set(ids))
    assert {"figure-fig1-1-p1", "figure-fig1-2-p1", "figure-fig2-1-p1"} <= set(ids)
    assert page.count("<?xml") == 0 and page.count("<!DOCTYPE") == 1 and "purl.org" not in page


def test_texts_are_escaped(page):
    assert "<script" not in page and "&lt;script&gt;alert(1)&lt;/script&gt;" in page
    assert "n &lt; 8 &amp; more" in page and "not &lt;i&gt;measured&lt;/i&gt;" in page
    assert 'aria-label="Over &#34;time&#34; &amp; &lt;space&gt;"' in page


def test_summary_says_what_holds_what_does_not_and_how_sure_that_is(page):
    assert (
        "It is faster where n &lt; 8 &amp; more. The paper: 40.5 (30 to 50) %. "
        "Holds: ● 20.0 % less time (10.0 to 30.0, 5 seeds) than ring, equal ranks ( smoke ); "
        "2 of 3 cases (1 simulated). "
        "Does not hold: ● 5.0 % more time (2.0 to 8.0, 5 seeds) than D-PSGD, equal ranks ( smoke ); 1 of 3 cases. "
        "How sure: A that it holds, B that it does not."
    ) in part(page, "section", "summary")


def test_claims_are_counted_by_kind(page):
    rows = re.findall(r'<tr><th scope="row">(.*?)</th>(.*?)</tr>', part_html(page, "counts"))
    counted = {kind: re.findall(r"<td>(.*?)</td>", cells) for kind, cells in rows}
    assert counted == {
        "number": ["", "1", "", "", "", "", "", ""],
        "direction": ["", "", "", "", "", "", "1", "1"],
        "expected": ["", "", "", "", "1", "", "", ""],
    }


def part_html(page: str, name: str) -> str:
    return re.search(rf'<section id="{name}">.*?</section>', page, re.DOTALL)[0]


def test_a_claim_has_its_quotation_standing_cases_and_reason(page):
    shown = claim(page, "faster")
    for words in (
        "本文算法更快",
        "the method here is faster",
        "claim: number method: reconstructed abstract",
        "40.5 (30 to 50) %",
        "supported in 1 of 2 cases; refuted in 1 in Title of fig1",
        "5.0 % more time (2.0 to 8.0, 5 seeds)",
        "since a &lt; b",
        "wall time, 4 ranks",
        "How far simulated times are from measured ones: median +3 %",
    ):
        assert words in shown


def test_controls_are_marked_and_not_counted(page):
    assert "control, not counted" in claim(page, "exact") and "? It is as accurate." in claim(page, "exact")


def test_claims_without_measured_times_are_marked(paper, made, tmp_path):
    (made / "fig1.json").unlink()
    build(made, [paper], tmp_path / "report.html")
    assert "simulated times only" in claim((tmp_path / "report.html").read_text(), "faster")


def test_what_is_not_made_or_not_covered_is_said(page):
    assert "not made yet : make table-fig3 SCALE=smoke" in claim(page, "later")
    assert "No target decides it: Its contents could not be had." in claim(page, "unreachable")
    assert "Not made yet 1 of 3 targets: fig3" in plain(page) and "Not made yet: fig3 ." in plain(page)


def test_target_without_the_finding_its_claim_expects_leaves_it_inconclusive(paper, made, tmp_path):
    outcome("fig3", []).save(made)
    build(made, [paper], tmp_path / "report.html")
    shown = claim((tmp_path / "report.html").read_text(), "later")
    assert "? It scales." in shown and "was made, but has no finding on this claim" in shown


def test_paper_and_here_stand_side_by_side(page):
    assert re.search(r'<th scope="row">model</th><td>ResNet-50</td><td>MLP</td>', page)


def test_inferred_choices_come_from_the_readme(paper, page):
    assert inferred(paper) == [["the order of `a` < b", "inferred, see [there](there.md)", "`order`"]]
    assert "<td>the order of <code>a</code> &lt; b</td><td>inferred, see there</td>" in page
    assert inferred(paper.parent) == []


def test_numbers_can_be_downloaded(page):
    links = {
        name: base64.b64decode(content).decode()
        for name, content in re.findall(r'download="([^"]*)" href="data:[^,]*;base64,([^"]*)"', page)
    }
    assert links["fast-claims.toml"] == CLAIMS
    assert links["a.csv"].startswith("panel,series")
    assert links["fig1-runs.csv"] == "command,commit,source,seed\ngrsgd train <x>,abc123,clock,0\nbare,,,\n"
    cases = list(csv.DictReader(io.StringIO(links["cases.csv"])))
    assert [(case["claim"], case["baseline"], case["estimate"], case["low"]) for case in cases] == [
        ("faster", "ring", "20.0", "10.0"),
        ("faster", "D-PSGD", "-5.0", "-8.0"),
        ("faster", "ring", "20.0", "10.0"),
        ("exact", "ring", "20.0", "10.0"),
    ]


def test_seeds_of_a_figure_are_counted(page, made):
    assert seeds_of(made, Figure("", "a.svg")) == "1 to 2 seeds"
    assert seeds_of(made, Figure("", "none.svg")) == ""
    assert "1 to 2 seeds, each a point or a curve" in part(page, "section", "target-fig2")


def test_head_says_where_and_when(page):
    head = plain(re.search(r"<header>.*?</header>", page, re.DOTALL)[0])
    for words in ("smoke", "(small stand-ins", "2 cores", "abc123", "2026-01-02 03:04 to 2"):
        assert words in head


def test_target_of_no_paper_comes_last(paper, made, tmp_path):
    Outcome("all", "All papers together", "comparison", "smoke", "make").save(made)
    build(made, [paper], tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text()
    assert page.index('id="target-fig2"') < page.index('<h2 id="paper-others">') < page.index('id="target-all"')


def test_page_without_outcomes(paper, tmp_path):
    (tmp_path / "desk").mkdir()
    build(tmp_path / "desk", [paper], tmp_path / "report.html")
    assert "It is faster where n &lt; 8 &amp; more. The paper: 40.5 (30 to 50) %. How sure: C: not made yet" in plain(
        (tmp_path / "report.html").read_text()
    )


def test_failed_build_leaves_the_page_as_it_was(paper, made, tmp_path):
    out = tmp_path / "report.html"
    out.write_text("before")
    outcome("fig3", [Finding("renamed", "", [CASE])]).save(made)
    with pytest.raises(ValueError, match="fig3 has a finding on 'renamed'"):
        build(made, [paper], out)
    assert out.read_text() == "before"


@pytest.mark.parametrize(
    "before, after, message",
    [
        ('targets = ["fig3"]', "targets = []", "'later' must have either targets or not_covered"),
        ('kind = "expected"', 'kind = "guess"', "'exact' must have a kind: number, direction"),
        ('method = "stand-in"', 'method = "none"', "'later' must have a method: documented"),
        ('method = "stand-in"', "", "'later' must have a method: documented"),
        ('headline = "faster"', 'headline = "fastest"', "the headline 'fastest' is none of its claims"),
    ],
)
def test_claims_that_are_not_whole_are_refused(paper, before, after, message):
    assert read_claims([paper])["exact"]["paper"] == "fast"
    with pytest.raises(ValueError, match="'faster' is given twice"):
        read_claims([paper, paper])
    (paper / "claims.toml").write_text(CLAIMS.replace(before, after))
    with pytest.raises(ValueError, match=message):
        read_claims([paper])


@pytest.mark.parametrize(
    "verdicts, expected",
    [
        ([SUPPORTED, SUPPORTED], SUPPORTED),
        ([SUPPORTED, REFUTED], MIXED),
        ([INCONCLUSIVE, SUPPORTED], MIXED),
        ([ALIKE, INCONCLUSIVE], ALIKE),
        ([ALIKE, REFUTED], REFUTED),
        ([ALIKE, REFUTED, ALIKE], ALIKE),
        ([REFUTED, INCONCLUSIVE, INCONCLUSIVE], REFUTED),
        ([INCONCLUSIVE], INCONCLUSIVE),
    ],
)
def test_cases_of_a_claim_together(verdicts, expected):
    controls = [replace(CASE, kind=CONTROL, verdict=REFUTED)]
    assert overall([replace(CASE, verdict=verdict) for verdict in verdicts] + controls) == expected
    assert overall(controls) == INCONCLUSIVE
    assert overall([replace(CASE, kind=BY_CONSTRUCTION)]) == BY_CONSTRUCTION


def test_results_by_claim(paper, made):
    [shown] = results([paper], {})
    assert [result.verdict for result in shown.claims] == [NOT_MADE, NOT_MADE, NOT_MADE, NOT_COVERED]
    assert shown.headline is shown.claims[0] and shown.targets == ["fig1", "fig2", "fig3"]


def test_grid_turns_where_conditions_are_many():
    cases = [
        replace(CASE, baseline=baseline, condition=f"n = {n}") for n in range(3) for baseline in ("ring", "D-PSGD")
    ]
    few = grid(cases)
    assert few.columns == [f"n = {n}, measured" for n in range(3)] and [name for name, _ in few.rows] == [
        "ring",
        "D-PSGD",
    ]
    many = grid([replace(CASE, condition=f"n = {n}") for n in range(9)])
    assert many.columns == ["ring"] and [name for name, _ in many.rows] == [f"n = {n}, measured" for n in range(9)]
    first = replace(CASE, baseline="alone", kind=CONTROL)
    assert [name for name, _ in grid([first, CASE]).rows] == ["ring", "alone"]


def test_evidence_is_summed_up_by_its_middle_case():
    assert middle([replace(CASE, kind=CONTROL)]) == "" == middle([replace(CASE, estimate=None)])
    cases = [CASE, replace(CASE, estimate=40.0), replace(CASE, estimate=25.0), replace(CASE, estimate=1.0)]
    assert middle(cases) == f"middle case: {CASE.text()} than ring, equal ranks, measured"
    alone = [CASE, replace(CASE, unit="points", estimate=-90.0)]
    assert middle(alone) == f"{CASE.text()} than ring, equal ranks, measured"


def test_outcome_as_text(paper):
    shown = outcome(
        "fig1",
        [Finding("faster", "wall time", [CASE, replace(CASE, baseline="alone", kind=CONTROL)], "since a < b")],
        tables=[Table("Times", ["method", "time"], [["a", "10.50"], ["b", "–"]]), Table("Empty", ["a"], [])],
        figures=[Figure("F", "a.svg")],
        notes=["computed"],
    )
    lines = text(shown, read_claims([paper])).splitlines()
    assert lines[0] == "Title of fig1 <b>"
    for line in (
        "| a        |  10.50 |",
        "Note: computed",
        "✓ supported: It is faster where n < 8 & more.",
        "    paper: 40.5 (30 to 50) % (abstract)",
        "    ✓ ring: equal ranks, measured: 20.0 % less time (10.0 to 30.0, 5 seeds)",
        "    ✓ alone: equal ranks, measured: 20.0 % less time (10.0 to 30.0, 5 seeds) [control, not counted]",
        "    how:   wall time",
        "    why:   since a < b",
        "Figures: a.svg",
    ):
        assert line in lines


@pytest.mark.parametrize(
    "claim, figure",
    [
        ({}, "no number could be had"),
        ({"number": 2, "unit": "s"}, "2 s"),
        ({"number": "92 % less", "low": 92, "unit": "%"}, "92 % less"),
        ({"low": 1, "high": 2.5, "unit": "s"}, "1 to 2.5 s"),
        ({"low": 0}, "at least 0"),
        ({"high": 3}, "at most 3"),
    ],
)
def test_paper_figure(claim, figure):
    assert paper_figure(claim) == figure


@pytest.mark.parametrize(
    "cells, expected",
    [
        (["1", "−2.5 %", "–"], True),
        (["1.5 ± 0.2 s", "~3x", "< 0.1"], True),
        (["–", ""], False),
        (["1", "none"], False),
        (["4 nodes of which one is four times as slow"], False),
    ],
)
def test_columns_of_figures(cells, expected):
    assert numeric(Table("", ["x"], [[cell] for cell in cells]), 0) is expected


def test_a_figure_leaves_its_numbers_beside_it(tmp_path):
    panels = made_up.panels(np.random.default_rng(0))
    ours = Sample({0: 2.0, 1: 3.0, 2: None}, frozenset([1]))
    panels[0] = replace(panels[0], lines={"ours": {4: ours}}, levels={"target": 80.0})
    draw.draw(tmp_path / "a.svg", panels)
    rows = list(csv.reader((tmp_path / "a.csv").open()))
    title = panels[0].title
    assert rows[0] == list(draw.COLUMNS)
    assert rows[1:5] == [
        [title, "ours", "4", "0", "2", "", "", ""],
        [title, "ours", "4", "1", "3", "lower", "", ""],
        [title, "ours", "4", "2", "", "", "", ""],
        [title, "target", "", "", "80", "", "", ""],
    ]
    assert (tmp_path / "a.svg").stat().st_size < 100_000


def test_an_interval_that_is_far_too_wide_is_cut_off():
    cases = [replace(CASE, estimate=20.0, low=-5000.0, high=95.0), replace(CASE, estimate=-10.0, low=-12.0, high=-8.0)]
    estimates = [case.estimate for case in cases]
    assert draw.limits(estimates, (-5200.0, 100.0)) == (-70.0, 80.0)
    assert draw.limits(estimates, (-15.0, 30.0)) == (-15.0, 30.0)
    assert draw.limits([0.0], (-1.0, 1.0)) == (-1.0, 1.0)


def test_half_and_twice_as_much_are_equally_far_from_as_much():
    for unit, turned, less, more in (
        ("% less time", "% more time", 50.0, -100.0),
        ("% more time", "% less time", -50.0, 100.0),
    ):
        scale = scale_of(replace(CASE, unit=unit))
        assert isinstance(scale, Ratios) and scale.place(0.0) == 0.0
        assert abs(scale.place(less)) == abs(scale.place(more)) == pytest.approx(1)
        assert scale.place(abs(less)) > 0 > scale.place(-abs(less)), f"to the right is {unit}"
        assert (scale.words(0.5), scale.words(2), scale.words(1)) == ("50 %\nless", "100 %\nmore", "0")
        assert turned in scale.label
    assert math.isfinite(scale.place(-100.0)), "nothing is left"
    assert isinstance(scale_of(replace(CASE, unit="points")), Differences)


def test_a_drawing_of_cases_says_what_its_points_are():
    cases = [CASE, replace(CASE, baseline="one rank", kind=CONTROL), replace(CASE, baseline="x", bound=AT_LEAST)]
    drawing = forest(cases, [54])
    for words in (CASE.verdict, "control, not counted", "at least this much", "paper: 54"):
        assert f">{words}<" in drawing
    assert "not counted" not in forest(cases[:1])


def test_bars_stand_on_zero():
    """Their length says nothing on a logarithmic axis."""
    panel = draw.Panel("", "n", "s", lines={"a": {8: 1.0}, "b": {8: 100.0}}, logy=True)
    (axes,) = draw.figure([panel]).get_axes()
    assert axes.get_yscale() == "linear" and axes.get_ylim()[0] == 0
    two = draw.Panel("", "n", "s", lines={"a": {4: 1.0, 8: 2.0}}, logy=True)
    assert draw.figure([two]).get_axes()[0].get_yscale() == "log"


def test_the_page_of_all_papers(tmp_path):
    folders = [papers.folder(paper) for paper in PAPERS]
    claims = read_claims(folders)
    for target in ("grsgd-time-to-acc", "cssgd-fig14"):
        mine = [claim for claim in claims.values() if target in claim["targets"]]
        made_up.outcome(target, mine, tmp_path).save(tmp_path)
    build(tmp_path, folders, tmp_path / "report.html")
    read = Section((tmp_path / "report.html").read_text())
    assert len(read.ids) == len(set(read.ids)) and {f"claim-{name}" for name in claims} <= set(read.ids)


@pytest.mark.parametrize("change", [lambda text: text[:100], lambda text: "[]", lambda text: '{"tables": 1}'])
def test_a_damaged_outcome_is_named(tmp_path, monkeypatch, capsys, change):
    folder = tmp_path / "smoke"
    folder.mkdir()
    Outcome("cssgd-load", "Load", "cssgd", "smoke", "make").save(folder)
    assert [path.name for path in folder.iterdir()] == ["cssgd-load.json"]
    path = folder / "cssgd-load.json"
    path.write_text(change(path.read_text()))
    monkeypatch.setattr("sys.argv", ["tables", "--report", "--results", str(tmp_path)])
    assert main() == 1
    said = capsys.readouterr().err
    assert f"{path} is damaged, make its target again: " in said and said.count("\n") == 1


def test_an_outcome_is_kept_until_the_new_one_is_whole(tmp_path, monkeypatch):
    Outcome("a", "Load", "cssgd", "smoke", "make").save(tmp_path)
    before = (tmp_path / "a.json").read_bytes()

    def full(*arguments):
        raise OSError("no space left")

    with monkeypatch.context() as patch, pytest.raises(OSError):
        patch.setattr("os.replace", full)
        Outcome("a", "Load anew", "cssgd", "smoke", "make").save(tmp_path)
    assert [path.read_bytes() for path in tmp_path.iterdir()] == [before]
