"""Numbers by seed: what is known, missed or unknown, and how it is written."""

import math

import pytest

from experiments.runner import sample
from experiments.runner.conditions import Conditions
from experiments.runner.needs import product, to_target
from experiments.runner.sample import Sample
from experiments.runner.scale import SMOKE
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
        {3: 1.5, 5: None, 4: None}, algorithms=frozenset(["gossip"])
    )


def test_bounds_stay_bounds_and_unknown_values_unknown():
    assert by_seed(2.0, None, 3.0, bounds=[2]).scaled(10) == by_seed(20.0, None, 30.0, bounds=[2])


def test_a_target_that_is_missed_or_reached_at_the_first_snapshot_bounds_the_time():
    missed, early, between = (
        fake_run(seed=seed, target_accuracy=target) for seed, target in enumerate((0.95, 0.45, 0.45))
    )
    early.curve["test_accuracy"][:] = [math.nan, 0.5, 0.6, 0.7, 0.8]
    found = to_target([missed, early, between], "time")
    assert (found.bounds, found.upper) == ({0}, {1})
    assert found.values == pytest.approx({0: 40.0, 1: 10.0, 2: 22.5})
    assert product(found, Sample({0: 2.0, 1: 2.0})).upper == {1} and found.scaled(2).upper == {1}


def test_a_bound_needs_a_value():
    with pytest.raises(ValueError, match="that have no value"):
        by_seed(1.0, None, bounds=[1])


def test_an_upper_bound_is_less_than_all_values():
    early = Sample({0: 2.0, 1: 3.0, 2: 4.0}, upper=frozenset({0}))
    assert early.median() == 3.0 and early.text() == "3 (3 to 4), 1 of 3 at most 2"
    assert Sample({0: 2.0, 1: 2.0, 2: 4.0}, upper=frozenset({0, 1})).median() is None
    with pytest.raises(ValueError, match="a lower and an upper bound"):
        Sample({0: 2.0}, frozenset({0}), frozenset({0}))


@pytest.mark.parametrize(
    ("config", "label"),
    [
        ("adgossip/adaptive", "adaptive gossip"),
        ("adgossip/gossip_1", "gossip every step"),
        ("adgossip/gossip_10", "gossip every 10 steps"),
        ("adgossip/easgd", "easgd every 10 steps"),
        ("cssgd/dnn/coded", "cssgd coded r=2 n=8"),
        ("grsgd/dpsgd", "dpsgd"),
    ],
)
def test_variants_of_an_algorithm_have_labels_of_their_own(config, label):
    loaded = Conditions(SMOKE, emulated=True).load(config, ())
    run = fake_run(ranks=8, label=loaded.traits.label, config=loaded.toml())
    assert sample.label_of(loaded, 8) == label and sample.labels_of([run]) == {label}
