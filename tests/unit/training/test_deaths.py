"""Deaths that are planned, and what the run file says of those that happened."""

import itertools

import numpy as np

from grsgd.config.sections import Faults
from grsgd.training.deaths import accounts, planned_deaths


def test_deaths_are_planned_by_the_seed_and_come_in_order():
    faults = Faults(die={2: 1.0, 0: 0.25}, every=0.5)
    plan = list(itertools.islice(planned_deaths(faults, 3, seed=1), 50))
    assert plan == sorted(plan) and (1.0, 2) in plan and (0.25, 0) in plan
    assert plan == list(itertools.islice(planned_deaths(faults, 3, seed=1), 50))
    assert plan != list(itertools.islice(planned_deaths(faults, 3, seed=2), 50))
    assert 15 < plan[-1][0] < 40 and {rank for _, rank in plan} == {0, 1, 2}
    assert list(planned_deaths(Faults(), 3, seed=1)) == []


def test_what_several_have_noticed_is_told_once():
    found = accounts([(1, 7, 2.0, None), (1, 7, 1.5, 1.75), (0, 3, 1.0, 1.25), (1, 7, 1.6, 1.7)], {0: 0.5}, 2)
    values = {name: array.tolist() for name, (array, _) in found.items()}
    assert values["death_rank"] == [0, 1] and values["death_seconds"] == [1.0, 1.5]
    assert values["death_replaced_seconds"] == [1.25, 1.7]
    assert values["longest_wait"][0] == 0.5 and np.isnan(values["longest_wait"][1])
