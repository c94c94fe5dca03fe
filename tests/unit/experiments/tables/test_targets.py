"""Tables and figures of the papers: what runs they need, how these are made, and what is found of them."""

import math

import pytest

from experiments import papers
from experiments.runner import hosts, run_spec, sample
from experiments.runner.conditions import Conditions
from experiments.runner.learning_rates import BEYOND, FINER, MAX_BEYOND, TUNING_SEED, MissingRun
from experiments.runner.needs import STOPS_AT_TARGET, Steps, TimeToTarget, Trainings
from experiments.runner.occasions import occasion
from experiments.runner.outcome import Figure
from experiments.runner.parallel import Unfinished
from experiments.runner.plan import Plan, without_stop
from experiments.runner.run_spec import MEASURED, SIMULATED, TIMING_ONLY, UNIT_STEPS, Link, RunSpec
from experiments.runner.scale import DESK, SCALES, SMOKE, TINY
from experiments.runner.setting import EQUAL, SLOW_HOST, SLOW_LINKS, STRAGGLER, Setting
from experiments.tables.__main__ import only_one
from experiments.tables.arguments import parse_arguments
from experiments.tables.claims import read_claims
from experiments.tables.show import caveats
from experiments.tables.simulator_error import error_note, simulator_errors, with_error
from experiments.tables.targets import PAPERS, TARGETS, chosen
from grsgd import config
from grsgd.runs.measures import seconds_per_step
from tests.support.exhaustive import exhaustive_unless
from tests.support.runs import fake_run
from tests.support.store import FakeStore, plan, result, seed_of

FOLDERS = [papers.folder(paper) for paper in PAPERS]
LINK = Link("1gbit")
CONDITIONS = Conditions(SMOKE, emulated=True)
DPSGD, GRSGD, RING = (Setting(f"grsgd/{name}", 4) for name in ("dpsgd", "grsgd", "ring_allreduce"))


def rate_of(spec: RunSpec) -> float:
    return spec.load().optimizer.lr


def test_every_target_checks_a_claim_and_every_claim_has_targets_or_says_why_not():
    found = read_claims(FOLDERS)
    chosen([])
    assert {name for claim in found.values() for name in claim.get("targets", [])} == set(TARGETS)
    assert all(claim.get("targets") or claim["not_covered"] for claim in found.values())


@pytest.mark.parametrize("scale", sorted(SCALES))
def test_a_scale_leaves_out_no_target(scale, monkeypatch):
    monkeypatch.setattr("sys.argv", ["tables", "--scale", scale])
    assert parse_arguments("").targets == chosen([])


def test_names_of_targets():
    assert [target.name for target in chosen(["cssgd-load"])] == ["cssgd-load"]
    assert {target.paper for target in chosen(["lasgd"])} == {"lasgd"}
    assert len(chosen([])) == len(TARGETS) >= 33
    with pytest.raises(ValueError, match="no table or figure 'cssgd-fig3'; allowed"):
        chosen(["cssgd-fig3"])


@pytest.mark.parametrize("scale", exhaustive_unless(["smoke", "tiny"], SCALES))
def test_every_run_of_every_target_can_be_run(scale):
    """At every scale: the configurations are valid, also for that many ranks."""
    conditions = Conditions(SCALES[scale], emulated=True)
    needs = {target.name: target.needs(conditions) for target in chosen([])}
    everything = Plan(conditions, FakeStore(), needs)
    specs = everything.specs()
    assert {spec.source for spec in specs} >= {MEASURED, SIMULATED, UNIT_STEPS, TIMING_ONLY}
    for name, overrides, ranks in {(spec.config, spec.overrides, spec.ranks) for spec in specs}:
        run_spec.load_config(name, overrides).check_ranks(ranks)


SMALLER = sorted(papers.folder("grsgd").parent.glob("*/**/smoke.toml"))


