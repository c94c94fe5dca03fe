"""The tables and figures of the papers: what runs they ask for, and what they make of them."""

import math

import pytest

from experiments import papers
from experiments.cache import Unfinished
from experiments.tables import compare, numbers, report, run_spec, section, sources
from experiments.tables.__main__ import caveats, only_one, with_error
from experiments.tables.outcome import FAILS, HOLDS, PARTLY, UNDECIDED, Figure
from experiments.tables.requests import EQUAL, SLOW_LINKS, STRAGGLER, MissingRun, RunRequests
from experiments.tables.run_spec import MEASURED, SIMULATED, TIMING_ONLY, UNIT_STEPS, Link, RunSpec
from experiments.tables.scale import SCALES, SMOKE, TINY
from experiments.tables.section import Section
from experiments.tables.targets import PAPERS, TARGETS, chosen
from grsgd import config
from tests.support.runs import fake_run

FOLDERS = [papers.folder(paper) for paper in PAPERS]
LINK = Link("1gbit")


class FakeStore:
    """Has every run that `make` makes; None is a run that is missing."""

    def __init__(self, make=lambda spec: fake_run()):
        self.find = make
        self.hosts = sources.EmulatedHosts(9, 0.2)

    def path(self, spec):
        return papers.ROOT / f"{spec.name('fake')}.h5"


def rate_of(spec) -> float:
    return spec.load().optimizer.lr


def test_every_target_checks_a_claim_and_every_claim_has_targets():
    claims = report.read_claims(FOLDERS)
    chosen([])
    assert {name for claim in claims.values() for name in claim["targets"]} == set(TARGETS)
    assert all(claim["statement"] and claim["source"] for claim in claims.values())


def test_names_of_targets():
    assert [target.name for target in chosen(["cssgd-load"])] == ["cssgd-load"]
    assert {target.paper for target in chosen(["lasgd"])} == {"lasgd"}
    assert len(chosen([])) == len(TARGETS) >= 33
    with pytest.raises(ValueError, match="no table or figure 'cssgd-fig3'; there are"):
        chosen(["cssgd-fig3"])


@pytest.mark.parametrize("scale", SCALES)
def test_every_run_of_every_target_can_be_run(scale):
    """At every scale: the configurations are valid, also for that many ranks."""
    found = RunRequests(SCALES[scale], FakeStore())
    for found.stage in ("tuning", "asking"):
        for target in chosen([]):
            found.begin()
            target.make(found, Section(target.name, None))
    assert {spec.source for spec in found.asked} >= {MEASURED, SIMULATED, UNIT_STEPS, TIMING_ONLY}
    sizes = {(spec.config, spec.overrides, spec.ranks) for spec in found.asked}
    for name, overrides, ranks in sizes:
        RunSpec(name, overrides, ranks, MEASURED, LINK).load().check_ranks(ranks)


SMALLER = sorted(papers.folder("grsgd").parent.glob("*/**/smoke.toml"))


@pytest.mark.parametrize("toml", SMALLER, ids=lambda path: path.parent.name)
def test_what_a_scale_replaces(toml):
    loaded = config.load(toml.with_name("base.toml"), list(run_spec.overrides(toml)))
    assert loaded.train.target_accuracy != config.load(toml.with_name("base.toml")).train.target_accuracy or (
        loaded.data != config.load(toml.with_name("base.toml")).data
    )


def test_overrides_are_values_as_toml_has_them(tmp_path):
    path = tmp_path / "x.toml"
    path.write_text('a = 1\n[b]\nc = "two words"\nd = [1.5, 2.0]\n[b.e]\nf = true\n')
    assert set(run_spec.overrides(path)) == {"a=1", 'b.c="two words"', "b.d=[1.5, 2.0]", "b.e.f=true"}


def test_a_run_is_found_again_by_what_it_depends_on():
    spec = RunSpec("grsgd/dpsgd", ("seed=1",), 4, MEASURED, LINK)
    name = spec.name("here")
    assert name == spec.name("here") and name.startswith("dpsgd-n4-clock-")
    others = [spec._replace(overrides=("seed=2",)), spec._replace(ranks=5), spec._replace(source=SIMULATED)]
    assert len({name, spec.name("there"), *(other.name("here") for other in others)}) == 5
    assert spec._replace(overrides=("seed=1", "train.epochs=160")).name("here") == name, "which it has anyway"
    shared = [
        RunSpec(f"{paper}/ring_allreduce", ("train.epochs=1",), 4, UNIT_STEPS, LINK) for paper in ("grsgd", "lasgd")
    ]
    assert len({one.load().toml() for one in shared}) == len({one.name("here") for one in shared}), "papers share runs"


