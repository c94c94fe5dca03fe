"""Comparisons that several papers make."""

from dataclasses import replace

import numpy as np
import pytest

from experiments import papers
from experiments.papers.grsgd_2023 import targets as grsgd
from experiments.papers.lasgd_2022 import targets as lasgd
from experiments.runner.conditions import Conditions
from experiments.runner.outcome import ALIKE, BY_CONSTRUCTION, CONTROL, EVIDENCE, BreakEven
from experiments.runner.run_spec import MEASURED, SIMULATED, TIMING_ONLY
from experiments.runner.sample import Sample
from experiments.runner.scale import DESK, SMOKE
from experiments.runner.setting import EQUAL, SLOW_HOST, SLOW_LINKS, STRAGGLER, Setting
from experiments.tables.compare import ALONE, NEVER, kind_of_pace, quotient, settled
from experiments.tables.link_rates import crossing
from experiments.tables.section import Section
from experiments.tables.targets import Found, chosen
from experiments.tables.time_to_accuracy import TimeToAccuracy
from grsgd.simulator.network import TAKES_PROCESSOR, NetworkSpec
from tests.support.runs import fake_run
from tests.support.same_algorithm import shown as shown_of_one_algorithm
from tests.support.store import plan, seed_of

CONDITIONS = Conditions(SMOKE, emulated=True)


def shown(target, make, tmp_path) -> Section:
    """Return what a target shows of made-up runs."""
    made = plan(target.needs(CONDITIONS), make)
    section = Section("it", tmp_path)
    target.show(Found(CONDITIONS, made.results("it")), section)
    return section


def run_that_takes(seconds_of):
    """Return a maker of runs that take ``seconds_of`` times as long as the fake ones, and a little longer by seed."""

    def make(spec):
        found = fake_run(seed=seed_of(spec), ranks=spec.ranks)
        slower = seconds_of(spec) * (1 + 0.01 * seed_of(spec))
        found.curve["time"] = found.curve["time"] * slower
        for part in ("compute", "communicate", "wait"):
            found.ranks[f"{part}_seconds"] = slower * (found.ranks[f"{part}_seconds"] + 1)
        return found

    return make


def test_where_times_are_compared():
    there = grsgd.TIME.settings(CONDITIONS)
    assert {(place.scenario, place.source) for place in there} == {
        *((scenario, SIMULATED) for scenario in (EQUAL, STRAGGLER, SLOW_LINKS)),
        (SLOW_HOST, MEASURED),
    }
    without_testbed = grsgd.TIME.settings(replace(CONDITIONS, emulated=False))
    assert {place.source for place in without_testbed} == {SIMULATED}
    one, never = (there[place][name] for place in list(there)[:1] for name in (ALONE, NEVER))
    assert (one.ranks, never.ranks) == (1, SMOKE.ranks[0]) and one.config == never.config
    at_desk = grsgd.TIME.settings(Conditions(DESK, emulated=True))
    assert {(place.scenario, place.source) for place in at_desk} == {(EQUAL, SIMULATED), (STRAGGLER, SIMULATED)}
    measured = [some for place, some in lasgd.TIME.settings(CONDITIONS).items() if place.source == MEASURED]
    assert {name for some in measured for name in some} == set(lasgd.TIME.by_clock)


def test_an_algorithm_against_itself_does_not_differ_and_controls_do_not_count(tmp_path):
    twice = TimeToAccuracy(
        {"the same": "grsgd-time"},
        dict.fromkeys(("GRSGD", "the same"), "grsgd/grsgd"),
        grsgd.NO_MESSAGES,
        {EQUAL: "why"},
        measured=(),
        by_clock=(),
        at_desk=(),
    )
    (finding,) = shown(twice, run_that_takes(lambda spec: 1.0), tmp_path).findings
    assert finding.verdict == ALIKE and finding.reason == "why"
    assert [(case.baseline, case.kind) for case in finding.cases] == [
        ("the same", EVIDENCE),
        (ALONE, CONTROL),
        (NEVER, CONTROL),
    ]


GBITS = {"5gbit": 5, SMOKE.rate: 1, SMOKE.slow_rate: 0.2, "50mbit": 0.05}


