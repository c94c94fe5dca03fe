"""Tables made in pieces: estimates, time limits, and records that are joined."""

import math
import time
from contextlib import contextmanager
from pathlib import Path

import pytest

from experiments.runner import batch, forecast, records
from experiments.runner.costs import Costs, expected, samples_of
from experiments.runner.hosts import EmulatedHosts, Hosts
from experiments.runner.maker import Maker
from experiments.runner.maker import calibrate as calibrations_of
from experiments.runner.needs import Steps, Trainings
from experiments.runner.on_nodes import take_share
from experiments.runner.parallel import Unfinished
from experiments.runner.plan import with_place
from experiments.runner.progress import duration
from experiments.runner.run_spec import MEASURED, SIMULATED, TIMING_ONLY, UNIT_STEPS, Link, RunSpec
from experiments.runner.setting import Setting
from experiments.runner.store import Store
from experiments.tables import __main__ as tables
from grsgd.runs.run_file import load_run, save_run
from tests.support.failing_jobs import FakeJobs
from tests.support.runs import fake_run
from tests.support.store import plan

DIGITS = ('data.name="digits"', 'model.name="mlp"', "data.augment=false", "data.batch_size=32")
RUN = RunSpec("grsgd/dpsgd", (*DIGITS, "train.epochs=4", "seed=1", "optimizer.lr=0.1"), 4, UNIT_STEPS, Link("1gbit"))


def but(*overrides: str, **changes) -> RunSpec:
    return RUN._replace(overrides=(*RUN.overrides, *overrides), **changes)


# ---- data


def test_public_sets_that_are_missing_are_fetched_once(monkeypatch, tmp_path):
    fetched = []
    monkeypatch.setattr(tables, "fetch", lambda name, folder, say: fetched.append((name, folder)))
    folder = f'data.dir="{tmp_path}"'
    runs = [but(f'data.name="{name}"', folder) for name in ("mnist", "mnist", "cifar-10", "mnist-5k", "digits")]
    tables.fetch_data(runs)
    assert fetched == [("cifar-10", str(tmp_path)), ("mnist", str(tmp_path))]


def test_a_forecast_says_what_will_be_fetched(tmp_path):
    """Twice the same set is fetched once; what is there, or is not public, is not."""
    folder = f'data.dir="{tmp_path}"'
    digits, cifar = forecast.Forecast(), forecast.Forecast()
    digits.missing[RUN] += 3
    cifar.missing.update([but(f'data.name="{name}"', folder, "seed=2") for name in ("cifar-10", "mnist")])
    assert "fetched" not in forecast.sum_up([digits], Costs(1.0), 1)
    said = forecast.sum_up([digits, cifar, cifar], Costs(1.0), 1)
    there = f"into {tmp_path}"
    assert said.endswith(f"; before them, cifar-10 (139 MB, {there}) and mnist (11.5 MB, {there}) will be fetched")


# ---- calibrations that fail


MEASURED_NETWORK = 'bandwidth = "1gbit"\nlatency = "50us"\n\n[compute]\nmedian = 1e-2\nsigma = 0.1\nwhat = "it"\n'


@pytest.mark.parametrize("failures", [0, 1, 2])
def test_a_calibration_that_fails_is_made_once_more(failures, store, monkeypatch):
    """What is said of it names no temporary file."""
    jobs = FakeJobs({"": failures}, lambda run: Path(run.out).write_text(MEASURED_NETWORK))
    store.networks.keep_work(but(source=SIMULATED), 1e-3)
    said = []
    monkeypatch.setattr(batch, "make_runs", jobs.make_runs)
    monkeypatch.setattr(batch.tqdm, "write", lambda line, file: said.append(line))
    spec = but(source=SIMULATED)
    if failures == 2:
        with pytest.raises(Unfinished, match="^calibration with links of 1gbit: it ended$"):
            store.networks.calibrate([spec], None)
        assert store.networks.missing(spec)
    else:
        store.networks.calibrate([spec], None)
        assert not store.networks.missing(spec)
    assert len(jobs.begun) == 1 + min(failures, 1) and said == ["it ended; once more"] * min(failures, 1)


