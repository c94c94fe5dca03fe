"""The pictures of docs/results.md: all that is uncertain is drawn, and told to those who do not see it."""

import re
from dataclasses import replace
from xml.etree import ElementTree

import pytest

from experiments.runner.outcome import CONTROL, INCONCLUSIVE, REFUTED, SUPPORTED, BreakEven, Case, Finding, Outcome
from experiments.runner.run_spec import MEASURED, SIMULATED
from experiments.tables import break_even_strip, headlines
from experiments.tables.answers import Answer
from experiments.tables.claims import ClaimResult
from experiments.tables.draw import in_words

SVG = "{http://www.w3.org/2000/svg}"
CASE = Case("equal ranks", "ring <all-reduce>", SUPPORTED, 20.0, 10.0, 30.0, "% less time", 5, SIMULATED, number=40.0)
CLOCK = replace(CASE, source=MEASURED, estimate=25.0)
SLOW = replace(CASE, condition="slow links", verdict=REFUTED, estimate=-20.0, low=-40.0, high=-5.0)
ALONE = replace(CASE, baseline="one rank alone", kind=CONTROL, estimate=70.0, low=60.0, high=80.0)


def answer(*by_scale: list[Case]) -> Answer:
    return Answer(
        [
            ClaimResult({"id": "faster"}, [(Outcome("t", "", "", name, ""), Finding("faster", "", cases))], [], [])
            for name, cases in zip(("desk", "smoke"), by_scale, strict=False)
        ]
    )


def elements(svg: str) -> tuple[str, str, ElementTree.Element]:
    """The title, the description and the root of a picture that is whole XML."""
    root = ElementTree.fromstring(svg)
    assert root.tag == f"{SVG}svg" and root.get("role") == "img"
    title, description = root[0], root[1]
    assert (title.tag, description.tag) == (f"{SVG}title", f"{SVG}desc")
    return title.text, description.text, root


def test_a_row_has_the_measured_and_the_simulated_case_of_one_place():
    found = headlines.rows(answer([CASE, SLOW, ALONE], [CLOCK]))
    assert [row.label for row in found] == [
        "against ring <all-reduce>: equal ranks",
        "against ring <all-reduce>: slow links",
        "for comparison, against one rank alone: equal ranks",
    ]
    assert found[0].cases == [CLOCK, CASE] and found[1].cases == [SLOW]
    assert [row.is_control for row in found] == [False, False, True]


def test_a_further_main_claim_has_rows_for_its_best_evidence_for_and_against():
    """A case that is undecided, or that the headline shows, has no further row."""
    faster, slower = (replace(CASE, baseline=name, p=0.0) for name in ("gossip", "push"))
    slower = replace(slower, verdict=REFUTED, estimate=-30.0, low=-40.0, high=-20.0)
    others = [replace(CASE, baseline="other", verdict=INCONCLUSIVE), replace(faster, baseline="third", p=0.5)]
    found = headlines.rows_of([answer([CASE]), answer([*others, faster, slower, CASE])])
    shown = [row.label.partition(":")[0] for row in found]
    assert shown == ["against ring <all-reduce>", "against gossip", "against push"]
    found = headlines.rows_of([answer([CASE]), answer([others[0]])])
    assert [row.label.partition(":")[0] for row in found] == ["against ring <all-reduce>", "against other"]


def test_a_paper_has_a_row_for_each_main_claim_on_time_before_its_control():
    gossip = replace(CASE, baseline="gossip", verdict=REFUTED, estimate=-30.0, low=-40.0, high=-20.0)
    accuracy = replace(CASE, baseline="gossip", unit="points")
    found = headlines.rows_of([answer([CASE, ALONE]), answer([gossip, ALONE]), answer([accuracy]), answer([CASE])])
    assert [row.label.partition(":")[0] for row in found] == [
        "against ring <all-reduce>",
        "against gossip",
        "for comparison, against one rank alone",
    ]


def test_a_decided_case_is_not_hidden_behind_an_undecided_one_of_another_scale():
    undecided = replace(CASE, verdict=INCONCLUSIVE, low=-60.0)
    assert headlines.rows(answer([undecided], [CASE]))[0].cases == [CASE]
    against = replace(SLOW, condition=CASE.condition)
    assert headlines.rows(answer([against], [CASE]))[0].cases == [against, CASE], "both verdicts are shown"


def test_rows_are_few_and_the_best_for_and_against_a_claim_are_among_them():
    others = [replace(CASE, baseline=f"other {number}", p=0.001) for number in range(6)]
    found = headlines.rows(answer([*others, replace(SLOW, p=0.04)]))
    assert len(found) == headlines.MAX_ROWS
    assert {SUPPORTED, REFUTED} == {row.cases[0].verdict for row in found}


def test_the_picture_has_ticks_whiskers_and_words():
    spread = replace(CASE, spread_low=2.0, spread_high=35.0)
    by_paper = {"Fast SGD": headlines.rows(answer([spread, SLOW, ALONE], [CLOCK]))}
    title, description, root = elements(headlines.draw(by_paper))
    assert "main claims" in title
    assert "ring <all-reduce>: equal ranks: 25.0 % less time (10.0 to 30.0, 5 seeds)" in description
    words = {text.text for text in root.iter(f"{SVG}text")}
    assert {"Fast SGD", "the paper's number", "thin: over calibrations, simulator's error", "does not hold"} <= words
    narrow = headlines.draw({"Fast SGD": headlines.rows(answer([CASE, SLOW, ALONE], [CLOCK]))})
    assert len(narrow) < len(headlines.draw(by_paper)), "the second whisker is drawn"


def test_pictures_have_a_ground_of_their_own_so_that_they_are_right_on_dark_pages():
    for svg in (
        headlines.draw({"Fast SGD": headlines.rows(answer([CASE]))}),
        break_even_strip.draw([BreakEven("ours", "theirs", 1.0, 0.5, 2.0, 0.1, 10.0)], {}),
    ):
        assert re.search(r'<g id="patch_1">\s*<path d="[^"]*" style="fill: #ffffff"', svg)


STRIP = [
    BreakEven("ours", "theirs", 1.0, 0.5, None, 0.1, 10.0, [0.3, 3.0]),
    BreakEven("ours", "others", None, None, None, 0.1, 10.0, [0.3]),
    BreakEven("ours", "all", 2.0, 2.0, 2.0, 0.1, 10.0, reaches=5.0),
    BreakEven("ours", "any", 2.0, 0.1, None, 0.1, 10.0),
]


def test_the_strip_says_from_where_on_each_method_pays():
    title, description, root = elements(break_even_strip.draw(STRIP, {"third": "not a matter of links"}))
    assert "saves time" in title
    assert "ours against theirs: from 1 (0.5 to more than 10) on" in description
    assert "ours against all: from 2 on, and saves the paper's number from 5 on" in description
    assert "ours against any: not known from 0.1 to 10" in description
    assert "ours against others: none up to 10" in description and "third: not a matter of links" in description
    words = {text.text for text in root.iter(f"{SVG}text")}
    assert {"ours against theirs", "third", "not a matter of links"} <= words


@pytest.mark.parametrize("words", ["a < b & c", 'a "b"'])
def test_words_in_a_picture_are_not_taken_for_its_elements(words):
    title, description, _ = elements(
        in_words(f'<?xml version="1.0"?>\n<svg xmlns="{SVG[1:-1]}"><g/></svg>', words, words)
    )
    assert (title, description) == (words, words)
