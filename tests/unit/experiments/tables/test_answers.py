"""Answers to claims: the evidence of all scales, the best first, and how sure it is."""

from dataclasses import replace

import pytest

from experiments.runner.outcome import (
    AGREES,
    ALIKE,
    BY_CONSTRUCTION,
    CONTROL,
    INCONCLUSIVE,
    OFF,
    REFUTED,
    SUPPORTED,
    Case,
    Finding,
    Outcome,
)
from experiments.runner.run_spec import MEASURED, SIMULATED
from experiments.tables import sentences
from experiments.tables.answers import ONE_SIDED, OPEN, SURE, Answer
from experiments.tables.claims import ClaimResult

CLAIM = {"id": "faster", "statement": "It is faster.", "kind": "direction", "method": "documented", "targets": ["time"]}
FASTER = Case("equal ranks", "ring", SUPPORTED, 20.0, 10.0, 30.0, "% less time", 5, SIMULATED, p=0.01)
SLOWER = replace(FASTER, verdict=REFUTED, estimate=-20.0, low=-30.0, high=-10.0)
OPEN_CASE = replace(FASTER, verdict=INCONCLUSIVE, low=-10.0, p=0.3, seeds_needed=12)


def answer(*by_scale: list[Case]) -> Answer:
    """What scales of the names of ``SCALES`` have found: the first says most."""
    results = []
    for name, cases in zip(("desk", "smoke"), by_scale, strict=False):
        outcome = Outcome("time", "Time", "fast", name, "make table-time")
        results.append(ClaimResult(CLAIM, [(outcome, Finding("faster", "", cases))] if cases else [], [], []))
    return Answer(results)


def test_what_is_measured_comes_first_whichever_scale_it_is_of():
    clock = replace(FASTER, source=MEASURED, estimate=12.0)
    found = answer([FASTER], [clock])
    assert [one.case for one in found.holding] == [clock, FASTER]
    assert "(`smoke`)" in sentences.effect(found.holding[0])


def test_no_scale_hides_what_another_one_has_decided():
    assert answer([OPEN_CASE], [FASTER]).holding[0].case == FASTER
    assert answer([FASTER], [SLOWER]).failing[0].case == SLOWER


def test_the_clock_decides_where_the_simulator_says_otherwise():
    clock = replace(SLOWER, source=MEASURED, condition="equal ranks, measured")
    found = answer([FASTER, clock])
    assert not found.holding and [one.case for one in found.failing] == [clock]
    elsewhere = replace(FASTER, condition="slow links")
    assert answer([elsewhere, clock]).holding[0].case == elsewhere
    assert answer([FASTER], [clock]).holding[0].case == FASTER, "of another scale, which trains another model"


def test_a_case_that_several_scales_share_is_counted_once():
    assert len(answer([FASTER], [FASTER]).evidence) == 1


def test_no_difference_is_an_answer_and_speaks_against_the_claim():
    found = answer([replace(FASTER, verdict=ALIKE, estimate=1.0, low=-2.0, high=3.0)])
    assert found.is_decided and not found.holding
    assert sentences.effect(found.failing[0]) == (
        "○ no difference: 1.0 % less time (-2.0 to 3.0, 5 seeds) than ring, equal ranks (`desk`)"
    )


@pytest.mark.parametrize(
    "cases, grade",
    [
        ([FASTER, replace(FASTER, source=MEASURED, condition="equal ranks, measured")], SURE),
        ([FASTER, replace(FASTER, source=MEASURED, condition="slow links")], ONE_SIDED),
        ([FASTER, replace(OPEN_CASE, source=MEASURED)], ONE_SIDED),
        ([FASTER], ONE_SIDED),
        ([replace(FASTER, source=MEASURED)], ONE_SIDED),
        ([replace(FASTER, source="", unit="% fewer bytes")], SURE),
        ([OPEN_CASE], OPEN),
    ],
)
def test_the_grade_is_that_of_measured_and_simulated_times_together(cases, grade):
    found = answer(cases)
    assert {found.grade(one) for one in found.holding or found.open} == {grade}