@pytest.mark.parametrize("toml", SMALLER, ids=lambda path: path.parent.name)
def test_what_a_scale_replaces(toml):
    base = config.load(toml.with_name("base.toml"))
    loaded = config.load(toml.with_name("base.toml"), list(run_spec.overrides(toml)))
    assert (loaded.train.target_accuracy, loaded.data) != (base.train.target_accuracy, base.data)


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


# ---- settings and the runs that they stand for


def test_a_parameter_server_is_one_rank_more():
    assert CONDITIONS.spec(Setting("adsp/adsp", 4), 0, 0.1).ranks == 5
    assert CONDITIONS.spec(GRSGD, 0, 0.1).ranks == 4


def test_tiny_replaces_what_smoke_does():
    assert Conditions(TINY, emulated=True).load("grsgd/grsgd").data.name == "digits"
    assert Conditions(SMOKE, emulated=True, overrides=("train.epochs=1",)).load("grsgd/grsgd").train.epochs == 1


def test_slow_links_and_slow_hosts():
    slow = CONDITIONS.spec(GRSGD.but(source=MEASURED, scenario=SLOW_HOST), 0, 0.1)
    assert slow.slow_hosts == ((1, 4.0),) and not any("stragglers" in value for value in slow.overrides)
    simulated = CONDITIONS.spec(GRSGD.but(scenario=SLOW_HOST), 0, 0.1)
    assert not simulated.slow_hosts and "stragglers.slowdown.1=4.0" in simulated.overrides
    assert CONDITIONS.spec(GRSGD.but(scenario=SLOW_LINKS), 0, 0.1).link == Link(SMOKE.slow_rate)
    store = FakeStore()
    assert "host 1 4 times slower" in store.hosts.describe(slow) and "--slow 1:4" in store.hosts.command(slow)


def test_with_batch_normalisation_as_many_ranks_train():
    shared = CONDITIONS.trajectory(RING)
    assert shared.ranks == 1 and shared.source == UNIT_STEPS
    normalised = CONDITIONS.trajectory(RING.but(overrides=('model.name="resnet20"',)))
    assert normalised.ranks == 4 and not any("batch_size" in override for override in normalised.overrides)


def test_algorithms_with_the_same_gradient_share_a_training():
    coded = Setting("cssgd/dnn/coded", 4, overrides=("algorithm.r=2", "data.only_classes=4"))
    assert CONDITIONS.trajectory(coded) == CONDITIONS.trajectory(
        Setting("cssgd/dnn/ring_allreduce", 4, overrides=("data.only_classes=4",))
    )
    assert CONDITIONS.trajectory(GRSGD.but(source=MEASURED)) == GRSGD


# ---- learning rates


def test_the_learning_rate_that_takes_fewest_samples():
    """One gets there first, another is more accurate in the end."""
    _, first, accurate, *_ = SMOKE.learning_rates

    def run(spec):
        found = fake_run(snapshots=6)
        if rate_of(spec) == first:
            found.curve["test_accuracy"][2:] = 0.7
        if rate_of(spec) == accurate:
            found.curve["test_accuracy"][5] = 1.0
        return found

    rates = plan({}, run).rates
    assert rates.rate(DPSGD) == first
    tried = rates.results(rates.tuned(DPSGD))
    lowest, *_, highest = SMOKE.learning_rates
    assert lowest in tried and highest not in tried, "tried beside the best alone"
    assert tried[first][0] < tried[accurate][0] == pytest.approx(3000)


def test_the_most_accurate_learning_rate_where_none_reaches_the_target():
    def run(spec):
        found = fake_run(target_accuracy=0.99)
        found.curve["test_accuracy"][-1] = 0.8 + rate_of(spec) / 10
        return found

    beyond = max(SMOKE.learning_rates) * BEYOND**MAX_BEYOND
    assert plan({}, run).rates.rate(DPSGD) == beyond, "for as long as the last rate is the best one"


