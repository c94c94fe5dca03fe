"""The page of the reproduction: complete, of one file, and what it says of claims."""

import re
from html.parser import HTMLParser

import pytest

from experiments.tables.__main__ import main
from experiments.tables.outcome import Figure, Outcome, Table
from experiments.tables.outcome import WordedFinding as Finding
from experiments.tables.report import build, kind, numeric, paper_figure, read_claims, text

CLAIMS = """\
[paper]
name = "Fast SGD"
title = "On SGD that is fast"
authors = "A. Author, B. Author"
published = "A journal, 2020"
read = "the abstract"

[[claim]]
id = "faster"
statement = "It is faster where n < 8 & more."
number = 40.5
low = 30
high = 50
unit = "%"
source = "abstract"
targets = ["fig1", "fig2"]

[[claim]]
id = "exact"
statement = "It is as accurate."
source = "expected of the method"
targets = ["fig1"]

[[claim]]
id = "later"
statement = "It scales."
source = "figure 3"
targets = ["fig3"]
"""
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
    return folder


@pytest.fixture
def results(tmp_path):
    """Two targets, of three; the figures of both use the same ids."""
    folder = tmp_path / "smoke"
    folder.mkdir()
    (folder / "a.svg").write_text(SVG)
    runs = [
        {"command": "grsgd train <x>", "file": "x.h5", "commit": "abc123", "source": "testbed"},
        {"command": "bare"},
    ]
    outcome(
        "fig1",
        [
            Finding("faster", "20 % [10 to 30]", "wall time, 4 ranks", "holds only under load", "since a < b"),
            Finding("exact", "91.0 %", "test set", "does not hold", "too few epochs"),
        ],
        tables=[Table("Times <s>", ["method", "time"], [["<script>alert(1)</script>", "1.5"], ["b", "–"]])],
        figures=[Figure('Over "time" & <space>', "a.svg"), Figure("Again", "a.svg")],
        notes=["not <i>measured</i>"],
        provenance={"machine": "2 cores", "made": "2026-01-02 03:04"},
        runs=runs,
    ).save(folder)
    outcome("fig2", [Finding("faster", "45 %", "virtual time", "holds")], figures=[Figure("B", "a.svg")]).save(folder)
    return folder


@pytest.fixture
def page(paper, results, tmp_path):
    build(results, [paper], tmp_path / "site" / "report.html")
    assert [path.name for path in (tmp_path / "site").iterdir()] == ["report.html"]
    return (tmp_path / "site" / "report.html").read_text()


def plain(html: str) -> str:
    return re.sub(r"\s+", " ", re.sub(r"<[^>]*>", " ", html))


def section(page: str, target: str) -> str:
    return re.search(rf'<section id="target-{target}">.*?</section>', page, re.DOTALL)[0]


def test_page_is_one_file_whose_references_lead_somewhere(page):
    read = Section(page)
    inside = [reference for reference in read.references if reference != "data:,"]
    assert len(inside) > 20 and all(reference.startswith("#") for reference in inside)
    assert {reference[1:] for reference in inside} <= set(read.ids)
    assert "script" not in read.tags and "@import" not in page and "url(http" not in page


def test_ids_are_unique_though_figures_share_theirs(page):
    ids = Section(page).ids
    assert len(ids) == len(set(ids))
    assert {"figure-fig1-1-p1", "figure-fig1-2-p1", "figure-fig2-1-p1"} <= set(ids)
    assert page.count("<svg") == 3 and "<?xml" not in page and page.count("<!DOCTYPE") == 1 and "purl.org" not in page


def test_texts_are_escaped(page):
    assert "<script" not in page and "&lt;script&gt;alert(1)&lt;/script&gt;" in page
    assert "n &lt; 8 &amp; more" in page and "not &lt;i&gt;measured&lt;/i&gt;" in page
    assert 'aria-label="Over &#34;time&#34; &amp; &lt;space&gt;"' in page


def test_targets_show_their_verdicts(page):
    first, second = plain(section(page, "fig1")), plain(section(page, "fig2"))
    assert "◐ holds only under load" in first and "✗ does not hold" in first
    assert "✓ holds : It is faster" in second and "paper: 40.5 (30 to 50) %; here: 45 %" in second


