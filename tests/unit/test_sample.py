"""Numbers by seed: what is known, missed or unknown, and how it is written."""

import math

import pytest

from experiments.tables import sample
from experiments.tables.sample import Sample
from tests.support.runs import fake_run


def by_seed(*values, bounds=()) -> Sample:
    return Sample(dict(enumerate(values)), frozenset(bounds))


@pytest.mark.parametrize(
    ("found", "median", "text"),
    [
        (by_seed(11.0, 12.0, 13.0), 12.0, "12 (11 to 13)"),
        (by_seed(12.0), 12.0, "12"),
        (by_seed(11.0, 12.0, 13.0, 14.0, 9.0, bounds=[4]), 13.0, "13 (11 to 14), 1 of 5 not reached"),
        (by_seed(11.0, 12.0, 9.0, 9.0, bounds=[2, 3]), None, "2 of 4 not reached, the others 11 to 12"),
        (by_seed(9.0, 9.0, bounds=[0, 1]), None, "2 of 2 not reached"),
        (by_seed(11.0, None), 11.0, "11, 1 of 2 not known"),
        (by_seed(None, None), None, "not known"),
        (by_seed(), None, "not known"),
    ],
)
def test_median_and_text_count_what_was_missed_and_what_is_unknown(found, median, text):
    assert found.median() == median
    assert found.text() == text


def test_numbers_of_runs_go_by_their_seeds_and_one_that_is_not_finite_is_unknown():
    runs = [fake_run(seed=3), fake_run(seed=5), fake_run(seed=4)]
    values = {3: 1.5, 4: math.nan, 5: None}
    assert sample.of(runs, lambda run: values[run.attributes["seed"]]) == Sample(
        {3: 1.5, 5: None, 4: None}, algorithm="gossip"
    )


def test_bounds_stay_bounds_and_unknown_values_unknown():
    assert by_seed(2.0, None, 3.0, bounds=[2]).scaled(10) == by_seed(20.0, None, 30.0, bounds=[2])


def test_a_bound_needs_a_value():
    with pytest.raises(ValueError, match="that have no value"):
        by_seed(1.0, None, bounds=[1])
