"""The figures of adaptive gossip: at equal traffic, over the parts of a training, and of runs that do not differ."""

import numpy as np
import pytest

from experiments.papers.adgossip_2018.adapting import at_equal_bytes, rates_of_halves
from experiments.papers.adgossip_2018.runs import AUTOMATIC, EQUAL_TRAFFIC, GOSSIP, columns_until_target
from experiments.papers.adgossip_2018.together import all_of
from experiments.runner.conditions import Conditions
from experiments.runner.outcome import ALIKE, BY_CONSTRUCTION, INCONCLUSIVE, REFUTED, SUPPORTED, Case
from experiments.runner.sample import Sample
from experiments.runner.scale import SMOKE
from experiments.tables.section import Section
from experiments.tables.targets import Found, chosen
from tests.support.runs import fake_run
from tests.support.store import plan, seed_of

CONDITIONS = Conditions(SMOKE, emulated=True)
TARGETS = {target.name: target for target in chosen(["adgossip"])}


def shown(name, make, folder) -> Section:
    """Return the section of a target whose runs ``make`` makes."""
    section = Section(name, folder)
    TARGETS[name].show(Found(CONDITIONS, plan(TARGETS[name].needs(CONDITIONS), make).results("it")), section)
    return section


def made(spec, **attributes):
    """Return a run of as many steps and bytes as the training is long."""
    run = fake_run(seed=seed_of(spec), ranks=8, model_bytes=2**20, **attributes)
    for values in (run.ranks["steps"], run.traffic["sent"]):
        values[:] = np.round(values * (spec.load().train.epochs or 1) * 100)
    return run


def test_the_fixed_period_of_equal_traffic_makes_as_many_exchanges():
    adaptive, periodic = (
        CONDITIONS.load(config, tuple(overrides)).algorithm_options
        for config, *overrides in (GOSSIP[AUTOMATIC], GOSSIP[EQUAL_TRAFFIC])
    )
    assert periodic.period == round(1 / adaptive.target_rate)
    assert EQUAL_TRAFFIC == f"exchanges every {periodic.period} steps"


def test_bytes_until_the_target():
    """The target of 0.6 after 3000 of 4000 samples; 12 pairs of ranks have sent 1 MiB each."""
    sent, seconds, rate, distance = columns_until_target({"x": [fake_run(model_bytes=2**20)]}).values()
    assert sent["x"].values == {1: pytest.approx(12 * 2**20 * 3 / 4 / 1e6)}
    assert seconds["x"].values == {1: pytest.approx(30)}
    assert rate["x"].values == {1: pytest.approx(12 / 2 / 80)}, "of 80 steps"
    missed, *_ = columns_until_target({"x": [fake_run(model_bytes=2**20, target_accuracy=0.9)]}).values()
    assert missed["x"].bounds == {1}


def test_the_time_of_a_fixed_period_at_equal_bytes_is_interpolated():
    """For seed 0 half way between two periods on logarithmic scales; seed 1 sends less than any, of seed 2 the period
    that sends most does not reach the target."""
    sent = {"a": Sample({0: 1.0, 1: 1.0, 2: 1.0}), "b": Sample({0: 4.0, 1: 4.0, 2: 4.0}, frozenset({2}))}
    seconds = {"a": Sample({0: 1.0, 1: 9.0, 2: 9.0}), "b": Sample({0: 16.0, 1: 9.0, 2: 9.0})}
    found = at_equal_bytes(sent, seconds, ["a", "b"], Sample({0: 2.0, 1: 0.5, 2: 2.0}))
    assert found.values == {0: pytest.approx(4), 1: None, 2: None}


def test_exchanges_of_the_halves_of_a_training():
    def run(exchanges, steps, seed):
        found = fake_run(seed=seed, ranks=2, model_bytes=10)
        found.traffic["sent"] = 10 * exchanges * (1 - np.eye(2, dtype=np.int64))
        found.ranks["steps"] = np.full(2, steps)
        return found

    early, late = rates_of_halves([run(40, 50, 0), run(20, 50, 1)], [run(50, 100, 1), run(60, 100, 0)])
    assert early.values == {0: 0.4, 1: 0.2} and late.values == {0: 0.2, 1: 0.3}


@pytest.mark.parametrize("name", ["adgossip-time", "adgossip-traffic", "adgossip-easgd", "adgossip-equal-traffic"])
def test_a_target_that_only_the_adaptive_form_misses_is_no_success(name, tmp_path):
    def make(spec):
        adaptive = getattr(spec.load().algorithm_options, "adaptive", False)
        return made(spec, target_accuracy=0.95 if adaptive else 0.6)

    verdicts = {case.verdict for finding in shown(name, make, tmp_path).findings for case in finding.evidence}
    assert verdicts and SUPPORTED not in verdicts


def test_bytes_that_are_configured_are_not_counted(tmp_path):
    (finding,) = shown("adgossip-traffic", made, tmp_path).findings
    assert any(case.kind == BY_CONSTRUCTION for case in finding.cases)
    assert all("per step" not in case.condition for case in finding.evidence)


def case_of(verdict, p):
    return Case("x", "y", verdict, 1.0, None, None, "", 5, p=p)


def test_three_claims_of_one_sentence_hold_together_or_not():
    """If one of the three is refuted, the sentence is; if all hold, it does with the least sure of them."""
    yes, no, unknown = case_of(SUPPORTED, 0.01), case_of(REFUTED, 0.03), case_of(INCONCLUSIVE, 0.2)
    together = [
        all_of(cases, "x", "y") for cases in ([yes] * 3, [yes, yes, no], [yes, unknown, no], [yes, yes, unknown])
    ]
    assert [case.verdict for case in together] == [SUPPORTED, REFUTED, REFUTED, INCONCLUSIVE]
    assert [case.p for case in together] == [0.01, 0.03, 0.03, None]
    assert [case.note for case in together] == ["", "1 (5 seeds)", "1 (5 seeds)", ""], "the effects that refute it"
    alike = all_of([yes, yes, case_of(ALIKE, 0.5)], "x", "y")
    assert (alike.verdict, alike.p) == (REFUTED, None), "no less time is not less time"


def test_less_of_all_against_every_period(tmp_path):
    def make(spec):
        options = spec.load().algorithm_options
        found = made(spec, target_accuracy=0.6)
        factor = (1.0 if options.adaptive else 3.0) * (1 + 0.001 * seed_of(spec))
        found.curve["time"], found.traffic["sent"] = found.curve["time"] * factor, found.traffic["sent"] * factor
        return found

    (finding,) = shown("adgossip-together", make, tmp_path).findings
    assert [case.verdict for case in finding.evidence] == [SUPPORTED] * 4