def test_models_are_calibrated_in_one_job(store, monkeypatch):
    """Those that are there when it fails are kept."""
    specs = [but(f"data.batch_size={size}", source=SIMULATED) for size in (8, 16, 32, 32)]
    last = store.networks.calibration(specs[-1]).name
    jobs = FakeJobs({last: 2}, lambda run: Path(run.out).write_text(MEASURED_NETWORK))
    monkeypatch.setattr(batch, "make_runs", jobs.make_runs)
    with pytest.raises(Unfinished, match="calibration"):
        store.networks.calibrate(specs, None)
    assert jobs.begun[0] == 3
    assert [store.networks.calibration(spec).exists() for spec in specs[:3]] == [True, True, False]


def test_messages_name_measurements_by_what_they_are():
    words = batch.in_words(batch.Calibration("a/cnn.toml", [], "/results/.grsgd-17553-e49c41cc.tmp"))
    assert words == "calibration of cnn"
    assert batch.in_words(batch.Training("a/cnn.toml", [], "/results/cnn-1.h5")) == "cnn-1.h5"


# ---- estimates


def test_the_work_of_a_run():
    assert samples_of(RUN.load(), 4) == 4 * 1437
    shorter = but("data.only_classes=5", "train.epochs=2.0")
    assert samples_of(shorter.load(), 4) == pytest.approx(1437)
    assert samples_of(steps_of(10).load(), 4) == 10 * 4 * 32


def steps_of(steps: int) -> RunSpec:
    kept = tuple(value for value in RUN.overrides if not value.startswith("train.epochs"))
    return RUN._replace(overrides=(*kept, f"train.steps={steps}"))


def test_longer_trainings_and_larger_models_are_expected_to_take_longer():
    short = sum(expected(RUN, 0.2))
    assert sum(expected(but("train.epochs=40"), 0.2)) > 2 * short
    assert sum(expected(but('model.name="cnn"', 'data.name="cifar-10"'), 0.2)) > 10 * short
    by_the_clock = but("train.compute_seconds=0.05", source=MEASURED)
    steps = 4 * 1437 / 32
    assert expected(by_the_clock, 0.2).training == pytest.approx(steps / 4 * 0.05 / 0.2, rel=0.1)
    slow = by_the_clock._replace(slow_hosts=((1, 4.0),))
    assert expected(slow, 0.2).training > 3 * expected(by_the_clock, 0.2).training
    assert sum(expected(but(source=TIMING_ONLY), 0.2)) < short


def test_estimates_are_those_of_runs_of_the_kind_where_there_are_some():
    costs = Costs(0.2)
    before = costs.seconds(but("train.epochs=8"))
    costs.learn(RUN, fake_run(wall_seconds=100 * sum(expected(RUN, 0.2))))
    other_seed = RUN._replace(overrides=(*RUN.overrides, "seed=2", "optimizer.lr=0.5"))
    assert costs.seconds(other_seed) == pytest.approx(100 * sum(expected(RUN, 0.2)))
    assert costs.seconds(but("train.epochs=8")) == pytest.approx(100 * before), "of the same model"
    assert costs.seconds(but(source=TIMING_ONLY)) == pytest.approx(sum(expected(but(source=TIMING_ONLY), 0.2)))


def test_a_dry_run_makes_nothing_and_counts_each_run_once():
    setting = Setting("grsgd/dpsgd", 4, SIMULATED, overrides=DIGITS, tuned_with=DIGITS)
    needs = {"training": Trainings(setting), "steps": Steps(setting)}
    found = plan(needs, lambda spec: fake_run() if spec.source == TIMING_ONLY else None)
    found.needs["again"] = needs
    costs = Costs(0.2)
    forecasts = forecast.forecast_targets([found], costs)
    seeds, trials = found.conditions.scale.seeds, len(found.conditions.scale.learning_rates) - 2
    assert forecasts["it"].sources == {SIMULATED: seeds, TIMING_ONLY: seeds, UNIT_STEPS: trials}
    assert forecasts["it"].there == seeds and forecasts["it"].missing.total() == seeds + trials
    assert not forecasts["again"].sources
    printed = forecast.format_table(forecasts, costs, workers=2)
    assert f"{2 * seeds + trials} runs, {seeds} of them exist" in printed


