"""Comparisons of what does not differ: at most one in twenty may find more, and at most one in twenty less."""

import numpy as np
import pytest

from experiments.runner import decide
from experiments.runner.outcome import AGREES, Case
from experiments.runner.sample import Sample
from experiments.tables import nulls
from tests.support.exhaustive import exhaustive_unless

LEVEL = 100 * 0.05
QUICK = {
    ("less", "times, 10 %"): 400,
    ("no worse", "accuracies, 0.6 points"): 400,
    ("less", "times, of ours 30 % miss their target"): 200,
    ("less", "times, of both 50 % miss their target, in pairs"): 200,
    ("less", "times, of ours 30 % are there at the first snapshot"): 400,
    ("mean over nodes", "times, of both 10 % miss their target"): 200,
    ("mean over nodes", "times, of ours 50 % miss their target, in pairs"): 200,
    ("less", "times, skewness 2 on one side, 0 of its spread on the other, 5 seeds"): 800,
    ("less", "times, skewness 2 on one side, 0.3 of its spread on the other, 10 seeds"): 800,
    ("finding of 16 cases: less", "times, 10 %"): 40,
    ("less, two looks", "times, 10 %, 10 seeds"): 200,
    ("more, the number", "accuracies, 1 point"): 400,
    ("less, occasions", "times, 10 %, 20 pairs, calibrations differ by 20 %"): 400,
}
"""Rows of the table, with how many findings are drawn."""
MANY = 2000
ROWS = {(null.comparison, null.compared): null for null in nulls.nulls()}


@pytest.mark.parametrize(("comparison", "compared"), exhaustive_unless(list(QUICK), ROWS))
def test_wrong_answers_are_rare(comparison, compared):
    null, random = ROWS[comparison, compared], np.random.default_rng(5)
    draws = QUICK.get((comparison, compared), MANY)
    found = nulls.rates(null.compare, (null.draw(random) for _ in range(draws)))
    by_chance = 2 * np.sqrt(LEVEL * (100 - LEVEL) / draws)
    assert max(found.above, found.below) <= LEVEL + by_chance


def test_rates_are_those_of_findings():
    """With an effect in every second finding."""

    def compare(ours, theirs) -> Case:
        return decide.less(ours, theirs, "", "")

    nothing, effect = ({0: 1.0, 1: 1.0}, {0: 1.0, 1: 1.0}), ({0: 1.0, 1: 1.0}, {0: 2.0, 1: 2.0})
    pairs = [tuple(map(Sample, pair)) for pair in (nothing, effect)]
    assert nulls.rates(compare, [[pairs[0]], pairs]) == nulls.Rates(above=50, below=0)


def test_where_the_paper_gives_a_number_the_answer_to_it_counts():
    ours, theirs = (Sample(dict.fromkeys(range(3), value)) for value in (7.0, 10.0))
    assert nulls.answers_of(decide.less(ours, theirs, "", "", number=30.0)) == [AGREES]


def test_halves_of_an_algorithms_runs_share_none():
    found = list(nulls.halves([1.0, 2.0, 3.0, 4.0], 3, np.random.default_rng(0), seeds=2))
    drawn = [sorted(value for side in pairs[0] for value in side.values.values()) for pairs in found]
    assert drawn == [[1.0, 2.0, 3.0, 4.0]] * 3


def test_the_table_is_printed(capsys):
    nulls.main(["--draws", "2"])
    rows = capsys.readouterr().out.splitlines()[4:]
    assert len(rows) == len(nulls.nulls())


def test_the_worst_nulls_are_drawn_anew_because_the_greatest_of_many_estimates_is_too_great(monkeypatch):
    """Of nulls with a true rate of 4 %, the greatest of thirty short estimates is twice as much."""

    def compare(wrong: bool, _) -> Case:
        case = decide.less(Sample({0: 1.0, 1: 1.0}), Sample({0: 2.0, 1: 2.0}), "", "")
        return case if wrong else decide.less(*[Sample({0: 1.0, 1: 1.0})] * 2, "", "")

    same = [nulls.Null("less", str(row), compare, lambda random: [(random.random() < 0.04, None)]) for row in range(30)]
    monkeypatch.setattr(nulls, "nulls", lambda: same)
    assert max(above for *_, above, _ in nulls.table(50, 1)) >= 8
    found = nulls.greatest(50, 1)
    assert found.above == pytest.approx(4, abs=2) and found.below == 0