def test_scoreboard_lists_every_finding_with_its_reason(page):
    board = re.search(r'<section id="scoreboard">.*?</section>', page, re.DOTALL)[0]
    row = plain(re.search(r'<tbody[^>]*id="claim-faster".*?</tbody>', board, re.DOTALL)[0])
    for part in (
        "20 % [10 to 30]",
        "wall time, 4 ranks",
        "since a &lt; b",
        "✓ holds",
        "45 %",
        "virtual time",
        "abstract",
    ):
        assert part in row
    assert "no number could be had" in board
    # "faster" counts by the less favourable of its two findings.
    assert "◐ 1 holds only under a condition , ✗ 1 does not hold , – 1 is not made yet ." in plain(board)
    assert "Of 3 claims, 1 of them not the papers' own" in plain(board)


def test_missing_targets_are_shown(page):
    assert "not made yet: make table-fig3" in plain(section(page, "fig3"))
    assert "– not made yet: make table-fig3" in plain(page)


def test_target_without_the_finding_its_claim_expects_leaves_it_undecided(paper, results, tmp_path):
    outcome("fig3", []).save(results)
    build(results, [paper], tmp_path / "report.html")
    assert "? not decided The target was made, but says nothing on it." in plain((tmp_path / "report.html").read_text())


def test_head_says_where_and_when(page):
    head = plain(re.search(r"<header>.*?</header>", page, re.DOTALL)[0])
    assert (
        "smoke: small stand-ins" in head and "2 cores" in head and "abc123" in head and "2026-01-02 03:04 to 2" in head
    )


def test_target_of_no_paper_comes_last(paper, results, tmp_path):
    Outcome("all", "All papers together", "comparison", "smoke", "make").save(results)
    build(results, [paper], tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text()
    assert page.index('id="target-fig3"') < page.index('<h2 id="paper-others">') < page.index('id="target-all"')


def test_page_without_outcomes(paper, tmp_path):
    (tmp_path / "paper").mkdir()
    build(tmp_path / "paper", [paper], tmp_path / "report.html")
    assert "– 3 are not made yet ." in plain((tmp_path / "report.html").read_text())


def test_failed_build_leaves_the_page_as_it_was(paper, results, tmp_path):
    out = tmp_path / "report.html"
    out.write_text("before")
    outcome("fig3", [Finding("renamed", "1", "", "holds")]).save(results)
    with pytest.raises(ValueError, match="fig3 has a finding on 'renamed'"):
        build(results, [paper], out)
    assert out.read_text() == "before"


def test_claims_given_twice_or_without_targets_are_refused(paper):
    assert read_claims([paper])["exact"]["paper"] == "fast"
    with pytest.raises(ValueError, match="'faster' is given twice"):
        read_claims([paper, paper])
    (paper / "claims.toml").write_text(CLAIMS.replace('targets = ["fig3"]', "targets = []"))
    with pytest.raises(ValueError, match="'later' has no targets"):
        read_claims([paper])


def test_outcome_as_text(paper):
    shown = outcome(
        "fig1",
        [Finding("faster", "20 %", "wall time", "holds only under load", "since a < b")],
        tables=[Table("Times", ["method", "time"], [["a", "10.50"], ["b", "–"]]), Table("Empty", ["a"], [])],
        figures=[Figure("F", "a.svg")],
        notes=["computed"],
    )
    lines = text(shown, read_claims([paper])).splitlines()
    assert lines[0] == "Title of fig1 <b>"
    for line in (
        "| a        |  10.50 |",
        "Note: computed",
        "◐ holds only under load: It is faster where n < 8 & more.",
        "    paper: 40.5 (30 to 50) % (abstract)",
        "    here:  20 % (wall time)",
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


def test_kinds_of_verdicts():
    assert kind("holds") == "holds" and kind("holds only under load") == "holds only under"
    with pytest.raises(ValueError, match="not a verdict"):
        kind("perhaps")


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


@pytest.mark.parametrize("change", [lambda text: text[:100], lambda text: "[]", lambda text: '{"tables": 1}'])
def test_a_damaged_outcome_is_named(tmp_path, monkeypatch, capsys, change):
    folder = tmp_path / "smoke"
    folder.mkdir()
    Outcome("cssgd-load", "Load", "cssgd", "smoke", "make").save(folder)
    assert [path.name for path in folder.iterdir()] == ["cssgd-load.json"]
    path = folder / "cssgd-load.json"
    path.write_text(change(path.read_text()))
    monkeypatch.setattr("sys.argv", ["reproduce", "--report", "--results", str(tmp_path)])
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
