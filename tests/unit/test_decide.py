"""Verdicts of comparisons: what samples of a few seeds say about a claim."""

import math

import pytest
from scipy import stats

from experiments.tables import decide
from experiments.tables.outcome import (
    AT_LEAST,
    AT_MOST,
    CONTROL,
    INCONCLUSIVE,
    REFUTED,
    SAME_DIRECTION,
    SUPPORTED,
    Case,
)
from experiments.tables.sample import Sample

FAST, SLOW = (8.0, 9.0, 8.5, 8.1, 9.2), (10.0, 11.0, 10.2, 9.9, 11.5)
NOISY = (7.0, 13.0, 9.0, 12.0, 8.5)
UNKNOWN = (None,) * 5


def by_seed(values, bounds=()) -> Sample:
    return Sample(dict(enumerate(values)), frozenset(bounds))


def less(ours, theirs, ours_missed=(), theirs_missed=(), **other) -> Case:
    return decide.less(by_seed(ours, ours_missed), by_seed(theirs, theirs_missed), "n = 8", "ring", **other)


def more(ours, theirs, **other) -> Case:
    return decide.more(by_seed(ours), by_seed(theirs), "n = 8", "ring", **other)


def no_worse(ours, theirs, **other) -> Case:
    return decide.no_worse(by_seed(ours), by_seed(theirs), "n = 8", "ring", **other)


# ---- the statistics


def test_savings_have_the_paired_t_interval_of_logarithms():
    test = stats.ttest_rel([math.log(theirs) for theirs in SLOW], [math.log(ours) for ours in FAST])
    low, high = test.confidence_interval(0.95)
    found = less(FAST, SLOW)
    assert found.p == pytest.approx(test.pvalue)
    assert (found.low, found.high) == pytest.approx((100 * (1 - math.exp(-low)), 100 * (1 - math.exp(-high))))
    ratio = math.prod(a / b for a, b in zip(FAST, SLOW, strict=True)) ** 0.2
    assert found.estimate == pytest.approx(100 * (1 - ratio)) and found.seeds == 5


def test_differences_have_the_paired_t_interval():
    test = stats.ttest_rel(SLOW, FAST)
    found = more(SLOW, FAST)
    assert (found.low, found.high) == pytest.approx(tuple(test.confidence_interval(0.95)))
    assert found.p == pytest.approx(test.pvalue)


def test_pairs_go_by_seed():
    ours, theirs = Sample({1: 8.0, 2: 16.0, 3: 4.0}), Sample({3: 5.0, 1: 10.0, 2: 20.0, 7: 1.0})
    found = decide.less(ours, theirs, "", "")
    assert found.low == found.high == found.estimate == pytest.approx(20)
    assert found.seeds == 3 and found.note == "1 of 4 seeds not known"


# ---- verdicts on differences


@pytest.mark.parametrize(
    ("ours", "theirs", "asked", "verdict"),
    [
        (FAST, SLOW, {}, SUPPORTED),
        (SLOW, FAST, {}, REFUTED),
        (FAST, NOISY, {}, INCONCLUSIVE),
        (FAST, FAST, {}, INCONCLUSIVE),
        (FAST, SLOW, {"number": 15.0}, SUPPORTED),
        (FAST, SLOW, {"number": 52.0}, SAME_DIRECTION),
        (SLOW, FAST, {"number": 52.0}, REFUTED),
        (FAST, SLOW, {"margin": 30.0}, INCONCLUSIVE),
        (SLOW, FAST, {"margin": 30.0}, INCONCLUSIVE),
        (FAST[:1], SLOW[:1], {}, INCONCLUSIVE),
        (UNKNOWN, SLOW, {}, INCONCLUSIVE),
        ((), (), {}, INCONCLUSIVE),
    ],
)
def test_less_is_decided_by_interval_margin_and_the_number_of_the_paper(ours, theirs, asked, verdict):
    assert less(ours, theirs, **asked).verdict == verdict


