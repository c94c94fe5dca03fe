"""Comparisons of what does not differ: at most one in twenty may come to a verdict."""

import numpy as np
import pytest

from experiments.tables import decide, nulls
from experiments.tables.outcome import Case
from experiments.tables.sample import Sample

TIMES = nulls.TIMES[1]
LEVEL = 100 * 0.05


@pytest.mark.parametrize(
    ("compare", "draw", "draws"),
    [
        (nulls.less, nulls.one_case(TIMES), 2000),
        (nulls.more, nulls.one_case(nulls.ACCURACIES[0]), 2000),
        (nulls.no_worse, nulls.one_case(nulls.ACCURACIES[0]), 2000),
        (nulls.less, nulls.many_cases(TIMES), 200),
    ],
    ids=["less", "more", "no worse", "finding of 16 cases"],
)
def test_false_positives_are_rare(compare, draw, draws):
    random = np.random.default_rng(5)
    found = nulls.rates(compare, (draw(random) for _ in range(draws)))
    assert found.supported <= LEVEL and found.refuted <= LEVEL


def test_rates_are_those_of_findings():
    """With an effect in every second finding."""

    def compare(ours, theirs) -> Case:
        return decide.less(ours, theirs, "", "")

    nothing, effect = ({0: 1.0, 1: 1.0}, {0: 1.0, 1: 1.0}), ({0: 1.0, 1: 1.0}, {0: 2.0, 1: 2.0})
    pairs = [tuple(map(Sample, pair)) for pair in (nothing, effect)]
    assert nulls.rates(compare, [[pairs[0]], pairs]) == nulls.Rates(supported=50, refuted=0)


def test_halves_of_an_algorithms_runs_share_none():
    found = list(nulls.halves([1.0, 2.0, 3.0, 4.0], 3, np.random.default_rng(0), seeds=2))
    drawn = [sorted(value for side in pairs[0] for value in side.values.values()) for pairs in found]
    assert drawn == [[1.0, 2.0, 3.0, 4.0]] * 3


def test_the_table_is_printed(capsys):
    nulls.main(["--draws", "2"])
    rows = capsys.readouterr().out.splitlines()[4:]
    assert len(rows) == len(nulls.nulls())
