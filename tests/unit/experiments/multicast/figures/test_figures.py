"""Figures 8 to 15 of CSSGD over IP multicast: what is measured for them, and what they say of runs that are made up."""

import sys
from contextlib import nullcontext

import numpy as np
import pytest

from coding.cost import cost_in_models, redundancy
from experiments.multicast.figures import __main__ as program
from experiments.multicast.figures import asgd, figures, page
from experiments.multicast.figures.figures import AS_MANY, FIGURES, wanted
from experiments.multicast.figures.plan import (
    AGAIN,
    ALLOWED_NODES,
    CPU,
    IP,
    NODES,
    SMALL,
    STEPS,
    TESTED,
    Turn,
    turns,
)
from experiments.multicast.figures.seconds import SCHEMES, expect_seconds, models
from experiments.multicast.figures.views import COUNTED, VIEWS, group_runs, list_numbers, megabytes_sent, title
from experiments.multicast.measure import RATE, SharedMedium
from experiments.papers.cssgd_2021 import best_redundancy, over_nodes, tasks
from experiments.papers.cssgd_2021.tasks import ASGD, CNN, DNN, MULTICAST, RING, UNICAST, coded
from experiments.runner import batch
from experiments.runner.conditions import Conditions
from experiments.runner.costs import Seconds
from experiments.runner.kept import KeptRuns
from experiments.runner.maker import Maker
from experiments.runner.outcome import BY_CONSTRUCTION, REFUTED, SUPPORTED
from experiments.runner.parallel import Unfinished
from experiments.runner.plan import Plan
from experiments.runner.scale import DESK
from experiments.runner.store import Store
from experiments.tables.wording import MIXED, overall
from grsgd.runs.run_file import save_run
from grsgd.training.inputs import load_data
from grsgd.units import rate
from tests.support.failing_jobs import FakeJobs
from tests.support.runs import fake_run
from tests.support.same_algorithm import one_algorithm
from tests.support.store import FakeStore

ONCE, PER_RECEIVER, MIXED_COUNT = COUNTED


def scheme(method) -> str:
    """The name in ``coding.cost``."""
    if method.config == "ssgd" and method.r:
        return "per-block"
    return {"ssgd_unicast": "ssgd-unicast"}.get(method.config) or SCHEMES[method.config]


def on_the_medium(turn: Turn, slower: float = 0.0):
    """A run of which each packet takes the medium once, at its whole rate, and whose ranks compute for as long as they
    must; a little longer in each round."""
    n, method = turn.nodes, turn.method
    run = fake_run(ranks=turn.hosts, seed=77)
    steps = np.full(turn.hosts, STEPS) * (np.arange(turn.hosts) < n)
    computing = SMALL[turn.task].compute_seconds / CPU
    if method == ASGD:
        once = receivers = 2.0 * n
    else:
        cost = cost_in_models(scheme(method), n, method.r or 1)
        once, receivers = float(cost.once), float(cost.per_receiver)
        computing *= float(redundancy(scheme(method), n, method.r or 1))
    size = SMALL[turn.task].model_bytes
    medium = once * size / rate(RATE)
    waiting = max(0.0, medium - computing) if method == ASGD else medium
    longer = (1 + slower) * (1 + 0.001 * turn.round)
    share = STEPS * size / turn.hosts
    run.ranks |= {"steps": steps, "samples": steps * 16}
    run.ranks |= {"compute_seconds": longer * steps * computing, "communicate_seconds": longer * steps * waiting}
    run.ranks |= {"wait_seconds": 0.0 * steps}
    run.traffic |= {
        "sent_once": np.full(turn.hosts, once * share),
        "sent": np.full((turn.hosts, turn.hosts), receivers * share / turn.hosts),
        "interface": np.full((turn.hosts, 2), once * share),
        "repaired": np.full(turn.hosts, np.nan),
    }
    return run


def made(numbers=FIGURES, nodes=NODES, rounds=3, slower=lambda turn: 0.0):
    return {turn: on_the_medium(turn, slower(turn)) for turn in turns(wanted(numbers, list(nodes)), rounds)}


@pytest.fixture(scope="module")
def everything():
    return group_runs(made())


def shown(number, everything, factors=None):
    figure = FIGURES[number]
    return figure.show(figure.task, everything, list(NODES), factors or {})


# ---- what is measured


