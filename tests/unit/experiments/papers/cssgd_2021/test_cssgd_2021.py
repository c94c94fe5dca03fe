"""CSSGD's tables and figures: what they find of steps whose times are known, and of trainings that miss the target."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from coding.cost import cost_in_models, redundancy
from experiments.papers.cssgd_2021 import best_redundancy, curve, encoding, load, tasks
from experiments.papers.cssgd_2021.best_redundancy import CSSGD, OURS
from experiments.papers.cssgd_2021.tasks import ASGD, CNN, DNN
from experiments.runner.conditions import Conditions
from experiments.runner.outcome import (
    AT_MOST,
    BY_CONSTRUCTION,
    DIFFERENCE,
    EVIDENCE,
    INCONCLUSIVE,
    REFUTED,
    SUPPORTED,
)
from experiments.runner.plan import Plan
from experiments.runner.sample import Sample, geometric_mean
from experiments.runner.scale import DESK, PAPER, SMOKE
from experiments.tables.targets import Found, chosen
from tests.support.runs import fake_run
from tests.support.same_algorithm import Undrawn
from tests.support.store import FakeStore

STEPS = 10


def scheme_of(loaded) -> tuple[str, int]:
    """Return the name in ``coding.cost`` of what a configuration runs, and its redundancy."""
    options = loaded.algorithm_options
    if loaded.algorithm.name == "cssgd":
        return options.scheme, options.r
    if loaded.algorithm.name == "ssgd":
        return f"ssgd-{options.transport}", 1
    return "ring", 1


def on_a_shared_medium(tcomm: float):
    """Return the maker of runs in which a rank computes its share in 1 s, and SSGD by multicast communicates ``tcomm``
    s; a little longer with greater seeds."""

    def make(spec):
        loaded, n = spec.load(), spec.ranks
        scheme, r = scheme_of(loaded)
        longer = 1 + 0.001 * loaded.seed
        run = fake_run(ranks=n, seed=loaded.seed)
        seconds = {"compute": float(redundancy(scheme, n, r)), "wait": 0.0}
        seconds["communicate"] = tcomm / n * float(cost_in_models(scheme, n, r).once)
        run.ranks |= {"steps": np.full(n, STEPS)}
        run.ranks |= {f"{part}_seconds": np.full(n, STEPS * longer * value) for part, value in seconds.items()}
        return run

    return make


def shown(name: str, make):
    """Return the findings of a target, by claim, of runs that ``make`` makes."""
    (target,) = chosen([name])
    conditions = Conditions(SMOKE, emulated=True)
    results = Plan(conditions, FakeStore(make), {name: target.needs(conditions)}).results(name)
    section = Undrawn(name, Path())
    target.show(Found(conditions, results), section)
    return {finding.claim: finding for finding in section.findings}


@pytest.mark.parametrize(
    ("name", "tcomm", "of_model", "of_cssgd"), [("cssgd-fig12", 11.5, 3, 8), ("cssgd-fig13", 2.15, 2, 7)]
)
def test_the_model_has_the_papers_optimum_where_cssgd_has_not(name, tcomm, of_model, of_cssgd):
    """Tcomm of the model is that of SSGD by multicast; CSSGD's own with r = 1, by unicast, is n-1 times as long."""
    found = shown(name, on_a_shared_medium(tcomm))
    model, own = (found[claim].cases[0] for claim in ("cssgd-model-optimum", "cssgd-optimum"))
    assert (model.kind, model.estimate) == (BY_CONSTRUCTION, of_model)
    assert (own.verdict, own.estimate) == (REFUTED, of_cssgd)
    of_cssgd, of_grouped = found["cssgd-model"].cases[:2]
    assert of_cssgd.verdict == REFUTED and of_grouped.verdict == SUPPORTED


def test_the_best_redundancy_of_the_model_follows_from_the_testbed_and_decides_nothing():
    """Two calibrations of one model have given r = 3 and r = 4, once supported and once refuted."""
    verdicts, best = set(), []
    for tcomm in (10.2, 16.5):
        found = shown("cssgd-fig12", on_a_shared_medium(tcomm))["cssgd-model-optimum"]
        assert not found.evidence and f"Tcomm / Tcalc = {tcomm}" in found.cases[0].condition
        verdicts.add(found.verdict)
        best.append(found.cases[0].estimate)
    assert verdicts == {BY_CONSTRUCTION} and best == [3, 4]


def test_where_coding_pays_and_where_it_saves_what_the_paper_says():
    """By the bytes of r = n-1: saving(R) = 1 - (7 + R / 7) / (1 + R) on 8 nodes."""
    assert curve.reaches(curve.CSSGD, 8, 0.0) == pytest.approx(7)
    assert curve.reaches(curve.CSSGD, 8, 53.97) == pytest.approx(20.6, abs=0.05)
    assert curve.saving(curve.CSSGD, 8, 16.5) == pytest.approx(46.5, abs=0.1)
    assert curve.reaches(curve.GROUPED, 8, 99.0) is None