def test_times_in_words():
    assert [duration(hours) for hours in (2.5, 0.5, 0.01)] == ["2.5 h", "30 min", "36 s"]


# ---- pieces


class Anywhere(Hosts):
    """Hosts that run nothing."""

    @contextmanager
    def connected(self, spec):
        yield None


@pytest.fixture
def store(tmp_path):
    made = Store(tmp_path / "smoke", Anywhere(9, 0.2))
    made.train = lambda specs, mpi_host, run_timeout: ((save(made, spec), None) for spec in specs)
    return made


def save(store: Store, spec: RunSpec) -> RunSpec:
    save_run(store.path(spec), fake_run(seed=spec.load().seed, wall_seconds=10.0))
    return spec


class Fixed(Costs):
    def seconds(self, spec: RunSpec) -> float:
        return 100.0


def maker(store: Store, seconds: float) -> Maker:
    return Maker(store, Fixed(0.2), 1, 600, time.monotonic() + seconds)


def test_no_run_is_begun_that_would_not_end_in_time(store):
    clock = [but(f"seed={seed}", source=MEASURED) for seed in range(4)]
    piece = maker(store, 250)
    piece.make(clock, "it")
    assert list(piece.left) == clock[2:] and not piece.failures
    assert [store.find(spec) is not None for spec in clock] == [True, True, False, False]
    piece = maker(store, 250)
    piece.make(clock, "it")
    assert not piece.left and all(store.find(spec) for spec in clock), "goes on with what is left"


def test_each_processor_and_link_is_calibrated_once(store):
    calibrated = []

    def measure(specs: list[RunSpec], mpi_host):
        for spec in {store.networks.calibration(spec): spec for spec in specs}.values():
            calibrated.append(spec.link.rate)
            calibrate(store, spec, "1.0e-2")

    store.networks.calibrate = measure
    simulated = but(source=SIMULATED)
    links = [Link("10gbit", nominal=True), Link("200mbit"), Link("1gbit"), Link("1gbit", "shared")]
    calibrations_of([simulated._replace(link=link) for link in links], store)
    assert calibrated == ["1gbit", "200mbit"], "nominal links have the processor of those of the scale"


def test_other_runs_are_made_if_a_calibration_fails_or_was_made_elsewhere(store):
    """The reasons are named, each once; a link whose calibration fails does not stop other links."""
    tried = []

    def fail(specs: list[RunSpec], mpi_host):
        tried.append(specs[0].link.rate)
        raise Unfinished(f"calibration with links of {specs[0].link.rate}: it ended")

    store.networks.calibrate = fail
    there = but(source=SIMULATED)
    calibrate(store, there, "1.0e-2")  # says that it was made "there"
    elsewhere = [there._replace(link=Link("200mbit")), but("train.epochs=1", source=SIMULATED, link=Link("100mbit"))]
    other_model = [but('model.name="linear"', source=SIMULATED, link=Link(rate)) for rate in ("1gbit", "50mbit")]
    save(store, RUN)
    piece = maker(store, math.inf)
    piece.make([*elsewhere, *other_model, RUN], "it")
    assert tried == ["1gbit", "50mbit"] and not piece.left
    refused, *failed = piece.failures
    assert "was measured on there, and the hosts here are" in refused
    assert failed == [f"calibration with links of {rate}: it ended" for rate in tried]


def test_nothing_is_calibrated_when_time_is_over(store):
    late = maker(store, -math.inf)
    late.make([but(source=SIMULATED), RUN], "it")
    assert set(late.left) == {but(source=SIMULATED), RUN}


def test_nodes_share_all_runs_and_none_twice():
    specs = [but(f"seed={seed}") for seed in range(7)]
    shares = [take_share(specs, node, 3) for node in range(3)]
    assert sorted(sum(shares, [])) == sorted(specs) and [len(own) for own in shares] == [3, 2, 2]