def test_every_run_is_made_once_whatever_figures_need_it():
    todo = list(turns(wanted(FIGURES, list(NODES)), 2))
    assert len(todo) == len(set(todo)) == len({turn.spec() for turn in todo})
    of_one = {turn for number in FIGURES for turn in turns(wanted([number], list(NODES)), 2)}
    assert of_one == set(todo)
    for n in NODES:
        for task in (DNN, CNN):
            here = [turn.method for turn in todo if (turn.round, turn.task, turn.nodes) == (0, task, n)]
            assert {MULTICAST, AGAIN, UNICAST, RING, ASGD} | set(map(coded, range(1, n + 1))) <= set(here)


def test_every_second_round_is_backwards():
    todo = list(turns(wanted([14], [4, 6]), 2))
    orders = [[turn.method for turn in todo if (turn.round, turn.nodes) == (k, 4)] for k in range(2)]
    assert orders[0] == orders[1][::-1] and len(orders[0]) > 5


@pytest.mark.parametrize("number", [9, 11, 12, 13, 14, 15])
def test_configurations_can_be_run(number):
    for turn in turns(wanted([number], [max(NODES)]), 1):
        spec = turn.spec()
        loaded = spec.load()
        loaded.check_ranks(spec.ranks)
        assert spec.ranks == turn.hosts and loaded.train.steps == STEPS and loaded.train.epochs is None
        assert loaded.data.name == "synthetic" and loaded.data.only_classes == turn.nodes
        assert loaded.train.compute_seconds == SMALL[turn.task].compute_seconds
        by_mpi = turn.method in (UNICAST, ASGD, RING)
        assert (getattr(loaded.algorithm_options, "transport", None) == "ip-multicast") is not by_mpi
        assert getattr(loaded.algorithm_options, "r", turn.method.r) == (turn.method.r or 1) or turn.method.r is None
    assert Turn(2, DNN, 4, AGAIN).spec().load().seed == 1002 and Turn(2, DNN, 4, MULTICAST).spec().load().seed == 2


def test_with_as_many_nodes_as_are_allowed_each_block_has_a_sample():
    for task in (DNN, CNN):
        samples = 8 * Turn(0, task, 8, MULTICAST).spec().load().data.batch_size
        assert max(tasks.blocks(8, r) for r in range(1, 9)) <= samples


def test_there_are_as_many_images_as_are_asked_for():
    for task in (DNN, CNN):
        assert len(load_data(Turn(0, task, min(ALLOWED_NODES), MULTICAST).spec().load()).test) == TESTED


def test_what_all_nodes_send():
    assert models(Turn(0, DNN, 8, coded(3))) == pytest.approx(8 * 35 / 3)
    assert models(Turn(0, DNN, 8, MULTICAST)) == models(Turn(0, DNN, 8, AGAIN)) == 8
    assert models(Turn(0, DNN, 8, UNICAST)) == 56 and models(Turn(0, DNN, 8, ASGD)) == 16
    assert models(Turn(0, DNN, 8, over_nodes.BLOCKS[0])) == 28 and models(Turn(0, DNN, 8, coded(8))) == 0


def test_the_medium_is_as_busy_as_the_papers_model_needs():
    """The best r of the model is 3 for the DNN and 2 for the CNN."""
    for task in (DNN, CNN):
        small = SMALL[task]
        ratio = 8 * small.model_bytes / rate(RATE) / (small.compute_seconds / CPU)
        assert task.best_r * (task.best_r - 1) <= ratio <= task.best_r * (task.best_r + 1)


def test_other_rounds_tell_how_long_a_run_takes(tmp_path):
    turn = Turn(0, DNN, 8, coded(3))
    costs = KeptRuns(tmp_path, expect=lambda spec, cpu: expect_seconds(turn)).costs
    assert costs.seconds(turn.spec()) > STEPS * 8 * 35 / 3 * 0.87e6 / 12.5e6
    costs.learn(turn.spec(), fake_run(wall_seconds=7.0))
    assert costs.seconds(turn._replace(round=5).spec()) == 7.0 + expect_seconds(turn).other


# ---- runs that fail, and runs that are there


@pytest.fixture
def kept(tmp_path, monkeypatch):
    """Runs on hosts that there are not."""
    medium = SharedMedium(CPU)
    monkeypatch.setattr(medium, "connected", lambda spec: nullcontext())
    on = {"on": medium, "run_timeout": 1.0, "in_order": True}
    return KeptRuns(tmp_path, expect=lambda spec, cpu: Seconds(1.0, 0.0), **on)