def test_two_calibrations_give_the_same_answer_on_the_headline():
    """What is said of CSSGD's headline is its curve, on which a testbed is a point."""
    answers = []
    for tcomm in (10.2, 16.5):
        found = shown("cssgd-curve", on_a_shared_medium(tcomm))["cssgd-best-dnn"]
        answers.append([(case.condition, case.verdict, case.estimate) for case in found.cases])
    assert answers[0] == answers[1] and len(answers[0]) == 6


def test_points_by_ip_multicast_are_those_that_were_measured():
    shares = {(point.task, point.nodes): point.shares.median() for point in curve.measured_points()}
    assert shares == pytest.approx({("DNN", 4): 0.845, ("DNN", 6): 0.78, ("DNN", 8): 0.815, ("CNN", 8): 1.465})


def test_the_dnn_is_bound_by_communication_more_than_the_cnn():
    """A Tcomm / Tcalc of the CNN of 2 to 6, which the paper's own r = 2 needs, is no reason against it."""

    def make(spec):
        tcomm = 3.0 if "/cnn" in spec.config else 12.0
        return on_a_shared_medium(tcomm)(spec) if "asgd" not in spec.config else fake_run(ranks=spec.ranks)

    found = shown("cssgd-scaling", make)["cssgd-bound"]
    assert {case.verdict for case in found.evidence} == {SUPPORTED}
    ratios = [case for case in found.evidence if "Tcomm" in case.unit]
    assert len(ratios) == 2 and {case.test for case in ratios} == {DIFFERENCE}


def test_asgd_needs_more_samples_where_it_does():
    """Trainings reach 0.6 after 3000 of 4000 samples; those of ASGD are half as fast, or twice."""
    for factor, verdict in ((2.0, SUPPORTED), (0.5, REFUTED)):

        def make(spec, factor=factor):
            loaded = spec.load()
            run = fake_run(ranks=spec.ranks, seed=loaded.seed, target_accuracy=0.6)
            is_asgd = loaded.algorithm_class.name == "asgd"
            run.curve["samples"] = run.curve["samples"] * (factor if is_asgd else 1) * (1 + 0.001 * loaded.seed)
            return run

        cases = shown("cssgd-fig14", make)["cssgd-asgd-computing"].evidence
        assert cases and {case.verdict for case in cases} == {verdict}


def test_ssgd_sends_more_than_asgd_by_unicast_alone():
    counts = {way: load.more_than_asgd(way, load.NAIVE[f"SSGD by {way}"]) for way in ("unicast", "multicast")}
    assert [case.verdict for case in counts.values()] == [SUPPORTED, REFUTED]
    assert [case.estimate for case in counts.values()] == [1.5, 0.5], "n (n-1) and n, of 2 n"


def trained_to(accuracy: float, asgd: float | None = None):
    """Return the maker of runs that end at this test accuracy; those of ASGD at one of their own, if it is given."""

    def make(spec):
        loaded = spec.load()
        run = fake_run(
            ranks=spec.ranks, seed=loaded.seed, config=loaded.toml(), target_accuracy=loaded.train.target_accuracy
        )
        end = asgd if asgd is not None and loaded.algorithm_class.name == "asgd" else accuracy
        run.curve["test_accuracy"][:] = end + 0.0001 * loaded.seed
        run.ranks |= {f"{part}_seconds": np.full(spec.ranks, 1.0) for part in ("compute", "communicate", "wait")}
        return run

    return make


@pytest.mark.parametrize("final, verdict", [(0.63, INCONCLUSIVE), (0.83, SUPPORTED), (0.96, REFUTED)])
def test_a_benchmark_accuracy_is_near_the_final_one_from_either_side(final, verdict):
    """A training that ends 19 points below the benchmark says nothing of whether it is near the final accuracy."""
    found = shown("cssgd-fig6", trained_to(final))["cssgd-benchmark"]
    assert {case.verdict for case in found.evidence} == {verdict}


def test_algorithms_that_have_not_trained_are_not_said_to_reach_the_same_accuracy():
    untrained, equal, less, better = (
        shown("cssgd-fig4", trained_to(*accuracies))["cssgd-final"]
        for accuracies in ((0.63,), (0.96,), (0.96, 0.90), (0.90, 0.96))
    )
    assert {case.verdict for case in untrained.evidence} == {INCONCLUSIVE}
    assert all("below the benchmark of 82%" in case.note for case in untrained.evidence)
    assert {case.verdict for case in equal.evidence} == {SUPPORTED}
    for one_sided in (less, better):
        assert {case.verdict for case in one_sided.evidence} == {SUPPORTED, REFUTED}, "either may fall behind"


def test_what_adds_up_exactly_is_no_evidence_and_quantised_gradients_are_tried():
    found = shown("cssgd-precision", trained_to(0.9))["cssgd-precision"]
    exact, accuracy = found.cases
    assert (exact.kind, exact.estimate, accuracy.kind) == (BY_CONSTRUCTION, 0.0, EVIDENCE)
    tried = {case.condition for case in shown("cssgd-quantising", trained_to(0.9))["cssgd-quantising"].evidence}
    assert len(tried) == 3 and any("int8" in each for each in tried) and any("1 bit" in each for each in tried)


