"""The tables of adsp: labels against injected delays, the speed when the start is over, and how long runs are."""

import numpy as np
import pytest

from experiments.papers.adsp_2024 import compared, speed
from experiments.papers.adsp_2024.labels import Labelled, labelled
from experiments.runner import decide
from experiments.runner.conditions import Conditions
from experiments.runner.outcome import AGREES, CONTROL, LESS
from experiments.runner.run_spec import MEASURED, SIMULATED
from experiments.runner.sample import Sample
from experiments.runner.scale import DESK, PAPER, SMOKE
from tests.support.runs import fake_run


def pushes(labels: str, delays: str) -> Labelled:
    """Return two workers' pushes, of which the second has no last one; ``x`` stands for a label, or a delay."""
    label, delayed = (np.array([list(line) for line in lines.split()]) == "x" for lines in (labels, delays))
    known = np.ones_like(label)
    known[1, -1] = False
    return Labelled(known, label, delayed)


def test_labels_are_right_at_a_delayed_push_or_soon_after():
    one = pushes("..xx. .....", "x..x. x....")
    assert one.precision(1) == pytest.approx(50) and one.precision(3) == pytest.approx(100)
    assert one.recall(1) == pytest.approx(100 / 3) and one.recall(3) == pytest.approx(200 / 3)
    assert one.share() == pytest.approx(100 * 2 / 9)
    assert pushes("..x.. .....", "...x. .....").precision(5) == 0, "a label before the delay is no finding of it"


def test_what_there_is_none_of_is_not_known():
    nothing = pushes("..... .....", "..... .....")
    assert nothing.precision(1) is None and nothing.recall(1) is None and nothing.share() == 0


def test_delays_are_those_that_the_configuration_injects():
    """Every step of worker 0 is delayed; worker 1 is slow on a host, of which the configuration knows nothing."""
    config = "[stragglers.tail]\n0 = { probability = 1.0, seconds = 0.1 }\n"
    run = fake_run(ranks=4, config=config)
    run.extra["states"] = np.array([[0, 1, 1], [1, 2, -1], [0, 0, 0]], np.int8)
    found = labelled(run, compared.CONSTANT)
    assert found.delayed.tolist() == [[True] * 3, [True, True, False], [False] * 3]
    assert found.label.tolist() == [[False, True, True], [True, False, False], [False] * 3]
    assert not labelled(run, compared.RANDOM).delayed[1].any()


def test_the_start_and_the_end_do_not_count_for_the_speed():
    """10 s for 1000 samples in the first half, 20 s after it, and 90 s until the last delay is over."""
    run = fake_run(snapshots=12)
    run.curve["time"] = np.array([0.0, 10, 20, 30, 40, 50, 70, 90, 110, 130, 150, 240])
    assert speed.seconds_per_sample(run) == pytest.approx(0.02)
    assert speed.seconds_per_gradient(run) == pytest.approx(0.02 * 32)
    assert speed.seconds_per_sample(fake_run(snapshots=3)) is None


@pytest.mark.parametrize("scale", [SMOKE, DESK, PAPER], ids=lambda scale: scale.name)
def test_runs_are_long_beside_the_lead_at_the_start(scale):
    """At least 20 times smax rounds: the start, when the others run ahead of a slow worker, decides nothing."""
    loaded = Conditions(scale, emulated=True).load(compared.CONFIGS[compared.OURS])
    train_samples = {"mnist": 60_000, "cifar-10": 50_000}[loaded.data.name]
    rounds = loaded.train.epochs * train_samples / (scale.tuning_ranks * loaded.data.batch_size)
    assert rounds >= 20 * loaded.algorithm_options.smax


def saving(percent: float, **options):
    """Return the case of a side that saves so many per cent, a little more or less with each seed."""
    ours = Sample({seed: 1 - percent / 100 + 0.001 * seed for seed in (-1, 0, 1)})
    return decide.less(ours, Sample(dict.fromkeys(ours.values, 1.0)), "x", "y", **options)


def test_a_number_that_is_up_to_is_held_against_the_greatest_effect_alone():
    """Of each source of times by itself; controls are held against no number."""
    percents = (41.2, 20.0, 5.0)
    cases = [saving(percent, source=source) for source in (SIMULATED, MEASURED) for percent in percents]
    found = compared.against_range([*cases, saving(80.0, kind=CONTROL)], 9.61, 41.15)
    assert [case.number for case in found] == [41.15, None, 9.61] * 2 + [None]
    assert [case.on_number for case in found] == [AGREES, "", LESS] * 2 + [""]
    assert [case.verdict for case in found[:-1]] == [case.verdict for case in cases], "the direction is another answer"
    accuracy = compared.against_range([saving(2.0), saving(3.0)], None, compared.MAX_POINTS)
    assert [case.number for case in accuracy] == [None, compared.MAX_POINTS]


def test_both_numbers_of_the_abstract_are_used():
    assert (compared.MIN_SAVING, compared.MAX_SAVING, compared.MAX_POINTS) == (9.61, 41.15, 3.29)


def test_strategies_are_tuned_under_their_delays():
    """Without delays ADSP, ASP, SSP and DSSP are one algorithm."""
    conditions = Conditions(DESK, emulated=True)
    random, slow = (compared.training(conditions, "ASP", delays) for delays in (compared.RANDOM, compared.CONSTANT))
    assert "stragglers.tail.7.probability=0.05" in random.setting.tuned_with
    assert slow.setting.tuned_with == ("stragglers.slowdown.1=4.0",) and random.seeds == slow.seeds == 10
    by_clock = compared.training(conditions, "ASP", compared.RANDOM, MEASURED)
    assert by_clock.setting.tuned_with == random.setting.tuned_with