@pytest.mark.parametrize("failures", [0, 1, 2])
def test_a_run_that_fails_is_made_once_more(failures, monkeypatch, kept):
    todo = [turn for turn in turns(wanted([8], [4]), 1) if turn.hosts == 4]
    third = str(kept.store.path(todo[2].spec()))
    fake = FakeJobs({third: failures}, lambda run: save_run(program.Path(run.out), fake_run()))
    monkeypatch.setattr(batch, "make_runs", fake.make_runs)
    if failures == 2:
        with pytest.raises(Unfinished, match="^it ended$"):
            kept.make_all(todo)
    else:
        assert list(kept.make_all(todo)) == todo
    assert fake.begun == [len(todo), len(todo) - 2, len(todo) - 3][: 1 + failures]


def test_only_what_is_missing_is_made(monkeypatch, tmp_path):
    there, asked = made([8], [3], rounds=2), []
    first = next(iter(there))
    by_spec = {turn.spec(): run for turn, run in there.items()}
    existing = {spec for spec in by_spec if spec != first.spec()}

    def make(maker, specs, what):
        asked.extend(spec for spec in specs if spec not in existing)
        existing.update(specs)

    monkeypatch.setattr(Store, "find", lambda store, spec: by_spec[spec] if spec in existing else None)
    monkeypatch.setattr(Maker, "make", make)
    monkeypatch.setattr(sys, "argv", ["x", "--figure=8", "--ranks=3", "--rounds=2", f"--out={tmp_path}"])
    monkeypatch.setattr(program, "available_cores", lambda: 4)
    assert program.main() == 0 and asked == [first.spec()]
    for name in ("figure-8.png", "figure-8.pdf", "figure-8.csv", "measured.csv", "page.md"):
        assert (tmp_path / name).stat().st_size > 100
    assert len((tmp_path / "measured.csv").read_text().splitlines()) == 1 + len(there)


WRONG = [(["--ranks=9"], "3 to 8"), (["--rounds=0"], "1 or more"), ([], "9 hosts of 0.2 cores; here are 1")]


@pytest.mark.parametrize("arguments, why", WRONG)
def test_wrong_arguments(arguments, why, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["x", *arguments])
    monkeypatch.setattr(program, "available_cores", lambda: 1)
    with pytest.raises(SystemExit):
        program.main()
    assert why in capsys.readouterr().err.splitlines()[-1]


# ---- what is said of runs


def test_what_is_counted_once_is_measured_on_a_medium_without_overheads(everything):
    """And only there; of a packet to several nodes the other ways count more, of others all as much."""
    for task, view, method, n in everything:
        (measured, *_), (seen, *_) = (everything[task, each, method, n] for each in (IP, view))
        times = [tasks.step_seconds(everything, task, each, method, n).values[0] for each in (IP, view)]
        if view == ONCE or method in (UNICAST, RING, ASGD, coded(1)):
            assert times[1] == pytest.approx(times[0])
            assert megabytes_sent(seen) == pytest.approx(megabytes_sent(measured))
        elif view == PER_RECEIVER and method not in (coded(n),):
            assert times[1] > times[0]
        elif view == MIXED_COUNT and method.config == "coded":
            assert times[1] == pytest.approx(times[0])


def test_seeds_are_rounds_and_lost_ones_are_no_matter(everything):
    assert set(tasks.step_seconds(everything, DNN, IP, MULTICAST, 8).values) == {0, 1, 2}


def test_fixed_redundancies_do_not_shorten_a_step(everything):
    """A coded step with r = 2 and r = 3 on 8 nodes takes the medium for 84 M and 93 M, SSGD by multicast for 8."""
    found = shown(8, everything).findings["cssgd-time-nodes"]
    assert overall(found[IP].cases) == MIXED  # r = 3 on 4 nodes, and r = 2 against unicast
    verdicts = {(case.condition, case.baseline): case.verdict for case in found[IP].evidence}
    assert verdicts["CSSGD, r = 3, n = 8", MULTICAST.name] == REFUTED
    assert verdicts["CSSGD, r = 3, n = 4", MULTICAST.name] == SUPPORTED
    assert verdicts["CSSGD, r = 2, n = 4", UNICAST.name] == SUPPORTED


def test_the_papers_count_shows_what_the_medium_does_not(everything):
    found = shown(9, everything).findings["cssgd-traffic"]
    of = {
        view: {(case.condition, case.baseline): case.verdict for case in found[view].evidence}
        for view in (IP, MIXED_COUNT)
    }
    blocks = over_nodes.BLOCKS[0].name
    assert of[IP]["CSSGD, r = 2, n = 8", blocks] == REFUTED
    assert of[MIXED_COUNT]["CSSGD, r = 2, n = 8", blocks] == SUPPORTED
    assert of[MIXED_COUNT]["CSSGD, r = 2, n = 8", MULTICAST.name] == REFUTED


