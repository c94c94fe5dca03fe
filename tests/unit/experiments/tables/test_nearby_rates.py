"""The effect at learning rates beside the tuned ones."""

import itertools
import math
from dataclasses import replace

import pytest

from experiments.runner.learning_rates import FINER
from experiments.runner.needs import TimeToTarget
from experiments.runner.outcome import DIFFERENCE, SUPPORTED, Case, Finding, Outcome
from experiments.runner.scale import DESK, SMOKE
from experiments.runner.setting import Setting
from experiments.tables import nearby_rates
from tests.support.runs import fake_run
from tests.support.store import plan

GRSGD, DPSGD = Setting("grsgd/grsgd", 8), Setting("grsgd/dpsgd", 8)
BEST = 0.15
CASE = Case(
    "equal", "D-PSGD", SUPPORTED, 50.0, 45.0, 55.0, "% less time", 5, test=DIFFERENCE, ours="grsgd", theirs="dpsgd"
)


def trial(spec, more: dict[tuple[str, float], float]):
    """Return a trial that takes as many times the samples of one at the best rate as ``more`` says, by algorithm and
    rate; infinite: it misses the target."""
    loaded = spec.load()
    factor = more.get((loaded.algorithm.name, round(loaded.optimizer.lr / BEST, 3)), 3.0)
    run = fake_run(snapshots=6, seed=loaded.seed)
    if math.isinf(factor):
        run.curve["test_accuracy"][:] = 0.1
    run.curve["samples"] = run.curve["samples"] * min(factor, 1e3)
    return run


def ranges(more, case=CASE, scale=DESK):
    """Return the range of a case whose trials took that many more samples."""
    settings = {name: TimeToTarget(setting) for name, setting in (("ours", GRSGD), ("theirs", DPSGD))}
    made = plan(settings, lambda spec: trial(spec, {(name, 1.0): 1.0 for name in ("grsgd", "dpsgd")} | more), scale)
    outcome = Outcome("it", "", "grsgd", scale.name, "", findings=[Finding("grsgd-time", "", [case])])
    (found,) = nearby_rates.with_nearby_rates(outcome, made).findings[0].cases
    return found.rates_low, found.rates_high, found.over_rates()


LOWER, HIGHER = round(1 / FINER, 3), FINER


def test_either_side_may_have_a_rate_beside_its_best():
    """Half of the time is left: at a rate with which ours takes 1.2 times the samples 60 % of it, and 40 % of a
    baseline that takes 1.25 times as many."""
    more = {("grsgd", LOWER): 1.1, ("grsgd", HIGHER): 1.2, ("dpsgd", LOWER): 1.25, ("dpsgd", HIGHER): 1.05}
    low, high, words = ranges(more)
    assert (low, high) == (pytest.approx(40), pytest.approx(60)) and words == "40.0 to 60.0"


def test_a_rate_that_misses_the_target_has_no_limit():
    as_many = dict.fromkeys(itertools.product(("grsgd", "dpsgd"), (LOWER, HIGHER)), 1.0)
    low, high, words = ranges(as_many | {("dpsgd", LOWER): math.inf})
    assert low == pytest.approx(50) and high is None and words == "50.0 or more"
    low, high, _ = ranges(as_many | {("grsgd", LOWER): math.inf, ("dpsgd", HIGHER): 2.0})
    assert low is None and high == pytest.approx(75)


@pytest.mark.parametrize(
    "changes",
    [{"theirs": "grsgd"}, {"theirs": "ring all-reduce"}, {"unit": "% fewer bytes"}, {"estimate": None}, {"ours": ""}],
)
def test_other_cases_have_no_range(changes):
    """Those whose sides share a rate, whose algorithms are not tuned here, or that are not on time."""
    assert ranges({}, replace(CASE, **changes)) == (None, None, "")


def test_a_scale_that_tunes_with_one_seed_has_none():
    assert ranges({}, scale=SMOKE) == (None, None, "")


def test_algorithms_that_are_tuned_twice_have_none():
    """Under different delays, say: the label does not tell the rate of a case."""
    twice = {"ours": TimeToTarget(GRSGD), "again": TimeToTarget(GRSGD.but(tuned_with=("algorithm.p=0.5",)))}
    assert dict(nearby_rates.factors_of(plan(twice, lambda spec: trial(spec, {}), DESK), "it")) == {}


def test_variants_of_an_algorithm_have_rates_of_their_own():
    needs = {name: TimeToTarget(Setting(f"adgossip/{name}", 8)) for name in ("adaptive", "gossip_1", "gossip_10")}
    found = dict(nearby_rates.factors_of(plan(needs, lambda spec: trial(spec, {}), DESK), "it"))
    assert set(found) == {"adaptive gossip", "gossip every step", "gossip every 10 steps"}


def test_trials_that_are_missing_leave_the_outcome_as_it_is():
    needs = {"ours": TimeToTarget(GRSGD), "theirs": TimeToTarget(DPSGD)}
    outcome = Outcome("it", "", "grsgd", "desk", "", findings=[Finding("grsgd-time", "", [CASE])])
    assert nearby_rates.with_nearby_rates(outcome, plan(needs, lambda _: None, DESK)) == outcome