def test_the_learning_rate_that_takes_fewest_samples():
    """One gets there first, another is more accurate in the end."""
    _, first, accurate, _, _ = SMOKE.learning_rates

    def run(spec):
        found = fake_run(snapshots=6)
        if rate_of(spec) == first:
            found.curve["test_accuracy"][2] = 0.7
        if rate_of(spec) == accurate:
            found.curve["test_accuracy"][5] = 1.0
        return found

    there = RunRequests(SMOKE, FakeStore(run))
    there.stage = "showing"
    assert there.learning_rate("grsgd/dpsgd") == first
    found = there.tuned["grsgd/dpsgd", ()]
    assert found[first] == (2000, 1.0) and found[accurate] == (3000, 1.0)
    lowest, *_, highest = SMOKE.learning_rates
    assert lowest in found and highest not in found, "tried beside the best alone"


def test_the_most_accurate_learning_rate_where_none_reaches_the_target():
    def run(spec):
        found = fake_run(target_accuracy=0.99)
        found.curve["test_accuracy"][-1] = 0.8 + rate_of(spec) / 10
        return found

    there = RunRequests(SMOKE, FakeStore(run))
    there.stage = "showing"
    found = there.learning_rate("grsgd/dpsgd")
    assert found == max(SMOKE.learning_rates)


def test_a_synchronous_algorithms_time_is_steps_times_seconds_per_step():
    """The target after 3000 samples; a step of 4 ranks has 1024 and takes as long as the straggler makes it."""

    def run(spec):
        if spec.source != TIMING_ONLY:
            assert spec.source == UNIT_STEPS and spec.ranks == 1, "a single rank with a batch four times as large"
            return fake_run()
        slow = "stragglers.slowdown.1=4.0" in spec.overrides
        found = fake_run(ranks=4)
        found.ranks["compute_seconds"] = found.ranks["steps"] * (2.0 if slow else 0.5)
        found.ranks["communicate_seconds"] = found.ranks["wait_seconds"] = found.ranks["steps"] * 0.0
        return found

    there = RunRequests(SMOKE, FakeStore(run))
    there.stage = "showing"
    batch = there.load("grsgd/ring_allreduce").data.batch_size
    for scenario, step in ((EQUAL, 0.5), (STRAGGLER, 2.0)):
        times = there.seconds("grsgd/ring_allreduce", 4, SIMULATED, scenario)
        assert times == pytest.approx([3000 / (4 * batch) * step] * SMOKE.seeds)


def test_an_asynchronous_algorithms_time_is_its_snapshots():
    there = RunRequests(SMOKE, FakeStore())
    there.stage = "showing"
    assert there.seconds("grsgd/grsgd", 4, MEASURED) == [30.0] * SMOKE.clock_seeds
    there.seconds("grsgd/grsgd", 4, SIMULATED)
    assert there.simulator_errors() == [0.0]


def test_what_is_said_of_the_simulators_error():
    figure, simulated = Figure("Times.", "x.svg"), [{"source": SIMULATED}]
    assert "of the same trainings: median +0%" in with_error(figure, [0.0], [], simulated).caption
    assert "the paper's other targets: median -10%" in with_error(figure, [], [-0.1], simulated).caption
    assert "not held against the clock" in with_error(figure, [], [], simulated).caption
    assert with_error(figure, [0.0], [], [{"source": MEASURED}]) == figure, "nothing is simulated"
    assert with_error(Figure("Bytes.", "x.svg", times=False), [0.0], [], simulated).caption == "Bytes."


def test_tables_are_made_one_after_the_other(tmp_path):
    with only_one(tmp_path / "smoke"), pytest.raises(Unfinished, match="already"), only_one(tmp_path / "smoke"):
        pass
    with only_one(tmp_path / "smoke"):
        pass


def test_the_lock_is_no_way_to_empty_another_file(tmp_path):
    victim = tmp_path / "victim"
    victim.write_text("precious")
    (tmp_path / "smoke.lock").symlink_to(victim)
    with pytest.raises(Unfinished, match="smoke.lock: Too many levels of symbolic links"), only_one(tmp_path / "smoke"):
        pass
    assert victim.read_text() == "precious"


def test_what_goes_beyond_equal_samples_does_not_count():
    run = fake_run(ranks=2, snapshots=6, config="[train]\nepochs = 1.0\n", batch_size=100)
    assert run.attributes["train_samples"] == 2000
    assert numbers.best_accuracy(run) == pytest.approx(0.4), "after 2000 samples"
    run.attributes["batch_size"] = 500
    assert numbers.best_accuracy(run) == pytest.approx(0.6), "a step of two ranks more"