def test_trials_are_named_in_two_rounds():
    there = {}
    found = plan({"it": Trainings(DPSGD)}, there.get)
    first = found.trials()
    assert len(first) == len(SMOKE.learning_rates) - 2 and not found.specs(), "no rate is known yet"
    for spec in first:
        there[spec] = fake_run(snapshots=4 if rate_of(spec) == min(map(rate_of, first)) else 2)
    (beside,) = found.trials()
    assert rate_of(beside) == min(SMOKE.learning_rates)
    there[beside] = fake_run(snapshots=2)
    assert not found.trials() and found.specs()


def test_three_seeds_decide_between_the_rates_about_the_best():
    """The best of one seed misses the target with another: a rate that does not is used."""

    def run(spec):
        rate = rate_of(spec)
        found = fake_run(snapshots=6 if rate == 0.15 else 4)
        if rate == 0.15 and seed_of(spec) != TUNING_SEED:
            found.curve["test_accuracy"][:] = 0.1
        return found

    rates = plan({}, run, DESK).rates
    assert rates.coarse(rates.tuned(DPSGD)).keys() >= {0.15}
    tried = rates.trials(rates.tuned(DPSGD))
    assert [len(tried[rate]) for rate in (0.15 / FINER, 0.15, 0.15 * FINER)] == [3, 3, 3]
    assert rates.rate(DPSGD) == 0.15 / FINER and rates.results(rates.tuned(DPSGD))[0.15][0] == math.inf
    assert "†" not in "".join(rates.table([DPSGD])[2][0])


@pytest.mark.parametrize(("scale", "occasions"), [(SMOKE, {0}), (TINY, {0}), (DESK, {0, 1, 2})])
def test_calibrations_that_trainings_and_trials_rest_on(scale, occasions):
    found = plan({"it": Trainings(GRSGD), "clock": Trainings(GRSGD.but(source=MEASURED))}, scale=scale)
    specs = [*found.rates.list_trials([GRSGD]), *found.needed("it", found.rates.guess_rate)]
    assert {occasion(seed_of(spec)) for spec in specs} == occasions
    both = found.needed("it"), found.rates.list_trials([GRSGD])
    trained, trials = ({seed_of(spec) for spec in some} for some in both)
    assert len(trained) == scale.seeds and not trained & trials


def test_fewer_images_test_trials_than_reported_trainings():
    found = plan({"it": Trainings(DPSGD)}, lambda spec: fake_run(), DESK)
    trials = found.rates.list_trials([DPSGD])
    assert {spec.load().data.only_test for spec in trials} == {2000}
    assert {spec.load().data.only_test for spec in found.specs()} == {4000}


def test_the_dnn_has_no_rate_that_diverges():
    def run(spec):
        found = fake_run()
        found.curve["samples"] = found.curve["samples"] / rate_of(spec)
        return found

    assert plan({}, run, DESK).rates.rate(Setting("cssgd/dnn/ring_allreduce", 8)) == 0.15


# ---- needs


def test_a_synchronous_algorithms_time_is_steps_times_seconds_per_step():
    """The target after 3000 samples; a step of 4 ranks has 4 batches and takes as long as the straggler makes it."""

    def run(spec):
        if spec.source != TIMING_ONLY:
            assert spec.source == UNIT_STEPS and spec.ranks == 1, "a single rank with a batch four times as large"
            return fake_run(seed=seed_of(spec))
        slow = "stragglers.slowdown.1=4.0" in spec.overrides
        found = fake_run(ranks=4, seed=seed_of(spec))
        found.ranks["compute_seconds"] = found.ranks["steps"] * (2.0 if slow else 0.5)
        found.ranks["communicate_seconds"] = found.ranks["wait_seconds"] = found.ranks["steps"] * 0.0
        return found

    batch = CONDITIONS.load("grsgd/ring_allreduce").data.batch_size
    for scenario, step in ((EQUAL, 0.5), (STRAGGLER, 2.0)):
        times = result(TimeToTarget(RING.but(scenario=scenario)), run)
        assert times.known == pytest.approx([3000 / (4 * batch) * step] * SMOKE.seeds)


