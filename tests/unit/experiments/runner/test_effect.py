"""Intervals of differences: of pairs and of independent samples, of few seeds and of skewed ones."""

import numpy as np
import pytest
from scipy import stats

from experiments.runner import effect
from experiments.runner.effect import Effect, level, of_one, paired, seeds_to_decide, unpaired
from experiments.runner.sample import Sample

FAST, SLOW = (8.0, 9.0, 8.5, 8.1, 9.2), (10.0, 11.0, 10.2, 9.9, 11.5)


def by_seed(*values) -> Sample:
    return Sample(dict(enumerate(values)))


@pytest.mark.parametrize(
    ("compare", "test"),
    [(paired, stats.ttest_rel), (unpaired, lambda *sides: stats.ttest_ind(*sides, equal_var=False))],
    ids=["paired", "unpaired"],
)
def test_intervals_and_p_values_are_those_of_students_t(compare, test):
    found, expected = compare(by_seed(*FAST), by_seed(*SLOW)), test(FAST, SLOW)
    assert found.interval() == pytest.approx(tuple(expected.confidence_interval(0.95)))
    assert found.p() == pytest.approx(min(1, expected.pvalue * effect.SIGNIFICANCE / level(5)))


def test_few_seeds_are_tested_at_less_than_one_per_cent():
    levels = [level(seeds) for seeds in (2, 5, 10, 15, 20, 50, 100)]
    assert levels == pytest.approx([0.009, 0.009, 0.009, 0.0135, 0.018, 0.045, 0.05])


def test_the_test_is_stricter_than_the_interval():
    for seed in range(50):
        random = np.random.default_rng(seed)
        found = unpaired(by_seed(*random.exponential(size=6)), by_seed(*random.exponential(size=4)))
        for limit in found.interval():
            assert found.p(limit) == pytest.approx(min(1, 0.05 * 0.05 / level(4)))


def test_pairs_go_by_seed():
    ours, theirs = Sample({1: 8.0, 2: 9.0, 3: 4.0}), Sample({3: 5.0, 1: 9.0, 2: 10.0, 7: 1.0})
    found = paired(ours, theirs)
    assert found == Effect(-1.0, 0.0, seeds=3, note="1 of 4 seeds not known")


def test_seeds_that_share_a_calibration_are_not_independent():
    """Twenty seeds of three calibrations are no more than three where calibrations are all that differs."""
    by_calibration = (1.0, 2.0, 4.0)
    sample = by_seed(*(by_calibration[seed % 3] + 0.001 * (seed % 2) for seed in range(18)))
    alone, together = of_one(sample), of_one(sample, calibrations=3)
    assert together.mean == alone.mean and together.spread == pytest.approx((1.0005, 4.0005))
    assert together.freedom < 3 and together.error > np.std(by_calibration, ddof=1) / np.sqrt(3)
    assert alone.freedom == 17 and alone.spread is None


def test_where_calibrations_do_not_matter_their_number_does_not():
    values = np.random.default_rng(4).permutation(np.tile(np.linspace(-1, 1, 6), 3)).reshape(6, 3)
    values += -values.mean(axis=0)
    sample = by_seed(*values.ravel())
    assert of_one(sample, calibrations=3).error == of_one(sample).error


def test_independent_samples_may_have_other_seeds():
    found = unpaired(Sample({1: 8.0, 2: 16.0, 3: None}), Sample({7: 1.0, 8: 2.0, 9: 3.0}))
    assert (found.mean, found.seeds, found.note) == (10.0, 2, "1 of 6 runs not known")


@pytest.mark.parametrize("spread", [0.15, 0.3])
def test_so_many_seeds_decide_in_four_of_five(spread):
    few = Effect(0.2, spread / np.sqrt(5), 4.0, seeds=5)
    seeds, random = seeds_to_decide(few, 0.05), np.random.default_rng(2)
    found = [of_one(by_seed(*random.normal(0.2, spread, seeds))) for _ in range(400)]
    assert 0.75 < np.mean([each.p() < effect.SIGNIFICANCE and each.mean > 0.05 for each in found]) < 0.97


def test_an_effect_within_the_zone_is_decided_by_equivalence():
    few = Effect(0.0, 0.1 / np.sqrt(5), 4.0, seeds=5)
    seeds, random = seeds_to_decide(few, 0.05), np.random.default_rng(2)
    intervals = [of_one(by_seed(*random.normal(0, 0.1, seeds))).interval() for _ in range(400)]
    assert 0.7 < np.mean([-0.05 < low and high < 0.05 for low, high in intervals]) < 0.92


def test_more_seeds_help_neither_at_the_edge_of_the_zone_nor_with_missed_targets():
    assert seeds_to_decide(Effect(0.05, 0.1, 4.0, seeds=5), 0.05) is None
    assert seeds_to_decide(Effect(0.2, 0.1, 4.0, seeds=5, bound=effect.AT_LEAST), 0.05) is None
