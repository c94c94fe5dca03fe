"""Seeds in batches: when a comparison stops, and what it costs to look several times."""

import numpy as np
import pytest
from scipy import stats

from experiments.tables import decide, sequential
from experiments.tables.effect import level
from experiments.tables.outcome import ALIKE, INCONCLUSIVE, SUPPORTED, Case, Finding, Outcome
from experiments.tables.sample import Sample
from experiments.tables.sequential import BATCH, FINAL_BOUND, MOST, advice, bound, judged, more_seeds


def case(seeds: int, p: float | None, verdict: str = SUPPORTED, **other) -> Case:
    return Case("n = 8", "ring", verdict, 12.0, 9.0, 15.0, "% less time", seeds, p=p, **other)


def test_four_looks_have_the_level_of_few_seeds():
    """By the bounds of O'Brien and Fleming, for the correlated deviates of the four looks."""
    seeds = np.arange(BATCH, MOST + 1, BATCH)
    correlation = np.sqrt(np.minimum.outer(seeds, seeds) / np.maximum.outer(seeds, seeds))
    bounds = FINAL_BOUND * np.sqrt(MOST / seeds)
    within = stats.multivariate_normal(cov=correlation, seed=1).cdf(bounds, lower_limit=-bounds)
    assert 1 - within == pytest.approx(level(BATCH), abs=2e-4)


def test_the_first_looks_are_strict():
    levels = [bound(seeds) for seeds in (5, 10, 15, 20, 25)]
    assert levels == pytest.approx([1.8e-7, 2.2e-4, 2.6e-3, 9.1e-3, 9.1e-3], rel=0.03)


@pytest.mark.parametrize(
    ("found", "verdict", "more", "words"),
    [
        (case(5, 1e-8), SUPPORTED, 0, "decided"),
        (case(5, 0.01), INCONCLUSIVE, 5, "5 more seeds; more seeds would not decide it"),
        (case(10, 0.001), SUPPORTED, 0, "decided"),
        (case(5, 0.3, ALIKE), ALIKE, 0, "decided"),
        (case(7, 0.3, INCONCLUSIVE, seeds_needed=12), INCONCLUSIVE, 3, "3 more seeds; 12 seeds would decide it"),
        (case(20, 0.3, INCONCLUSIVE, seeds_needed=80), INCONCLUSIVE, 0, "undecided with 20 seeds; 80 seeds would"),
        (case(0, None), SUPPORTED, 0, "decided"),
    ],
)
def test_a_case_is_decided_or_takes_more_seeds(found, verdict, more, words):
    then = judged(found)
    assert (then.verdict, more_seeds(then)) == (verdict, more)
    assert advice(then).startswith(words)


def test_a_great_effect_takes_one_batch_and_an_undecided_case_says_what_it_takes():
    random = np.random.default_rng(1)
    ours, theirs = (Sample(dict(enumerate(np.exp(0.02 * random.normal(size=5))))) for _ in range(2))
    assert advice(judged(decide.less(ours.scaled(0.5), theirs, "", ""))) == "decided"
    assert 5 <= judged(decide.less(ours.scaled(0.93), theirs, "", "")).seeds_needed <= 20


def test_undecided_cases_are_listed(tmp_path, capsys):
    cases = [case(5, 0.01), case(5, 0.3, INCONCLUSIVE, seeds_needed=12)]
    Outcome("grsgd-time", "Title", "grsgd", "smoke", "make", findings=[Finding("claim", "time", cases)]).save(tmp_path)
    sequential.main([str(tmp_path)])
    (row,) = capsys.readouterr().out.splitlines()[2:]
    assert "grsgd-time" in row and "5 more seeds; 12 seeds would decide it" in row
