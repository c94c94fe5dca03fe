"""Two looks: which targets get twice their seeds, and what comes of runs that are not all there."""

from types import SimpleNamespace

import pytest

from experiments.runner.conditions import Conditions
from experiments.runner.effect import level
from experiments.runner.learning_rates import TUNING_SEED
from experiments.runner.needs import Trainings
from experiments.runner.outcome import CONTROL, INCONCLUSIVE, SUPPORTED, Case, Finding, Outcome
from experiments.runner.plan import Plan
from experiments.runner.run_spec import MEASURED, SIMULATED
from experiments.runner.scale import DESK
from experiments.runner.setting import Setting
from experiments.tables import __main__ as tables
from experiments.tables import sequential
from experiments.tables.sequential import advice, takes_second_look, undecided_targets
from tests.support.runs import fake_run
from tests.support.store import FakeStore

BY_CLOCK, IN_SIMULATION = (Setting("grsgd/dpsgd", 8, source) for source in (MEASURED, SIMULATED))


def case(seeds: int, needed: int | None = None, verdict: str = INCONCLUSIVE, **other) -> Case:
    return Case("n = 8", "ring", verdict, 12.0, 9.0, 15.0, "% less time", seeds, p=0.3, seeds_needed=needed, **other)


@pytest.mark.parametrize(
    ("found", "takes", "words"),
    [
        (case(10, 18), True, "18 seeds would decide it, which a second look has"),
        (case(10, 20), True, "20 seeds would decide it, which a second look has"),
        (case(10, 21), False, "21 seeds would decide it"),
        (case(10, 9), False, "more seeds would not decide it"),
        (case(10), False, "more seeds would not decide it"),
        (case(3, 5, source=MEASURED), False, "5 seeds would decide it"),
    ],
)
def test_a_second_look_is_for_what_twice_the_seeds_may_decide(found, takes, words):
    assert (takes_second_look(found), advice(found)) == (takes, words)


def test_both_looks_together_are_wrong_in_less_than_one_in_twenty():
    assert level(10) + level(20) <= 0.0271


def outcome(target: str, *cases: Case) -> Outcome:
    return Outcome(target, "Title", "grsgd", "desk", "make", findings=[Finding("claim", "time", list(cases))])


def test_targets_with_an_undecided_case_get_it():
    outcomes = [
        outcome("both", case(10, 18), case(10, 5, SUPPORTED)),
        outcome("decided", case(10, 5, SUPPORTED)),
        outcome("control", case(10, 18, kind=CONTROL)),
        outcome("out of reach", case(10, 80)),
    ]
    assert undecided_targets(outcomes) == ["both"]


def needs(conditions) -> dict:
    return {each.source: Trainings(each) for each in (BY_CLOCK, IN_SIMULATION)}


def there(spec):
    return fake_run(seed=spec.load().seed)


def not_beyond_the_first_look(spec):
    return there(spec) if spec.load().seed < DESK.seeds or spec.load().seed >= TUNING_SEED else None


@pytest.mark.parametrize(("make", "complete"), [(there, ["it"]), (not_beyond_the_first_look, [])])
def test_simulated_times_have_twice_the_seeds_in_a_second_look(make, complete, monkeypatch):
    targets = {name: SimpleNamespace(needs=needs) for name in ("it", "other")}
    monkeypatch.setattr(tables, "TARGETS", targets)
    conditions = Conditions(DESK, emulated=True)
    first = Plan(conditions, FakeStore(make), {name: needs(conditions) for name in targets})
    (second,) = tables.second_looks([first], ["it", "elsewhere"])
    assert list(second.needs) == ["it"] and list(first.needs) == ["it", "other"]
    sources = [spec.source for spec in second.needed("it")]
    assert sources.count(MEASURED) == DESK.clock_seeds and sources.count(SIMULATED) == 2 * DESK.seeds
    assert list(tables.with_all_runs(second).needs) == complete
    assert not tables.second_looks([first], [])


def test_undecided_cases_are_listed(tmp_path, capsys):
    outcome("grsgd-time", case(10, 18), case(10, 5, SUPPORTED)).save(tmp_path)
    sequential.main([str(tmp_path)])
    (row,) = capsys.readouterr().out.splitlines()[2:]
    assert "grsgd-time" in row and "18 seeds would decide it, which a second look has" in row