def test_a_slow_host_by_the_clock_stands_for_a_slow_rank():
    rank = replace(FASTER, condition="one rank 4 times slower, n = 8")
    host = replace(FASTER, condition="one host 4 times slower, n = 8", source=MEASURED)
    assert len({one.place for one in answer([rank, host]).evidence}) == 1


def test_controls_and_what_is_true_by_construction_are_no_evidence():
    kinds = [replace(FASTER, kind=CONTROL), replace(FASTER, kind=BY_CONSTRUCTION)]
    found = answer(kinds)
    assert not found.evidence and not found.is_decided and found.is_built
    assert [one.case for one in found.controls] == kinds[:1]


def test_an_undecided_claim_says_what_would_decide_it():
    needs_more = replace(OPEN_CASE, condition="slow links", seeds_needed=40)
    assert sentences.how_sure(answer([needs_more, OPEN_CASE])) == (
        "C: ○ 20.0 % less time (-10.0 to 30.0, 5 seeds) than ring, equal ranks (`desk`); "
        "about 12 seeds in all would decide it"
    )
    unmade = Answer([ClaimResult(CLAIM, [], ["time"], [])])
    assert sentences.how_sure(unmade) == "C: not made yet, `make table-time`"


def test_what_the_simulator_is_too_far_off_for_is_left_to_the_clock():
    off = replace(FASTER, kind=OFF, simulator_error="against measured times of the same trainings: grsgd -45%")
    found = answer([off])
    assert not found.is_decided and not found.is_built
    assert sentences.how_sure(found).endswith("; simulator's error: grsgd -45%; a measured run has to decide")
    clock = replace(SLOWER, source=MEASURED)
    assert [one.case for one in answer([off, clock]).evidence] == [clock]


def test_undecided_cases_are_counted_once_beside_the_evidence_for_a_claim():
    found = answer([FASTER, replace(SLOWER, condition="slow links"), replace(OPEN_CASE, condition="fast links")])
    assert sentences.best(found.holding, found).endswith("; 1 of 3 cases, 1 undecided")
    assert sentences.best(found.failing, found).endswith("; 1 of 3 cases")
    without = answer([SLOWER, replace(OPEN_CASE, condition="fast links")])
    assert sentences.best(without.failing, without).endswith("; 1 of 2 cases, 1 undecided")


def test_how_sure_tells_what_holds_from_what_does_not():
    clock = replace(FASTER, source=MEASURED)
    slow = replace(SLOWER, condition="slow links", simulator_error="against measured times: grsgd -9%")
    words = "A that it holds, B that it does not; simulator's error: grsgd -9%"
    assert sentences.how_sure(answer([FASTER, clock, slow])) == words


def test_a_claim_with_a_number_per_baseline_names_the_best_evidence_on_each():
    ring = replace(FASTER, number=22.0, on_number=AGREES)
    push = replace(FASTER, baseline="push", number=50.0, on_number=AGREES)
    undecided = replace(OPEN_CASE, baseline="SSP", number=9.0, seeds_needed=40)
    found = answer([ring, replace(ring, condition="slow links"), push, undecided])
    both = sentences.best(found.holding, found)
    assert both.count("than ring") == 1 and "than push, agrees with the paper's 50" in both
    assert both.endswith("; 3 of 4 cases, 1 undecided")
    assert "C against SSP (about 40 seeds would decide)" in sentences.how_sure(found)
    assert "C against ring" not in sentences.how_sure(found)
    without = answer([ring, push, undecided, replace(OPEN_CASE, condition="slow links")])
    assert "than push" not in sentences.best(without.holding, without)
    assert "C against" not in sentences.how_sure(without)


def test_the_number_of_the_paper_stands_beside_what_holds():
    (one,) = answer([replace(FASTER, number=22.0, on_number=AGREES)]).holding
    assert "than ring, agrees with the paper's 22, equal ranks" in sentences.effect(one)


def test_the_first_sentence():
    assert sentences.first_sentence("It cannot be had. Nor can\nthat.") == "It cannot be had."