# ---- records


def test_records_bring_runs_and_calibrations_to_another_machine(tmp_path):
    here, there, recorded = EmulatedHosts(9, 0.2), EmulatedHosts(9, 0.1), tmp_path / "docs" / "desk"
    first = Store(tmp_path / "first", here, is_joined=True)
    simulated, clock = but(source=SIMULATED), but(source=MEASURED)
    calibrate(first, simulated, "1.0e-2")
    for spec in (RUN, simulated, clock):
        save(first, spec)
    files = {"grsgd": [first.path(spec) for spec in (RUN, simulated, clock)]}
    records.record(recorded, files, {first.code: first.networks.calibrations([simulated])}, [here.place])

    calibrate(Store(tmp_path / "second", there, is_joined=True), simulated, "5.0e-2")
    records.unpack(recorded, tmp_path / "second")
    second = Store(tmp_path / "second", there, is_joined=True)
    assert second.find(RUN) and second.find(simulated), "with the calibration that is recorded"
    assert second.find(clock) is None, "by the clock machines are kept apart"
    assert second.place([clock]) == here.place and second.find(with_place(clock, here.place))
    assert second.place([clock, but("seed=9", source=MEASURED)]) == "", "all runs of one machine, or none"
    assert Store(tmp_path / "second", there).find(simulated) is None, "where nothing is joined"


def test_what_was_measured_since_the_records_stays_when_they_are_unpacked(tmp_path):
    """Works of further algorithms are in the file of the recorded works, which replaced it with all that lay beside."""
    store, recorded = Store(tmp_path / "here", EmulatedHosts(9, 0.2), is_joined=True), tmp_path / "docs" / "desk"
    old, new = but(source=SIMULATED), but("data.batch_size=7", config="grsgd/grsgd", source=SIMULATED)
    work_alone = but(config="grsgd/grsgd", source=SIMULATED)
    calibrate(store, old, "1.0e-2")
    save(store, old)
    records.record(recorded, {"grsgd": [store.path(old)]}, {store.code: store.networks.calibrations([old])}, [])
    calibrate(store, new, "3.0e-2")
    store.networks.keep_work(work_alone, 2e-3)
    for spec in (new, work_alone):
        save(store, spec)
    names = [store.path(spec) for spec in (old, new, work_alone)]
    for _ in range(2):
        records.unpack(recorded, tmp_path / "here")
        assert [store.path(spec) for spec in (old, new, work_alone)] == names
        assert all(store.find(spec) for spec in (old, new, work_alone))
    store.networks.keep_work(old, 9e-3)
    records.unpack(recorded, tmp_path / "here")
    assert store.networks.work(old) == 1e-3 and store.find(old), "what is recorded replaces another measurement"
    assert store.find(new) and store.find(work_alone)


def calibrate(store: Store, spec: RunSpec, median: str):
    network = f'where = "there"\nmade = "then"\n{MEASURED_NETWORK}'
    store.networks.calibration(spec).write_text(network.replace("1e-2", median))
    store.networks.keep_work(spec, 1e-3)


def test_the_same_runs_give_the_same_records(tmp_path, store):
    files = [store.path(save(store, but(f"seed={seed}"))) for seed in range(3)]
    packed = records.packed(files)
    assert packed == records.packed(reversed(files)) and len(packed) < files[0].stat().st_size
    recorded = tmp_path / "docs"
    records.record(recorded, {"grsgd": files, "lasgd": files[:1]}, {}, [])
    records.record(recorded, {"grsgd": files}, {}, [])
    assert sorted(path.name for path in recorded.iterdir()) == ["grsgd.tar.xz", "networks", "places.json"]
    records.unpack(recorded, tmp_path / "again")
    again = tmp_path / "again" / "runs"
    assert {path.name for path in again.iterdir()} == {path.name for path in files}
    assert load_run(again / files[0].name).attributes == load_run(files[0]).attributes