def test_an_asynchronous_algorithms_time_is_where_its_curve_crosses_the_target():
    assert result(TimeToTarget(GRSGD.but(source=MEASURED))).known == pytest.approx([30.0] * SMOKE.clock_seeds)
    never = result(TimeToTarget(GRSGD), lambda spec: fake_run(seed=seed_of(spec), target_accuracy=0.99))
    assert not never.known and never.median() is None and set(never.values.values()) == {40.0}, "bounds"


def test_a_training_that_may_stop_is_not_made_beside_the_whole_one():
    both = plan({"time": TimeToTarget(GRSGD), "whole": Trainings(GRSGD)}, lambda spec: None)
    both.rates.rate = lambda setting: 0.1
    assert len(both.specs()) == SMOKE.seeds and not any(set(STOPS_AT_TARGET) & set(s.overrides) for s in both.specs())
    alone = plan({"time": TimeToTarget(GRSGD)}, lambda spec: None)
    alone.rates.rate = lambda setting: 0.1
    assert all(without_stop(spec) != spec for spec in alone.specs())


def test_a_missing_run_is_named():
    found = plan({"it": Trainings(GRSGD)}, lambda spec: None)
    found.rates.rate = lambda setting: 0.1
    with pytest.raises(MissingRun, match="^grsgd-n4-simulated"):
        found.results("it")


def test_simulated_times_are_held_against_measured_ones_of_the_same_training():
    def run(spec):
        found = fake_run(seed=seed_of(spec))
        found.ranks["compute_seconds"] *= 2.0 if spec.source == MEASURED else 1.0
        found.ranks["communicate_seconds"] *= 0.0
        found.ranks["wait_seconds"] *= 0.0
        return found

    needs = {source: Steps(GRSGD.but(source=source), seeds=2) for source in (MEASURED, SIMULATED)}
    where = "equal ranks, fast links, n = 4"
    assert simulator_errors(plan(needs, run), "it") == [("grsgd", -0.5, "grsgd", where, "mlp")]
    assert simulator_errors(plan({"it": Steps(GRSGD)}, run), "it") == [], "not measured"
    fewer = needs | {SIMULATED: Steps(GRSGD, seeds=2, steps=3)}
    assert len(simulator_errors(plan(fewer, run), "it")) == 1, "simulated steps may be fewer"


def test_the_simulators_error_is_of_one_redundancy_on_one_number_of_ranks():
    def run(spec):
        config = f'[algorithm]\nname = "cssgd"\nr = {spec.load().algorithm_options.r}'
        found = fake_run(seed=seed_of(spec), label="cssgd coded", ranks=spec.ranks, config=config)
        found.ranks["compute_seconds"] *= 2.0 if spec.source == MEASURED else 1.0
        return found

    settings = [Setting("cssgd/dnn/coded", 4, overrides=(f"algorithm.r={r}",)) for r in (1, 3)]
    needs = {(one, source): Steps(one.but(source=source), 1) for one in settings for source in (MEASURED, SIMULATED)}
    found = plan(needs, run)
    errors = simulator_errors(found, "it")
    assert [(one.name, one.algorithm, one.model) for one in errors] == [
        (f"coded r={r}", f"cssgd coded r={r} n=4", "dnn") for r in (1, 3)
    ]
    assert sample.of(found.results("it")[settings[1], SIMULATED], seconds_per_step).algorithms == {errors[1].algorithm}


def test_simulated_waiting_is_held_against_measured_waiting():
    """And not against the time of the steps, which is right here; where nobody has waited there is no share."""

    def run(spec):
        found, waits = fake_run(seed=seed_of(spec)), 20.0 if spec.source == MEASURED else 5.0
        waits *= GRSGD.config not in spec.config
        found.ranks["wait_seconds"][:] = waits
        found.ranks["compute_seconds"][:] = 40.0 - waits
        return found

    needs = {
        (setting.config, source): Steps(setting.but(source=source), seeds=2)
        for setting in (GRSGD, RING)
        for source in (MEASURED, SIMULATED)
    }
    assert [error[:2] for error in simulator_errors(plan(needs, run), "it", "waiting")] == [("ring allreduce", -0.75)]
    assert ("ring allreduce", 0.0) in [error[:2] for error in simulator_errors(plan(needs, run), "it")]
    note = error_note([("ring allreduce", -0.75)], "the same", "waiting")
    figure = with_error(Figure("Milliseconds.", "x.svg", shows="waiting"), note, [{"source": SIMULATED}])
    said = "Simulated waiting, against measured waiting of the same trainings: ring allreduce -75 %."
    assert figure.caption == f"Milliseconds. {said}"