@pytest.mark.parametrize("number, best_of_model, best", [(12, 3, 8), (13, 2, 7)])
def test_the_model_is_the_grouped_schemes(number, best_of_model, best, everything):
    each = shown(number, everything)
    model, own = (each.findings[claim][IP].cases[0] for claim in ("cssgd-model-optimum", "cssgd-optimum"))
    assert (model.kind, model.estimate) == (BY_CONSTRUCTION, best_of_model)
    assert own.verdict == REFUTED and own.estimate == best
    of_cssgd, of_grouped = each.findings["cssgd-model"][IP].cases
    assert of_cssgd.verdict == REFUTED and of_grouped.verdict == SUPPORTED
    assert "Tcomm / Tcalc" in each.note


def test_the_best_redundancy_and_asgd(everything):
    each = shown(14, everything, {4: 2.0, 6: 2.0, 8: 2.0})
    lines = each.lines[IP]
    for n in NODES:
        assert lines[ASGD.name][n].median() == pytest.approx(2 * lines[AS_MANY][n].median())
        assert lines[best_redundancy.CSSGD][n].median() < lines[MULTICAST.name][n].median()
    verdicts = {case.baseline: case.verdict for case in each.findings["cssgd-best-dnn"][IP].evidence}
    assert verdicts[ASGD.name] == SUPPORTED and verdicts[MULTICAST.name] == SUPPORTED
    without = shown(14, everything)
    assert ASGD.name not in without.lines[IP] and "not known" in without.note
    assert {case.baseline for case in without.findings["cssgd-best-dnn"][IP].evidence} == {MULTICAST.name}


def test_the_page_says_what_reproduces_and_how_the_reference_repeats(everything):
    numbers = {number: shown(number, everything) for number in FIGURES}
    text = "\n\n".join(page.page(numbers, everything, list(NODES), 3))
    rows = [line.split("|") for line in text.splitlines() if line.startswith("| 12, DNN")]
    no, built = "does not reproduce", "follows from Tcomm / Tcalc"
    assert [row[3].strip() for row in rows] == [no, built, no]
    assert "- Figure 8, DNN, cssgd-time-nodes, holds for: CSSGD, r = 2, n = 4 (against SSGD by unicast); " in text
    assert text.count("3% more or less allowed: holds.") == 2 * len(NODES)
    assert all(title(view) in text for view in VIEWS) and "seed" not in text
    slow = group_runs(made([8], rounds=3, slower=lambda turn: 0.1 * (turn.method == AGAIN)))
    assert all("1.10 (range 1.10 to 1.10)" in line and line.endswith("does not hold.") for line in page.controls(slow))


def test_one_round_decides_nothing_and_is_shown():
    runs = made([10, 12], [3], rounds=1)
    for number in (10, 12):
        figure = figures.FIGURES[number]
        each = figure.show(figure.task, group_runs(runs), [3], {})
        assert "| SSGD by multicast" in page.table(each) or number == 12
        assert all(page.words(one[IP]) for one in each.findings.values())


def test_results_are_those_of_a_step():
    runs = made([11], [4], rounds=1)
    by_method = {point.method: result for point, result in list_numbers(runs).items()}
    reference = by_method[MULTICAST.name]
    size, computing = SMALL[CNN].model_bytes, SMALL[CNN].compute_seconds / CPU
    assert reference.once == reference.interfaces == pytest.approx(4 * size / 1e6) and reference.repaired == 0
    assert reference.per_receiver == pytest.approx(12 * size / 1e6)
    assert reference.computing == pytest.approx(computing)
    assert reference.seconds == pytest.approx(computing + 4 * size / rate(RATE))


# ---- what ASGD needs


def test_samples_of_asgd_in_those_of_others():
    """By trainings that all take as many; where one is missing, nothing is known."""
    conditions = Conditions(DESK, emulated=True)
    needs = best_redundancy.needs(DNN, conditions)

    def at(make_run):
        return asgd.factors_of(Plan(conditions, FakeStore(make_run), {"recorded": needs}), DNN, [4, 5, 6])

    assert at(one_algorithm) == pytest.approx({4: 1.0, 6: 1.0}, rel=0.3)
    assert at(lambda spec: None if spec.ranks == 5 else one_algorithm(spec)).keys() == {6}


def test_replaced_runs_are_copies(everything):
    """The bytes of interfaces of a view do not reach the others."""
    runs = made([8], [3], rounds=1)
    before = {turn: run.traffic["interface"].sum() for turn, run in runs.items()}
    group_runs(runs)
    assert {turn: run.traffic["interface"].sum() for turn, run in runs.items()} == before
    assert {run.attributes["seed"] for run in runs.values()} == {77}
