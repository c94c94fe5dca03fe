"""One algorithm under all names: no target finds that it differs from itself."""

import pytest

from experiments.runner import decide
from experiments.runner.needs import TimeToTarget, Trajectories
from experiments.runner.outcome import REFUTED, SUPPORTED
from experiments.runner.sample import of
from experiments.runner.setting import Setting
from experiments.tables.numbers import final_accuracy
from experiments.tables.targets import Target, chosen
from tests.support.same_algorithm import assert_no_difference, differences, one_algorithm, shown

OURS, THEIRS = Setting("grsgd/grsgd", 8), Setting("grsgd/ring_allreduce", 8)


def needs(conditions):
    trained = {("time", s): TimeToTarget(s) for s in (OURS, THEIRS)}
    return trained | {("accuracy", s): Trajectories(s) for s in (OURS, THEIRS)}


def show(found, section):
    times, accuracies = (
        [found["time", setting] for setting in (OURS, THEIRS)],
        [of(found["accuracy", setting], final_accuracy) for setting in (OURS, THEIRS)],
    )
    where = {"condition": "n = 8", "baseline": "ring", "pairs": True}
    cases = [decide.less(*times, **where), decide.more(*accuracies, **where), decide.no_worse(*accuracies, **where)]
    section.finding("claim", "", cases)


TARGET = Target("it", "Title", needs, show)


OF_RUNS = [target for target in chosen([]) if target.name != "cssgd-curve"]
"""The evidence of the other one is a recorded table of what was measured, whatever runs there are."""


@pytest.mark.parametrize("target", OF_RUNS, ids=lambda target: target.name)
def test_no_target_finds_a_difference(target):
    assert_no_difference(target)


def test_an_asynchronous_and_a_synchronous_algorithm_take_the_same_time():
    assert_no_difference(TARGET)
    less, more, no_worse = shown(TARGET).findings[0].cases
    assert less.estimate == more.estimate == 0 and less.seeds == more.seeds == 5
    assert no_worse.verdict == SUPPORTED


def test_a_difference_would_be_found():
    def faster(spec):
        run = one_algorithm(spec)
        if spec.config == OURS.config:
            run.curve["time"] *= 0.6
            run.curve["test_accuracy"] -= 0.02
        return run

    assert [case.verdict for case in differences(shown(TARGET, faster))] == [SUPPORTED, REFUTED]