def test_times_by_the_clock_must_differ_by_more_than_simulated_ones():
    ours = [0.94 * value for value in SLOW]
    assert less(ours, SLOW, source=decide.SIMULATED).verdict == SUPPORTED
    assert less(ours, SLOW, source=decide.MEASURED).verdict == INCONCLUSIVE
    assert less([0.999 * value for value in SLOW], SLOW, source="").verdict == SUPPORTED


def test_accuracies_are_compared_in_points():
    ours, theirs = (88.0, 89.0, 88.4), (85.9, 87.1, 86.4)
    assert more(ours, theirs).verdict == SUPPORTED
    assert more(ours, theirs, number=3.29).verdict == SAME_DIRECTION
    assert more(theirs, ours).verdict == REFUTED


# ---- samples without spread, or with little in them


def test_one_pair_is_shown_and_decides_nothing():
    found = less((5.0,), (10.0,))
    assert found.estimate == pytest.approx(50) and found.low is found.high is found.p is None


def test_without_spread_the_interval_is_a_point_and_two_pairs_decide():
    found = less((5.0, 5.0), (10.0, 10.0))
    assert found.verdict == SUPPORTED and found.low == found.high == found.estimate


def test_rounding_errors_are_no_difference():
    assert less([value * (1 + 1e-15) for value in FAST], FAST, margin=0.0).verdict == INCONCLUSIVE
    assert more([0.1 + 0.2] * 3, [0.3] * 3).verdict == INCONCLUSIVE


def test_nothing_at_all_is_less_than_anything():
    assert less((0.0, 0.0), (3.0, 4.0)).estimate == 100
    assert less((0.0, 0.0), (0.0, 0.0)).verdict == INCONCLUSIVE
    assert less((0.0, 1.0), (3.0, 4.0)).estimate is less((3.0, 4.0), (0.0, 0.0)).estimate is None


def test_negative_times_are_refused():
    with pytest.raises(ValueError, match="not negative"):
        less((-1.0, 2.0), (3.0, 4.0))


# ---- trainings that ended before their target


def test_what_the_other_side_missed_bounds_the_saving_from_below():
    found = less(FAST, SLOW, theirs_missed=range(5))
    assert (found.verdict, found.bound, found.high) == (SUPPORTED, AT_LEAST, None)
    assert less(FAST, SLOW, theirs_missed=[2]).bound == AT_LEAST
    assert less(SLOW, FAST, theirs_missed=range(5)).verdict == INCONCLUSIVE, "it would have taken longer"
    assert less(FAST, SLOW, theirs_missed=range(5), number=52.0).verdict == INCONCLUSIVE, "it may be as much"
    assert less(FAST, SLOW, theirs_missed=range(5), number=15.0).verdict == SUPPORTED


def test_what_our_side_missed_bounds_the_saving_from_above():
    found = less(SLOW, FAST, ours_missed=range(5))
    assert (found.verdict, found.bound, found.low) == (REFUTED, AT_MOST, None)
    assert less(FAST, SLOW, ours_missed=range(5)).verdict == INCONCLUSIVE


def test_a_pair_that_missed_on_both_sides_is_not_known():
    found = less(FAST, SLOW, ours_missed=[0, 1], theirs_missed=[0, 1])
    assert (found.verdict, found.seeds, found.note) == (SUPPORTED, 3, "2 of 5 seeds not known")
    assert less(FAST, SLOW, ours_missed=range(5), theirs_missed=range(5)).estimate is None


def test_bounds_of_both_kinds_decide_nothing():
    found = less(FAST, SLOW, ours_missed=[0], theirs_missed=[1])
    assert (found.verdict, found.estimate) == (INCONCLUSIVE, None) and "each side missed" in found.note


# ---- margins and thresholds


