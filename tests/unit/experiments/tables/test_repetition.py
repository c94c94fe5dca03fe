"""Comparison of two recordings of a scale: cases are matched by name, and verdicts counted."""

import csv
from dataclasses import replace

import numpy as np
import pytest

from experiments.papers import YEARS, folder
from experiments.runner.outcome import ALIKE, EVIDENCE, INCONCLUSIVE, OFF, REFUTED, SUPPORTED, Outcome
from experiments.tables import checks, downloads, repetition
from experiments.tables.claims import read_claims
from experiments.tables.scale_result import ScaleResult
from tests.support import outcomes as made_up


def case(verdict, condition="equal ranks", kind=EVIDENCE, estimate="1", **other):
    fixed = {"verdict": verdict, "condition": condition, "kind": kind, "estimate": estimate, "low": "0", "high": "2"}
    return dict.fromkeys(repetition.OF_A_CASE, "") | fixed | other


def test_cases_are_matched_by_their_names():
    first = [case(SUPPORTED), case(ALIKE, "slow links"), case(REFUTED, "only in the first")]
    second = [case(ALIKE, "slow links", estimate="7"), case(REFUTED, "new"), case(INCONCLUSIVE)]
    rows = repetition.compare(first, second)
    assert [(row["verdict"], row["verdict_again"]) for row in rows] == [
        (SUPPORTED, INCONCLUSIVE),
        (ALIKE, ALIKE),
        (REFUTED, ""),
    ]
    assert (rows[1]["estimate"], rows[1]["estimate_again"]) == ("1", "7")
    assert rows[0].keys() >= set(repetition.COLUMNS)


def test_a_measured_ratio_in_a_condition_is_no_part_of_the_name():
    """Link rates are then compared in their order, if both recordings have as many."""
    first = [case(SUPPORTED, f"n = 8, Tcomm / Tcalc = {ratio}, slow") for ratio in ("4.6", "10 (9 to 11)")]
    second = [case(SUPPORTED, f"n = 8, Tcomm / Tcalc = {ratio}, slow", estimate=ratio) for ratio in ("4.4", "12")]
    assert [row["estimate_again"] for row in repetition.compare(first, second)] == ["4.4", "12"]
    assert [row["verdict_again"] for row in repetition.compare(first, second[:1])] == ["", ""]
    assert len(repetition.by_name([case(SUPPORTED, "T_comm / T_calc = 1, n = 8"), case(SUPPORTED, "n = 8")])) == 2


def test_verdicts_of_evidence_that_was_made_anew_are_counted():
    pairs = [(SUPPORTED, SUPPORTED), (INCONCLUSIVE, INCONCLUSIVE), (ALIKE, REFUTED), (SUPPORTED, INCONCLUSIVE)]
    pairs += [(INCONCLUSIVE, ALIKE), (SUPPORTED, REFUTED), (ALIKE, SUPPORTED)]
    first = [case(one, f"{number}") for number, (one, _) in enumerate(pairs)]
    second = [case(other, f"{number}", estimate="3") for number, (_, other) in enumerate(pairs)]
    first += [case(SUPPORTED, "control", kind="control"), case(SUPPORTED, "the same numbers"), case(SUPPORTED, "off")]
    second += [case(REFUTED, "control", kind="control", estimate="3"), case(SUPPORTED, "the same numbers")]
    second += [case(REFUTED, "off", kind=OFF, estimate="3")]
    found = repetition.counts(repetition.compare(first, second))
    assert found == {"cases": 7, "same": 3, "once": 2, "reversed": 2, "missing": 1, "off": 1, "apart": {}}


@pytest.mark.parametrize(
    "first, second, apart",
    [
        (("0", "2"), ("2", "3"), False),
        (("0", "2"), ("2.1", "3"), True),
        (("0", "2"), ("-3", "-0.1"), True),
        (("0", "2"), ("", "-0.1"), False),
    ],
)
def test_cases_whose_intervals_do_not_overlap_are_counted_by_paper(first, second, apart):
    one, other = (case(SUPPORTED, paper="cssgd_2021", low=low, high=high) for low, high in (first, second))
    found = repetition.counts(repetition.compare([one], [other | {"kind": OFF}]))
    assert found["apart"] == ({"cssgd_2021": 1} if apart else {})


@pytest.fixture
def recorded(tmp_path, monkeypatch):
    """Return the folder of a second recording with one case; the first recording has its opposite."""
    monkeypatch.setattr(repetition, "FOLDER", tmp_path)
    claim = next(iter(read_claims(map(folder, YEARS)).values()))
    finding = made_up.finding(claim, np.random.default_rng(0))
    made = {"machine": "2 cores", "clock": "hosts of 8 cores, AMD EPYC", "code of the runs": "abc1234"}
    outcome = Outcome(claim["targets"][0], "title", claim["paper"], "smoke", "make table", findings=[finding])
    results = tmp_path / "second" / "results"
    (results / "smoke").mkdir(parents=True)
    replace(outcome, provenance=made | {"made": "2026-01-02 03:04 UTC"}).save(results / "smoke")
    second = ScaleResult.of(results / "smoke", list(map(folder, YEARS)))
    rows = list(csv.DictReader(downloads.cases_csv(second.papers).splitlines()))
    opposite = [row | {"estimate": "0", "verdict": SUPPORTED, "kind": EVIDENCE} for row in rows]
    (tmp_path / downloads.CASES).write_text(downloads.as_csv(opposite, downloads.CASE_COLUMNS))
    return results


def test_the_comparison_is_written_and_read(recorded, tmp_path):
    repetition.main([str(recorded)])
    found = checks.load(repetition.Repetition, tmp_path / repetition.RECORD)
    assert (found.scale, found.date, found.machines, found.commits) == (
        "smoke",
        "2026-01-02",
        "8 cores, AMD EPYC",
        "abc1234",
    )
    assert (tmp_path / repetition.ERRORS).read_text() == "scale,target,algorithm,error\n"
    with (tmp_path / repetition.TABLE).open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert repetition.counts(rows).items() <= vars(found).items() and found.cases + found.missing > 0


def test_what_cannot_be_compared_is_named(recorded, tmp_path):
    with pytest.raises(SystemExit, match="no case was made anew: `make tables SCALE=desk`"):
        repetition.main([str(recorded), "--scale", "desk"])
    (tmp_path / downloads.CASES).unlink()
    with pytest.raises(SystemExit, match=downloads.CASES):
        repetition.main([str(recorded)])
    assert checks.load(repetition.Repetition, tmp_path / "none") is None
    (tmp_path / repetition.RECORD).write_text("{}")
    with pytest.raises(ValueError, match="repetition.json is damaged, make it again"):
        checks.load(repetition.Repetition, tmp_path / repetition.RECORD)


@pytest.mark.parametrize("scale", ["smoke", "desk"])
def test_the_cases_of_the_page_have_names_of_their_own(scale):
    """Only cases that differ in their measured ratio share a name; and nothing was made anew since itself."""
    with (repetition.FOLDER / downloads.CASES).open(newline="") as file:
        cases = [row for row in csv.DictReader(file) if row["scale"] == scale]
    for name, alike in repetition.by_name(cases).items():
        assert len({row["condition"] for row in alike}) == len(alike), name
    found = repetition.counts(repetition.compare(cases, cases))
    assert found["cases"] == found["missing"] == 0