def test_with_batch_normalisation_as_many_ranks_train():
    there = RunRequests(SMOKE, FakeStore())
    shared = there.trajectory_spec("lasgd/ring_allreduce", 4, (), 0, 0.1)
    assert shared.ranks == 1
    normalised = there.trajectory_spec("lasgd/ring_allreduce", 4, ('model.name="resnet20"',), 0, 0.1)
    assert normalised.ranks == 4 and not any("batch_size" in override for override in normalised.overrides[-3:])


def test_a_missing_run_is_named():
    there = RunRequests(SMOKE, FakeStore(lambda spec: None))
    there.stage = "showing"
    with pytest.raises(MissingRun, match="^grsgd-n8-simulated"):
        there.seconds("grsgd/grsgd", 4, MEASURED)


def test_a_parameter_server_is_one_rank_more():
    there = RunRequests(SMOKE, FakeStore())
    assert there.spec("adsp/adsp", 4, MEASURED, (), 0, 0.1).ranks == 5
    assert there.spec("grsgd/grsgd", 4, MEASURED, (), 0, 0.1).ranks == 4


def test_tiny_replaces_what_smoke_does():
    assert RunRequests(TINY, FakeStore()).load("grsgd/grsgd").data.name == "digits"
    assert RunRequests(SMOKE, FakeStore(), ("train.epochs=1",)).load("grsgd/grsgd").train.epochs == 1


@pytest.mark.parametrize(
    ("cases", "expected"),
    [
        ({"a": True, "b": True}, HOLDS),
        ({"a": False, "b": False}, FAILS),
        ({"with stragglers": True, "else": False}, f"{PARTLY} with stragglers"),
        ({"a": True, "b": None}, f"{PARTLY} a (not decided: b)"),
        ({"a": False, "b": None}, FAILS),
    ],
)
def test_verdicts(cases, expected):
    assert section.verdict(cases) == expected


def test_no_verdict_without_a_figure():
    assert section.verdict({"a": None}).startswith(UNDECIDED)


def test_numbers_of_seeds():
    assert numbers.median_and_range([3.0, 1.0, 2.0]) == "2 (1–3)"
    assert numbers.median_and_range([2.0, math.nan]) == "2, 1 of 2"
    assert numbers.median_and_range([math.nan]) == "—"
    assert numbers.saving([1.0], [4.0]) == 75
    assert numbers.accuracy_gain([0.895], [0.905]) == -1, "and not a little less"
    assert numbers.percent(numbers.saving([5.0], [4.0])) == "25.0 % more"
    assert numbers.is_less([1.0], [2.0]) and not numbers.is_less([1.0], [2.0], by=50)
    assert compare.savings_range([-10.0, math.nan, 20.0]) == "from 10.0 % more to 20.0 % less"
    assert numbers.all_at_least([1.0, -1.0], 0) is False and numbers.all_at_least([math.nan], 0) is None


def test_a_target_that_is_not_reached_is_no_success():
    never = [math.nan]
    assert numbers.is_less(never, [2.0]) is False and numbers.is_less([2.0], never) is None
    assert numbers.all_at_least([5.0, numbers.saving(never, [2.0])], 0) is False
    assert compare.savings_range([5.0, -math.inf]) == "5.0 % less (target not reached in 1 of 2)"
    assert numbers.percent(-math.inf) == compare.savings_range([-math.inf]) == numbers.NOT_REACHED
    assert numbers.median_or_nan([1.0, math.nan, 3.0]) == 3.0, "one seed of three is later than the others"
    assert math.isnan(numbers.median_or_nan([1.0, math.nan])) and math.isnan(numbers.median_or_nan([]))


def test_without_root_it_says_so(monkeypatch):
    def refuse(*arguments):
        raise sources.TestbedError("needs root")

    monkeypatch.delenv("SLURM_JOB_NUM_NODES", raising=False)
    monkeypatch.setattr(sources, "Testbed", refuse)
    on = sources.hosts(9, 0.2)
    assert not on.emulated and "as it is" in on.describe(LINK)
    store = FakeStore()
    store.hosts = on
    found = RunRequests(TINY, store)
    assert caveats(found) == [], "nothing was measured"
    found.used[RunSpec("grsgd/dpsgd", (), 4, MEASURED, LINK)] = None
    (note,) = caveats(found)
    assert "(needs root)" in note and "Slow links are only simulated" in note
    assert (
        compare.rank_counts(found, MEASURED)
        and not compare.rank_counts(found, MEASURED, SLOW_LINKS)
        and compare.rank_counts(found, SIMULATED)
    )
    monkeypatch.setenv("SLURM_JOB_NUM_NODES", "4")
    assert sources.hosts(9, 0.2).description.startswith("4 nodes")