@pytest.mark.parametrize("slower, coding, verdicts", [(1.0, 0.01, [SUPPORTED] * 2), (1.2, 0.3, [REFUTED] * 2)])
def test_encoding_is_held_against_the_same_blocks_without_coding(slower, coding, verdicts):
    """Small blocks compute three times as slowly, coded or not: that is no cost of encoding."""

    def make(spec):
        loaded = spec.load()
        run, r = fake_run(ranks=spec.ranks, seed=loaded.seed), loaded.algorithm_options.r
        is_coded = loaded.algorithm.name == "cssgd"
        seconds = 3.0 * (1 + 0.001 * loaded.seed) * (r * slower if is_coded else 1)
        run.ranks |= {"steps": np.full(spec.ranks, STEPS), "compute_seconds": np.full(spec.ranks, seconds)}
        run.extra |= {"coding_seconds": np.array([coding * seconds])} if is_coded else {}
        return run

    cases = shown("cssgd-encoding", make)["cssgd-encoding"].evidence
    assert len(cases) == 2 * 2 * 3 and [case.verdict for case in cases] == verdicts * 6


def test_a_run_without_the_counter_of_coding_says_nothing_of_it():
    assert encoding.coding_share(fake_run()) is None


def test_a_mean_over_nodes_is_known_only_if_it_is_for_each():
    once, twice = Sample({0: 1.0, 1: 2.0}), Sample({0: 4.0, 1: 8.0})
    assert geometric_mean([once, twice]).values == pytest.approx({0: 2.0, 1: 4.0})
    assert geometric_mean([once, Sample({0: 4.0, 1: None})]).values == pytest.approx({0: 2.0, 1: None})
    missed, early = Sample(twice.values, frozenset({0})), Sample(once.values, upper=frozenset({1}))
    mean = geometric_mean([missed, early])
    assert (mean.bounds, mean.upper) == ({0}, {1}) and mean.values == pytest.approx({0: 2.0, 1: 4.0})
    assert geometric_mean([missed, Sample(once.values, upper=frozenset({0}))]).values[0] is None


def test_a_seed_with_which_our_side_failed_counts():
    """Of ten seeds, CSSGD misses its target with one: its mean is a lower bound, and so is what it takes more."""
    ours, theirs = ({seed: middle + seed / 50 for seed in range(10)} for middle in (1, 2))
    times = {
        n: {name: Sample(ours, frozenset({3} if n == 4 else ())) for name in (CSSGD, OURS)}
        | {ASGD.name: Sample(theirs)}
        for n in (4, 6)
    }
    case, _ = best_redundancy.mean_savings(replace(DNN, name="sigmoid"), DNN, tasks.SWITCH, times)
    assert (case.baseline, case.seeds, case.bound, case.low) == (ASGD.name, 10, AT_MOST, None)
    assert case.verdict == INCONCLUSIVE


def test_asgd_runs_ten_times_and_both_dnns_are_tuned_by_themselves():
    needs = best_redundancy.needs(DNN, Conditions(DESK, emulated=True))
    asgd = [need for need in needs.values() if need.setting.config == DNN.config(ASGD)]
    assert {need.seeds for need in asgd} == {10}
    assert {need.setting.tuned_with for need in asgd} == {(), ('model.output="sigmoid"',)}


@pytest.mark.parametrize(("scale", "epochs"), [(SMOKE, 0.2), (DESK, 6.0), (PAPER, 40.0)])
def test_trials_of_the_cnn_have_half_of_the_desks_epochs_and_no_more_than_a_training(scale, epochs):
    conditions = Conditions(scale, emulated=True)
    alone = tasks.alone(conditions, CNN)
    (tuned,) = (found := Plan(conditions, FakeStore(lambda spec: None), {})).rates.list_tuned([alone])
    assert {spec.load().train.epochs for specs in found.rates.coarse(tuned).values() for spec in specs} == {epochs}


def test_redundancies():
    assert [method.r for method in tasks.all_coded(5)] == [1, 2, 3, 4]
    assert [method.r for method in tasks.perhaps_fastest(5)] == [1, 2, 3, 4]
    assert [method.r for method in tasks.perhaps_fastest(9)] == [1, 6, 7, 8], "the others compute and send more"
    assert [method.r for method in tasks.all_grouped(8)] == [1, 2, 3, 4], "8, 4, 3 and 2 groups"
    assert DNN.nodes(Conditions(DESK, emulated=True)) == [4, 6, 8, 10]
    assert CNN.nodes(Conditions(DESK, emulated=True)) == [8]


def test_counted_packets_are_those_of_the_formulas():
    for counted, formula in load.FORMULAS.values():
        assert all(counted(n, r) == formula(n, r) for n in range(2, 7) for r in range(1, n + 1))


def test_coding_saves_r_and_not_n():
    case = load.one_nth("blocks", load.uncoded, 2, range(3, 11))
    assert case.verdict == REFUTED and case.estimate == 5.0
