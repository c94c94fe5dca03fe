"""What cases and findings say in words, and how they are kept."""

import pytest

from experiments.runner import outcome
from experiments.runner.outcome import (
    ALIKE,
    BY_CONSTRUCTION,
    CONTROL,
    EVIDENCE,
    INCONCLUSIVE,
    REFUTED,
    SUPPORTED,
    Case,
    Finding,
    Outcome,
)


def case(verdict=SUPPORTED, estimate=12.3, low=9.0, high=15.1, unit="% less time", seeds=5, **other) -> Case:
    return Case("n = 8", "ring all-reduce", verdict, estimate, low, high, unit, seeds, **other)


@pytest.mark.parametrize(
    ("found", "text"),
    [
        (case(), "12.3 % less time (9.0 to 15.1, 5 seeds)"),
        (case(estimate=-12.3, low=-15.1, high=-9.0), "12.3 % more time (9.0 to 15.1, 5 seeds)"),
        (case(estimate=-1.0, low=-3.0, high=1.0, unit="% fewer bytes"), "1.0 % more bytes (-1.0 to 3.0, 5 seeds)"),
        (
            case(estimate=40.0, low=35.0, high=None, bound="at least"),
            "at least 35.0 % less time (5 seeds)",
        ),
        (
            case(estimate=-40.0, low=None, high=-35.0, bound="at most"),
            "at least 35.0 % more time (5 seeds)",
        ),
        (case(estimate=4.0, low=-3.0, high=None, bound="at least"), "at most 3.0 % more time (5 seeds)"),
        (case(estimate=4.0, low=None, high=None, bound="at least"), "at least 4.0 % less time (5 seeds)"),
        (case(estimate=-0.5, low=-0.8, high=0.25, unit="points"), "-0.50 points (-0.80 to +0.25, 5 seeds)"),
        (case(estimate=5.0, low=5.0, high=5.0), "5.0 % less time (no spread, 5 seeds)"),
        (case(low=None, high=None, seeds=1), "12.3 % less time (1 seed)"),
        (case(pairs=True), "12.3 % less time (9.0 to 15.1, 5 pairs)"),
        (case(estimate=3.0, low=None, high=None, unit="", seeds=0), "3"),
        (case(estimate=None), "not known"),
    ],
)
def test_a_case_is_written_with_its_interval_and_its_seeds(found, text):
    assert found.text() == text


@pytest.mark.parametrize(
    ("cases", "verdict"),
    [
        ([case(), case()], SUPPORTED),
        ([case(ALIKE)] * 3, ALIKE),
        ([case(REFUTED), case(kind=CONTROL), case(kind=BY_CONSTRUCTION)], REFUTED),
        ([case(), case(), case(REFUTED), case()], "supported in 3 of 4 cases; refuted in 1"),
        ([case(INCONCLUSIVE), case(REFUTED)], "refuted in 1 of 2 cases; inconclusive in 1"),
        ([case(kind=BY_CONSTRUCTION), case(REFUTED, kind=CONTROL)], BY_CONSTRUCTION),
        ([case(kind=BY_CONSTRUCTION), case(REFUTED, kind=BY_CONSTRUCTION)], INCONCLUSIVE),
        ([case(kind=CONTROL)], INCONCLUSIVE),
        ([], INCONCLUSIVE),
    ],
)
def test_a_finding_counts_its_evidence_alone(cases, verdict):
    assert Finding("claim", "time to accuracy", cases).verdict == verdict


def test_an_outcome_is_the_same_after_it_was_saved(tmp_path):
    cases = [case(kind=EVIDENCE, p=0.01), case(INCONCLUSIVE, estimate=None, low=None, high=None, note="too few")]
    made = Outcome("figure", "Title", "paper", "smoke", "make", findings=[Finding("claim", "time", cases, "so", ["a"])])
    made.save(tmp_path)
    assert outcome.load(tmp_path / "figure.json") == made


def test_an_outcome_of_another_layout_is_refused(tmp_path):
    (tmp_path / "figure.json").write_text('{"tables": [], "figures": [], "findings": [{"claim": "x"}]}')
    with pytest.raises(ValueError, match="make its target again"):
        outcome.load(tmp_path / "figure.json")
