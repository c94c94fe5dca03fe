"""Comparison of two recordings of a scale: cases are matched by name, and verdicts counted."""

import csv
import json

import pytest

from experiments.runner.outcome import ALIKE, EVIDENCE, INCONCLUSIVE, REFUTED, SUPPORTED
from experiments.tables import downloads, repetition
from experiments.tables.scale_result import ScaleResult


def case(verdict, condition="equal ranks", kind=EVIDENCE, **other):
    fixed = {"verdict": verdict, "condition": condition, "kind": kind, "estimate": "1", "low": "0", "high": "2"}
    return dict.fromkeys(repetition.OF_A_CASE, "") | fixed | other


def test_cases_are_matched_by_their_names_and_their_order():
    first = [case(SUPPORTED), case(REFUTED), case(ALIKE, "slow links"), case(SUPPORTED, "only in the first")]
    second = [case(ALIKE, "slow links", estimate="7"), case(SUPPORTED), case(INCONCLUSIVE), case(REFUTED, "new")]
    rows = repetition.compare(first, second)
    assert [(row["verdict"], row["again"]) for row in rows] == [
        (SUPPORTED, SUPPORTED),
        (REFUTED, INCONCLUSIVE),
        (ALIKE, ALIKE),
    ]
    assert (rows[2]["estimate"], rows[2]["estimate_again"]) == ("1", "7")


def test_verdicts_of_evidence_are_counted():
    pairs = [(SUPPORTED, SUPPORTED), (INCONCLUSIVE, INCONCLUSIVE), (SUPPORTED, INCONCLUSIVE), (INCONCLUSIVE, ALIKE)]
    pairs += [(SUPPORTED, REFUTED), (ALIKE, REFUTED)]
    rows = [case(one, again=other) for one, other in pairs] + [case(SUPPORTED, kind="control", again=REFUTED)]
    assert repetition.counts(rows) == {"cases": 6, "same": 2, "once": 2, "reversed": 2}


def test_the_comparison_is_written_and_read(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(repetition, "FOLDER", tmp_path)
    monkeypatch.setattr(ScaleResult, "of", lambda folder, papers: ScaleResult(folder.name, {}, {}, []))
    (tmp_path / downloads.CASES).write_text("scale\n")
    with pytest.raises(SystemExit, match="no outcomes: `make tables SCALE=desk` makes some"):
        repetition.main([str(tmp_path), "--scale", "desk"])
    found = repetition.Repetition("smoke", "2026-12-01", "2 cores", "abc", cases=5, same=3, once=1, reversed=1)
    (tmp_path / repetition.RECORD).write_text(json.dumps(vars(found)))
    assert repetition.load(tmp_path / repetition.RECORD) == found and repetition.load(tmp_path / "none") is None
    (tmp_path / repetition.RECORD).write_text("{}")
    with pytest.raises(ValueError, match="repetition.json is damaged, make it again"):
        repetition.load(tmp_path / repetition.RECORD)


def test_a_recording_agrees_with_itself():
    """All cases of the page have different names, so each is compared with itself."""
    with (repetition.FOLDER / downloads.CASES).open(newline="") as file:
        cases = list(csv.DictReader(file))
    rows = repetition.compare(cases, cases)
    assert len(rows) == len(cases) > 0 and all(row["verdict"] == row["again"] for row in rows)
    assert repetition.counts(rows)["once"] == repetition.counts(rows)["reversed"] == 0
