"""Verdicts of comparisons: what samples of a few seeds say about a claim."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from experiments.runner import decide
from experiments.runner.outcome import (
    AGREES,
    ALIKE,
    AT_LEAST,
    AT_MOST,
    CONTROL,
    INCONCLUSIVE,
    LESS,
    MORE,
    REFUTED,
    SUPPORTED,
    Case,
)
from experiments.runner.sample import Sample, geometric_mean

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


# ---- verdicts on the direction


@pytest.mark.parametrize(
    ("ours", "theirs", "asked", "verdict"),
    [
        (FAST, SLOW, {}, SUPPORTED),
        (SLOW, FAST, {}, REFUTED),
        (FAST, NOISY, {}, INCONCLUSIVE),
        (FAST, FAST, {}, INCONCLUSIVE),
        (FAST, FAST, {"zone": 20.0}, ALIKE),
        (FAST, FAST, {"pairs": True}, ALIKE),
        (FAST, SLOW, {"zone": 20.0}, INCONCLUSIVE),
        (SLOW, FAST, {"zone": 30.0}, ALIKE),
        (FAST, SLOW, {"number": 52.0}, SUPPORTED),
        (FAST[:1], SLOW[:1], {}, INCONCLUSIVE),
        (UNKNOWN, SLOW, {}, INCONCLUSIVE),
        ((), (), {}, INCONCLUSIVE),
    ],
)
def test_the_direction_is_decided_by_interval_and_zone(ours, theirs, asked, verdict):
    assert less(ours, theirs, **asked).verdict == verdict


def test_an_interval_that_excludes_no_effect_is_not_enough_with_few_seeds():
    """Few seeds do not tell whether one side is skewed."""
    found = less((8.0, 9.5, 8.6), (9.9, 11.6, 10.2), source=decide.MEASURED)
    assert found.low > 0 and found.verdict == INCONCLUSIVE
    assert found.note == "not significant at 0.9 %, the level for 3 seeds"


def test_times_by_the_clock_must_differ_by_more_than_simulated_ones():
    ours = [0.94 * value for value in SLOW]
    assert less(ours, SLOW, source=decide.SIMULATED, pairs=True).verdict == SUPPORTED
    assert less(ours, SLOW, source=decide.MEASURED, pairs=True).verdict == ALIKE
    assert less([0.999 * value for value in SLOW], SLOW, zone=0.0, pairs=True).verdict == SUPPORTED


def test_accuracies_are_compared_in_points():
    ours, theirs = (88.0, 89.0, 88.4), (85.9, 86.1, 85.4)
    assert more(ours, theirs).verdict == SUPPORTED
    assert more(theirs, ours).verdict == REFUTED
    close = more((88.0, 88.1, 88.2), (88.0, 88.1, 88.1))
    assert close.verdict == ALIKE and close.zone == 1.0


@pytest.mark.parametrize("pairs", [True, False])
@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_sides_that_are_swapped_have_the_opposite_verdict(pairs, data):
    """Whatever is missed, early or not known, and with means over several numbers of nodes."""
    opposite = {SUPPORTED: REFUTED, REFUTED: SUPPORTED}
    over_nodes = [(data.draw(samples()), data.draw(samples())) for _ in range(data.draw(st.integers(1, 2)))]
    ours, theirs = map(geometric_mean, zip(*over_nodes, strict=True))
    for compare in (decide.less, decide.more):
        there, back = (compare(*sides, "", "", zone=5.0, pairs=pairs) for sides in ((ours, theirs), (theirs, ours)))
        assert back.verdict == opposite.get(there.verdict, there.verdict)
        assert (back.seeds, back.p) == (there.seeds, pytest.approx(there.p))
        assert back.bound == {AT_LEAST: AT_MOST, AT_MOST: AT_LEAST}.get(there.bound, there.bound)


@st.composite
def samples(draw) -> Sample:
    """Draw a sample of up to six seeds, of which some are bounds."""
    values = draw(st.lists(st.none() | st.floats(0.1, 10, allow_subnormal=False), max_size=6))
    kinds = [draw(st.sampled_from("exact lower upper".split())) if value else "" for value in values]
    bounds, upper = (frozenset(seed for seed, kind in enumerate(kinds) if kind == of) for of in ("lower", "upper"))
    return Sample(dict(enumerate(values)), *(bounds, upper) if draw(st.booleans()) else ())


# ---- the paper's number


@pytest.mark.parametrize(
    ("asked", "answer"),
    [
        ({"number": 15.0}, AGREES),
        ({"number": 52.0}, LESS),
        ({"number": 1.0}, MORE),
        ({}, ""),
        ({"number": 52.0, "theirs_missed": range(5)}, ""),
        ({"number": 1.0, "theirs_missed": range(5)}, MORE),
        ({"number": 52.0, "ours_missed": range(5)}, LESS),
        ({"number": 1.0, "ours_missed": range(5)}, ""),
    ],
)
def test_the_number_agrees_if_the_interval_holds_it(asked, answer):
    found = less(FAST, SLOW, **asked)
    assert (found.on_number, found.number) == (answer, asked.get("number"))


def test_a_number_is_answered_where_the_direction_is_not():
    """An interval about 0 excludes a number far from it."""
    found = less(SLOW, [1.01 * value for value in SLOW], number=52.0)
    assert (found.verdict, found.on_number) == (INCONCLUSIVE, LESS)


def test_the_true_number_agrees_in_95_per_cent():
    random, answers = np.random.default_rng(7), []
    for _ in range(400):
        ours, theirs = (np.exp(0.1 * random.normal(size=5)) for _ in range(2))
        answers.append(less(0.7 * ours, theirs, number=30.0, source=decide.MEASURED).on_number)
    assert 0.93 <= answers.count(AGREES) / len(answers) <= 0.97


# ---- samples without spread, or with little in them


def test_one_pair_is_shown_and_decides_nothing():
    found = less((5.0,), (10.0,))
    assert found.estimate == pytest.approx(50) and found.low is found.high is found.p is None


def test_without_spread_the_interval_is_a_point_and_two_pairs_decide():
    found = less((5.0, 5.0), (10.0, 10.0))
    assert found.verdict == SUPPORTED and found.low == found.high == found.estimate


def test_rounding_errors_are_no_difference():
    assert less([value * (1 + 1e-15) for value in FAST], FAST, zone=0.0, pairs=True).verdict == ALIKE
    assert more([0.1 + 0.2] * 3, [0.3] * 3, zone=0.0).verdict == ALIKE


def test_nothing_at_all_is_less_than_anything():
    assert less((0.0, 0.0), (3.0, 4.0)).estimate == 100
    assert less((0.0, 0.0), (0.0, 0.0)).verdict == ALIKE
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


def test_what_our_side_missed_bounds_the_saving_from_above():
    found = less(SLOW, FAST, ours_missed=range(5))
    assert (found.verdict, found.bound, found.low) == (REFUTED, AT_MOST, None)
    assert less(FAST, SLOW, ours_missed=range(5)).verdict == INCONCLUSIVE


def test_a_pair_that_missed_on_both_sides_is_not_known():
    found = less(FAST, SLOW, ours_missed=[0], theirs_missed=[0], pairs=True)
    assert (found.verdict, found.seeds, found.note) == (SUPPORTED, 4, "1 of 5 seeds not known")
    assert less(FAST, SLOW, ours_missed=range(5), theirs_missed=range(5)).estimate is None


def test_a_bound_on_the_other_side_of_no_effect_says_why_it_decides_nothing():
    found = less(SLOW, FAST, theirs_missed=[1])
    assert (found.verdict, found.bound) == (INCONCLUSIVE, AT_LEAST) and "only a bound" in found.note
    assert "only a bound" not in less(FAST, SLOW, theirs_missed=[1]).note
    assert less(FAST, SLOW, ours_missed=[1]).verdict == INCONCLUSIVE


def test_bounds_of_both_kinds_decide_nothing():
    found = less(FAST, SLOW, ours_missed=[0], theirs_missed=[1])
    assert (found.verdict, found.estimate) == (INCONCLUSIVE, None) and "bounds of both kinds" in found.note


def test_what_was_there_at_the_first_snapshot_bounds_the_other_way():
    early = Sample(dict(enumerate(FAST)), upper=frozenset({1}))
    assert decide.less(early, by_seed(SLOW), "", "").bound == AT_LEAST
    assert decide.less(by_seed(SLOW), early, "", "").bound == AT_MOST


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
    assert no_worse(ours, theirs, margin=1.0, pairs=True).verdict == verdict


@pytest.mark.parametrize(
    ("values", "least", "most"),
    [
        ((0.95, 0.952, 0.948), SUPPORTED, REFUTED),
        ((0.85, 0.852, 0.848), REFUTED, SUPPORTED),
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
        (less(FAST, SLOW), "more than 5 % less time"),
        (less(FAST, SLOW, source=decide.MEASURED), "more than 10 % less time"),
        (more(FAST, SLOW), "more than 1 point"),
        (no_worse(FAST, SLOW), "at most 1 point worse"),
        (decide.at_most(by_seed(FAST), 0.25, "", "of a step"), "at most 0.25 of a step"),
    ],
)
def test_a_case_says_what_it_would_take(found, criterion):
    assert found.criterion == criterion


# ---- several cases


def supported(p: float, **other) -> Case:
    return Case("", "", SUPPORTED, 1.0, 0.5, 1.5, "points", 5, p=p, **other)


def test_p_values_are_corrected_by_the_procedure_of_hochberg():
    cases = decide.corrected([supported(p) for p in (0.03, 0.005, 0.01, 0.06)])
    assert [case.verdict for case in cases] == [INCONCLUSIVE, SUPPORTED, SUPPORTED, INCONCLUSIVE]
    assert cases[0].note == "not significant as one of 4 cases"


def test_nothing_is_corrected_where_all_cases_are_significant():
    cases = [supported(p) for p in (0.04, 0.049, 0.03, 0.048)]
    assert decide.corrected(cases) == cases


def test_only_evidence_with_a_test_is_corrected():
    control, single = supported(0.04, kind=CONTROL), supported(0.04)
    facts = [decide.fact(True, ""), decide.fact(None, "")]
    assert decide.corrected([control, single, *facts]) == [control, single, *facts]