@pytest.mark.parametrize(
    ("lost", "verdict"),
    [
        ((0.1, 0.0, -0.2, 0.3, 0.1), SUPPORTED),
        ((0.0,) * 5, SUPPORTED),
        ((1.0,) * 5, SUPPORTED),
        ((2.1, 2.0, 1.8, 2.3, 2.1), REFUTED),
        ((0.9, 1.0, 0.8, 1.3, 1.1), INCONCLUSIVE),
        ((-2.0, 2.0, 1.0, -1.5, 0.6), INCONCLUSIVE),
        ((0.1,), INCONCLUSIVE),
    ],
)
def test_not_worse_is_decided_by_the_interval_and_the_margin(lost, verdict):
    theirs = (88.0, 89.1, 88.4, 87.9, 88.8)[: len(lost)]
    ours = [value - less for value, less in zip(theirs, lost, strict=True)]
    assert no_worse(ours, theirs, margin=1.0).verdict == verdict


@pytest.mark.parametrize(
    ("values", "least", "most"),
    [
        ((0.95, 0.96, 0.94), SUPPORTED, REFUTED),
        ((0.85, 0.86, 0.84), REFUTED, SUPPORTED),
        ((0.95, 0.85, 0.90), INCONCLUSIVE, INCONCLUSIVE),
        ((0.9, 0.9), SUPPORTED, SUPPORTED),
        ((0.95,), INCONCLUSIVE, INCONCLUSIVE),
    ],
)
def test_thresholds_are_decided_by_the_interval(values, least, most):
    assert decide.at_least(by_seed(values), 0.9, "").verdict == least
    assert decide.at_most(by_seed(values), 0.9, "").verdict == most


def test_a_bound_can_pass_a_threshold_only_upwards():
    assert decide.at_least(by_seed((5.0, 5.1, 5.2), [0]), 4.0, "").verdict == SUPPORTED
    assert decide.at_most(by_seed((5.0, 5.1, 5.2), [0]), 4.0, "").verdict == REFUTED
    assert decide.at_most(by_seed((5.0, 5.1, 5.2), [0]), 6.0, "").verdict == INCONCLUSIVE


@pytest.mark.parametrize(("holds", "verdict"), [(True, SUPPORTED), (False, REFUTED), (None, INCONCLUSIVE)])
def test_facts_need_no_seeds(holds, verdict):
    found = decide.fact(holds, "8 ranks", estimate=3.0)
    assert (found.verdict, found.seeds, found.p, found.text()) == (verdict, 0, None, "3")


@pytest.mark.parametrize(
    ("found", "criterion"),
    [
        (less(FAST, SLOW), "at least 2 % less time"),
        (less(FAST, SLOW, number=52.0), "at least 52 % less time"),
        (more(FAST, SLOW), "more than 0 points"),
        (no_worse(FAST, SLOW), "at most 1 point worse"),
        (decide.at_most(by_seed(FAST), 0.25, "", "of a step"), "at most 0.25 of a step"),
    ],
)
def test_a_case_says_what_it_would_take(found, criterion):
    assert found.criterion == criterion


# ---- several cases


def test_p_values_are_corrected_by_holm():
    cases = [Case("", "", SUPPORTED, 1.0, 0.5, 1.5, "points", 5, p=p) for p in (0.03, 0.005, 0.01, 0.04)]
    assert [case.verdict for case in decide.holm(cases)] == [INCONCLUSIVE, SUPPORTED, SUPPORTED, INCONCLUSIVE]
    assert decide.holm(cases)[0].note == "not significant as one of 4 cases"


def test_only_evidence_with_a_test_is_corrected():
    control = Case("", "", SUPPORTED, 1.0, 0.5, 1.5, "points", 5, kind=CONTROL, p=0.04)
    single = Case("", "", SUPPORTED, 1.0, 0.5, 1.5, "points", 5, p=0.04)
    facts = [decide.fact(True, ""), decide.fact(None, "")]
    assert decide.holm([control, single, *facts]) == [control, single, *facts]