def test_times_of_synchronous_algorithms_are_held_against_those_of_the_same_scenario():
    """Their trainings are the same in all scenarios; their steps are not."""

    def run(spec):
        seconds = 4.0 if spec.source == MEASURED or set(STRAGGLER.overrides) & set(spec.overrides) else 1.0
        found = fake_run(seed=seed_of(spec), target_accuracy=0.8)
        for part in ("compute", "communicate", "wait"):
            found.ranks[f"{part}_seconds"] *= seconds
        return found

    places = [(SIMULATED, STRAGGLER), (MEASURED, STRAGGLER), (SIMULATED, EQUAL), (SIMULATED, SLOW_LINKS)]
    needs = {place: TimeToTarget(RING.but(source=place[0], scenario=place[1]), seeds=2) for place in places}
    assert [error[:2] for error in simulator_errors(plan(needs, run), "it")] == [("ring allreduce", 0.0)]


def test_what_is_said_of_the_simulators_error():
    note, simulated = error_note([("sgp", 0.1), ("lasgd", -0.1)], "the same"), [{"source": SIMULATED}]
    assert note == "against measured times of the same trainings: lasgd -10 %, sgp +10 %"
    many = error_note([(f"coded {number}", number / 100) for number in range(9)], "other")
    assert many == "against measured times of other trainings: median +4 %, from coded 0 +0 % to coded 8 +8 %, of 9"
    several = error_note([("sgp", 0.05), ("sgp", -0.451), ("lasgd", 0.02)], "other", unmeasured=["gosgd"])
    assert several == "against measured times of other trainings: sgp -45 to +5 %, lasgd +2 %, gosgd not measured"
    assert error_note([], "other") == "not compared with measured times here"
    figure = Figure("Seconds.", "x.svg")
    assert with_error(figure, note, simulated).caption == f"Seconds. Simulated times, {note}."
    assert with_error(figure, note, [{"source": MEASURED}]) == figure, "nothing is simulated"
    assert with_error(Figure("Bytes.", "x.svg", times=False), note, simulated).caption == "Bytes."


# ---- where runs are made


def test_tables_are_made_one_after_the_other(tmp_path):
    with only_one(tmp_path / "smoke"), pytest.raises(Unfinished, match="another process"), only_one(tmp_path / "smoke"):
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


def test_without_root_it_says_so(monkeypatch):
    def refuse(*arguments):
        raise hosts.TestbedError("needs root")

    monkeypatch.delenv("SLURM_JOB_NUM_NODES", raising=False)
    monkeypatch.setattr(hosts, "Testbed", refuse)
    found = plan({})
    found.store.hosts = hosts.find_hosts(9, 0.2)
    measured = RunSpec("grsgd/dpsgd", (), 4, MEASURED, LINK)
    assert not found.store.hosts.emulated and "as it is" in found.store.hosts.describe(measured)
    assert caveats(found, {}) == [], "nothing was measured"
    (note,) = caveats(found, {measured: fake_run()})
    assert "(needs root)" in note and "Slow links and slow hosts are only simulated" in note
    here = Conditions(SMOKE, emulated=False)
    assert here.ranks(MEASURED) and here.ranks(SIMULATED, SLOW_HOST)
    assert not here.ranks(MEASURED, SLOW_LINKS) and not here.ranks(MEASURED, SLOW_HOST)
    monkeypatch.setenv("SLURM_JOB_NUM_NODES", "4")
    assert hosts.find_hosts(9, 0.2).place.startswith("4 nodes")