def test_the_break_even_lies_where_the_saving_begins(tmp_path):
    """Our trainings are short where links are slow; computing takes 2 s, an all-reduce sends 0.25 GB per rank."""

    def make(spec):
        quick = GBITS.get(spec.link.rate, 1) < 1
        found = run_that_takes(lambda spec: 0.001 if quick else 1000)(spec)
        if spec.source == TIMING_ONLY:
            found = fake_run(seed=seed_of(spec), ranks=spec.ranks)
            found.ranks |= {f"{part}_seconds": 0.5 * found.ranks["steps"] for part in ("communicate", "wait")}
            found.ranks["compute_seconds"] = 1.0 * found.ranks["steps"]
            found.traffic["sent"] = np.diag(0.25e9 * found.ranks["steps"])
        return found

    even, times = shown(grsgd.LINKS, make, tmp_path).tables
    assert [row[:2] for row in times.rows] == [
        [rate, ratio] for rate, ratio in zip(GBITS, ("0.2", "1", "10", "20"), strict=True)
    ]
    assert [row[0] for row in even.rows] == ["ring all-reduce", "D-PSGD"]
    assert all(1 < float(text.split()[0]) < 10 for _, text in even.rows)


def test_where_a_curve_crosses_zero_for_good():
    assert crossing({0.1: -10.0, 1.0: 10.0, 10.0: 30.0}) == pytest.approx(10**-0.5)
    assert crossing({0.1: 5.0, 1.0: -10.0, 10.0: 10.0}) == pytest.approx(10**0.5), "the first point is a fluke"
    assert crossing({0.1: 5.0, 1.0: 10.0}) == 0.1
    assert crossing({0.1: -5.0, 1.0: -1.0}) is None
    assert crossing({0.1: -5.0, 1.0: None, 10.0: 5.0}) == pytest.approx(1.0)
    assert crossing({}) is None


def test_the_break_even_in_words():
    assert BreakEven("a", "b", 0.42, 0.3, 0.61, 0.1, 10).text() == "0.42 (0.3 to 0.61)"
    assert BreakEven("a", "b", 0.1, 0.1, 0.2, 0.1, 10).text() == "0.1 or less (0.1 or less to 0.2)"
    assert BreakEven("a", "b", 4.0, 2.0, None, 0.1, 10).text() == "4 (2 to more than 10)"
    assert BreakEven("a", "b", None, None, None, 0.1, 10).text() == "none up to 10"


def test_a_quotient_of_seeds():
    assert quotient(Sample({0: 6.0, 1: 1.0, 2: None}), Sample({0: 3.0, 2: 1.0, 3: 1.0})) == Sample({0: 2.0})


@pytest.mark.parametrize("name", ["base.toml", "smoke.toml", "desk.toml", "imagenet.toml", "alone.toml"])
def test_both_papers_on_gossip_share_their_runs(name):
    ours, theirs = (papers.folder(paper) / name for paper in ("grsgd", "lasgd"))
    assert ours.read_text() == theirs.read_text()


def test_steps_beside_a_slow_rank_are_enough_for_it_to_slow_the_whole_ring_down():
    place = Setting("grsgd/dpsgd", 8)
    assert settled(CONDITIONS, place) is None
    assert (
        settled(CONDITIONS, place.but(scenario=STRAGGLER)) == settled(CONDITIONS, place.but(scenario=SLOW_HOST)) == 32
    )


def test_runs_are_compared_in_pairs_only_where_they_have_common_random_numbers():
    """The all-reduce of the small network is a training of one rank with a batch n times as large, in another order."""
    conditions = Conditions(SMOKE, emulated=True)
    grsgd, dpsgd, ring = (Setting(f"grsgd/{name}", 8) for name in ("grsgd", "dpsgd", "ring_allreduce"))
    assert conditions.share_numbers(grsgd, dpsgd) and not conditions.share_numbers(grsgd, ring)
    normalising = [one.but(overrides=('model.name="resnet20"',)) for one in (grsgd, ring)]
    assert conditions.share_numbers(*normalising), "with batch normalisation the training is one of as many ranks"
    (target,) = chosen(["grsgd-time-to-acc"])
    cases = [case for finding in shown_of_one_algorithm(target).findings for case in finding.evidence]
    pairs = {case.baseline: case.pairs for case in cases if case.source == SIMULATED}
    assert pairs == {"ring all-reduce": False, "D-PSGD": True}


def test_what_cannot_be_slowed_down_is_no_evidence_of_never_waiting():
    """In simulated time, unless messages take time of a processor."""
    free, taking, measured = (
        fake_run(clock=clock, network=f"switch, 1gbit, 50us{more}")
        for clock, more in (("virtual", ""), ("virtual", f", {TAKES_PROCESSOR}"), ("wall", ""))
    )
    assert kind_of_pace([taking, free]) == BY_CONSTRUCTION
    assert kind_of_pace([taking, taking]) == kind_of_pace([measured]) == EVIDENCE
    assert TAKES_PROCESSOR in NetworkSpec(bandwidth="1gbit", latency="50us", processor={"send": "1ms"}).summary()
