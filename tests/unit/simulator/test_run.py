"""Whole runs in simulated time."""

import ast
import gc
import weakref
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch

import grsgd
from grsgd.algorithms import ALGORITHMS
from grsgd.algorithms.central import workers_of
from grsgd.errors import ConfigError, DataError
from grsgd.runs.run_file import load_run
from grsgd.simulator.run import simulate
from grsgd.simulator.simulation import Simulation
from grsgd.testing.simulated import network_of
from grsgd.training import evaluation as evaluate
from grsgd.training.evaluation import score
from tests.support.exhaustive import exhaustive_unless
from tests.support.training import CONSTANT, SLOW, STEP, config, simulation

SOME = ("ring_allreduce", "grsgd", "lasgd", "easgd", "parameter_server", "cssgd")
"""Algorithms of each kind."""
TESTED = ("train_loss", "test_accuracy", "test_accuracy_min", "test_accuracy_max", "consensus_distance")
"""Columns of the curve that need gradients."""
WALL = {"started", "wall_seconds", "processor_seconds"}
"""Attributes of a run file that say when it was made and how long that took."""


def content(path) -> dict:
    """All of a run file: attributes and datasets, bytes and all, but for what depends on the wall clock."""
    found = {}

    def visit(name, item):
        found.update({(name, key): str(value) for key, value in item.attrs.items() if key not in WALL})
        if isinstance(item, h5py.Dataset):
            found[name] = (item.dtype.str, item.shape, item[()].tobytes())

    with h5py.File(path) as file:
        visit("", file)
        file.visititems(visit)
    return found


# ---- every algorithm


@pytest.mark.parametrize("n", exhaustive_unless(lambda n: n in (1, 3), [1, 2, 3, 5]))
@pytest.mark.parametrize("name", sorted(ALGORITHMS))
def test_every_algorithm_runs(name, n, tmp_path):
    chosen = config(name, steps=30)
    try:
        chosen.check_ranks(n)
    except ConfigError:
        pytest.skip(f"{name} refuses {n} ranks")
    assert simulate(chosen, n, network_of(**SLOW), tmp_path / "run.h5", CONSTANT) == "steps"
    run = load_run(tmp_path / "run.h5")
    assert [run.attributes[key] for key in ("clock", "algorithm", "reason")] == ["virtual", name, "steps"]
    workers = workers_of(ALGORITHMS[name], chosen.algorithm_options, n)
    assert 30 * workers <= run.ranks["steps"].sum() <= 32 * workers
    assert len(run.curve["time"]) == 4
    assert np.isfinite(run.curve["train_loss"]).all() and np.isfinite(run.curve["test_accuracy"]).all()
    assert run.curve["time"][-1] >= 30 * STEP * (1 - 1e-9)
    assert run.attributes["virtual_seconds"] >= run.curve["time"][-1]
    everybody_computes_everything = name == "cssgd" and n == 2
    assert (run.traffic["sent"].sum() > 0) == (n > 1 and not everybody_computes_everything)


@pytest.mark.parametrize("n", exhaustive_unless(lambda n: n < 5, [2, 3, 5]))
@pytest.mark.parametrize("name", sorted(ALGORITHMS))
def test_all_replicas_are_equal_in_the_end(name, n):
    job = simulation(name, n)
    assert job.train() == "steps"
    models = [trainer.replica.params.array for trainer in job.trainers]
    assert all((model == models[0]).all() for model in models)
    assert np.isfinite(models[0]).all()


@pytest.mark.parametrize("name", sorted(ALGORITHMS))
def test_every_algorithm_ends_by_the_clock(name):
    job = simulation(name, 3, train={"seconds": 0.2, "snapshots": 4})
    assert job.train() == "seconds"
    for trainer in job.trainers:
        assert 0.2 <= trainer.snapshots.moments[-1].time < 0.4


def test_one_rank_is_a_plain_loop():
    """The simulated training is the training: the same batches, the same model."""
    job = simulation("grsgd", 1)
    (trainer,) = job.trainers
    other = simulation("ring_allreduce", 1).trainers[0]
    job.train()
    for _ in range(8):
        other.gradients.next_gradient()
        other.algorithm.optimizer.step()
    assert torch.equal(trainer.replica.params.tensor, other.replica.params.tensor)
    assert trainer.totals.compute_seconds == pytest.approx(8 * STEP)


def test_what_a_step_does_beside_its_gradient_is_a_part_of_its_time(monkeypatch):
    job = simulation("grsgd", 1)
    (trainer,) = job.trainers
    now, clock = [0.0], trainer.driver.clock
    monkeypatch.setattr(trainer.driver, "clock", lambda: clock() + now[0])
    trainer.on_step = lambda *_: now.__setitem__(0, now[0] + 3.0)
    job.train()
    assert trainer.totals.compute_seconds == pytest.approx(8 * (STEP + 3.0))
    assert trainer.totals.seconds == trainer.totals.compute_seconds


def test_algorithms_know_nothing_of_the_simulator():
    """No import, and not a word in the code; docstrings and comments may speak of it."""
    root = Path(grsgd.__file__).parent
    files = sorted([*(root / "algorithms").glob("*.py"), *(root / "comm").glob("*.py")])
    assert len(files) > 10
    for file in files:
        tree = ast.parse(file.read_text())
        for node in ast.walk(tree):
            body = getattr(node, "body", None)
            if isinstance(body, list):
                strings = [part for part in body if isinstance(part, ast.Expr) and isinstance(part.value, ast.Constant)]
                node.body = [part for part in body if part not in strings] or [ast.Pass()]
        assert "simulat" not in ast.unparse(tree).lower(), file


def test_a_part_of_the_data(tmp_path):
    """Sharded by label, too. The model has an output a class that is left."""
    chosen = {"name": "synthetic", "samples": 100, "shape": [1, 4, 4], "classes": 4, "batch_size": 4, "alpha": 5.0}
    limits = {"only_classes": 3, "only_train": 40, "only_test": 5}
    simulate(config("dpsgd", data=chosen | limits), 2, network_of(**SLOW), tmp_path / "run.h5", CONSTANT)
    run = load_run(tmp_path / "run.h5")
    assert (run.attributes["train_samples"], run.attributes["parameters"]) == (40, 3 * 16 + 3)
    assert set(run.curve["test_accuracy"]) <= {k / 5 for k in range(6)}
    assert "only_train = 40" in run.attributes["config"]
    with pytest.raises(DataError, match="^data.only_test = 50: there are 20 test samples"):
        simulation("dpsgd", 2, data=chosen | {"only_test": 50})


@pytest.mark.parametrize("name", exhaustive_unless(lambda name: name in SOME, sorted(ALGORITHMS)))
def test_single_replicas_need_not_be_evaluated(name, tmp_path, monkeypatch):
    """Nothing else of the run file changes."""
    evaluated = []

    def counting(model, split, task, indices, device):
        evaluated.append(len(indices))
        return score(model, split, task, indices, device)

    monkeypatch.setattr(evaluate, "score", counting)
    for replicas in (True, False):
        evaluated.clear()
        chosen = config(name, train={"steps": 8, "snapshots": 4, "evaluate_replicas": replicas})
        simulate(chosen, 3, network_of(**SLOW), tmp_path / f"{replicas}.h5", CONSTANT)
        assert sum(evaluated) == (4 + 1) * (4 if replicas else 1) * 12  # 12 test samples, 4 snapshots and the end
    all_evaluated, run = load_run(tmp_path / "True.h5"), load_run(tmp_path / "False.h5")
    for column in ("test_accuracy_min", "test_accuracy_max"):
        assert np.isnan(run.curve.pop(column)).all() and np.isfinite(all_evaluated.curve.pop(column)).all()
    for column, values in run.curve.items():
        np.testing.assert_array_equal(values, all_evaluated.curve[column], column)
    assert run.attributes["final_test_accuracy"] == all_evaluated.attributes["final_test_accuracy"]


# ---- repeatable

STRAGGLERS = {
    "slowdown": {0: 1.5},
    "tail": {1: {"probability": 0.3, "seconds": 0.02}},
    "pause": {2: {"every": 3, "seconds": 0.03}},
}


@pytest.mark.parametrize("name", exhaustive_unless(lambda name: name in SOME, sorted(ALGORITHMS)))
def test_equal_seeds_make_equal_run_files(name, tmp_path):
    """With random computing times and all kinds of stragglers, and whatever state torch's generator is in."""
    for number in range(2):
        torch.manual_seed(number)
        chosen = config(name, stragglers=STRAGGLERS)
        simulate(chosen, 3, network_of(**SLOW), tmp_path / f"{number}.h5", "lognormal:0.01,0.5")
    first, second = (content(tmp_path / f"{number}.h5") for number in range(2))
    assert {key for key in first if first[key] != second.get(key)} == set()
    assert first.keys() == second.keys()
    simulate(config(name, stragglers=STRAGGLERS, seed=2), 3, network_of(**SLOW), tmp_path / "other.h5", "constant:0.01")
    assert content(tmp_path / "other.h5")["curve/train_loss"] != first["curve/train_loss"]


def test_dropout_differs_between_ranks_and_not_between_runs():
    class Dropout(torch.nn.Module):
        def __init__(self, model):
            super().__init__()
            self.model, self.seen = model, []

        def forward(self, x):
            mask = torch.nn.functional.dropout(torch.ones(20), 0.5)
            self.seen.append(tuple(mask.tolist()))
            return self.model(x)

    masks = []
    for _ in range(2):
        job = simulation("grsgd", 3, compute="lognormal:0.01,0.5")
        for trainer in job.trainers:
            trainer.replica.model = Dropout(trainer.replica.model)
        job.train()
        masks.append([trainer.replica.model.seen for trainer in job.trainers])
    assert masks[0] == masks[1]
    assert len({own[0] for own in masks[0]}) == 3


# ---- time alone


@pytest.mark.parametrize("n", exhaustive_unless([3], [1, 3]))
@pytest.mark.parametrize("name", sorted(ALGORITHMS))
def test_timing_only_has_the_same_times_and_traffic(name, n, tmp_path):
    real, timing = tmp_path / "real.h5", tmp_path / "timing.h5"
    section = {"name": name, "r": 1} if name == "cssgd" and n == 1 else name
    chosen = config(section, stragglers=STRAGGLERS if n == 3 else {})
    if workers_of(ALGORITHMS[name], chosen.algorithm_options, n) < 1:
        pytest.skip(f"{name} needs more than {n} ranks")
    for path in (real, timing):
        simulate(chosen, n, network_of(**SLOW), path, "lognormal:0.01,0.5", timing_only=path == timing)
    with_content, without = content(real), content(timing)
    missing = {f"curve/{column}" for column in TESTED}
    assert missing <= with_content.keys()
    assert {name for name in with_content if isinstance(name, str)} - without.keys() == missing
    for name in without:
        if isinstance(name, str):
            assert without[name] == with_content[name], name
    attributes = [key for _, key in (key for key in without if isinstance(key, tuple) and key[0] == "")]
    differing = {key for key in attributes if without["", key] != with_content["", key]}
    assert differing == {"timing_only", "device", "final_test_accuracy"}


def test_timing_only_takes_no_memory_for_models():
    """A model of 4 GB on 50 ranks."""
    job = simulation(
        "ring_allreduce",
        50,
        network_of(bandwidth="1 gbit", latency="50 us"),
        timing_only=True,
        model={"name": "mlp", "hidden": [30_000, 30_000]},
        steps=1,
    )
    M = job.trainers[0].replica.nbytes
    assert M > 3.6e9
    for trainer in job.trainers:  # pieces of a megabyte would be many messages
        trainer.algorithm.step = trainer.algorithm.update
    job.train()
    assert job.trainers[0].totals.compute_seconds == pytest.approx(STEP)


# ---- the end


@pytest.mark.parametrize("name", sorted(ALGORITHMS))
def test_a_loss_that_is_no_number_stops_all_ranks(name, tmp_path):
    job = simulation(name, 4, steps=50)
    trainer = job.trainers[2]
    gradient, calls = trainer.gradients.next_gradient, []

    def poisoned():
        calls.append(gradient())
        return dict.fromkeys(calls[-1], float("nan")) if len(calls) == 4 else calls[-1]

    trainer.gradients.next_gradient = poisoned
    reason = "non-finite loss (nan) on rank 2 at step 3"
    assert job.train() == reason
    assert [trainer.stop_signal.reason for trainer in job.trainers] == [reason] * 4
    assert job.env.now < 10 * STEP * trainer.gradients.samples / 4  # which takes longer with redundancy
    assert max(trainer.totals.steps for trainer in job.trainers) < 10
    qualities, final = job.evaluate()
    assert 0 <= final.mean <= 1


@pytest.mark.parametrize("name", ["lasgd", "adpsgd", "gossip", "easgd", "gosgd"])
@pytest.mark.parametrize("stop", exhaustive_unless(lambda stop: stop in (0.031, 0.037), [0.031, 0.034, 0.037, 0.04]))
def test_nothing_is_merged_after_an_early_stop(name, stop):
    """What is under way in the background then must not change the models that are evaluated."""
    job = simulation(name, 4, steps=50)
    trainer = job.trainers[1]

    def on_step(progress, loss):
        trainer.stop_signal.request = "enough" if job.env.now > stop else None

    trainer.on_step = on_step
    assert job.train() == "enough"
    models = [trainer.algorithm.snapshot()[0].numpy().copy() for trainer in job.trainers]  # EASGD's rank 0: the centre
    job.evaluate()
    seen = job.trainers[1].snapshots
    seen.restore(len(seen) - 1)
    assert (job.trainers[1].replica.params.array == models[1]).all()
    for trainer, model in zip(job.trainers, models, strict=True):
        trainer.snapshots.restore(len(trainer.snapshots) - 1)
        assert (trainer.replica.params.array == model).all()


@pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning")
@pytest.mark.parametrize("name", sorted(ALGORITHMS))
def test_divergence_ends_a_run(name, tmp_path):
    chosen = config(name, optimizer={"lr": 1e38, "momentum": 0.9})
    stopped = simulate(chosen, 3, network_of(**SLOW), tmp_path / "run.h5", CONSTANT)
    assert stopped.startswith("non-finite loss (")
    assert load_run(tmp_path / "run.h5").attributes["reason"] == stopped


def test_an_error_on_a_rank_says_which():
    job = simulation("grsgd", 3)

    def broken():
        raise OSError("no such image")

    job.trainers[1].gradients.next_gradient = broken
    with pytest.raises(OSError, match="no such image") as caught:
        job.train()
    assert any("on simulated rank 1 at " in note for note in caught.value.__notes__)


@pytest.mark.parametrize(
    "ranks, options, reason",
    [
        (2, {"stragglers": {"slowdown": {2: 2.0}}}, "rank 2 in a job of 2"),
        (2, {"data": {"replication": 3}}, "data.replication = 3 with 2 ranks"),
        (10**6, {"model": {"name": "mlp"}}, "of memory are needed, and .* are free: fewer ranks"),
    ],
)
def test_refusals(ranks, options, reason):
    with pytest.raises(ConfigError, match=reason):
        Simulation(config(**{"algorithm": "grsgd"} | options), ranks, network_of(**SLOW), CONSTANT)


def test_links_of_ranks_that_are_not_there():
    spec = network_of(link=[{"from": 0, "to": 7}], name="net.toml")
    with pytest.raises(ConfigError, match="net.toml: link from 0 to 7: the run has 3 ranks; allowed numbers: 0 to 2"):
        Simulation(config("grsgd"), 3, spec, CONSTANT)


@pytest.mark.parametrize("name", sorted(ALGORITHMS))
def test_time_alone_makes_no_circles_of_objects(name):
    """For which Python seldom looks then: it finds as few of them after 20 steps as after 5. Looks only among what the
    run has made: all that was there before is set aside, and looked at no more."""
    found = []
    for steps in (20, 5, 20):  # the first compiles
        job = simulation(name, 5, timing_only=True, steps=steps)
        gc.disable()
        try:
            job.train()
            found.append(gc.collect(0))
        finally:
            gc.enable()
    assert found[2] <= found[1]


def test_a_simulation_leaves_no_memory_behind():
    """Many may follow one another in one process."""
    job = simulation("grsgd", 3)
    job.train()
    gone = weakref.ref(job.trainers[0].replica)
    del job
    gc.collect()
    assert gone() is None


# ---- what would never end


@pytest.mark.parametrize(
    "compute, latency",
    [("constant:0", "0.5 s"), ("constant:0", "0 s"), ("lognormal:0,1", "0.5 s"), ("constant:1e-30", "0.5 s")],
)
@pytest.mark.parametrize("algorithm", ["grsgd", "gosgd", "lasgd", "adpsgd", "gossip", "easgd"])
def test_free_running_ranks_need_steps_that_take_time(algorithm, compute, latency):
    with pytest.raises(ConfigError, match=f"^--compute .*: a step takes no time, so {algorithm} would never end: "):
        simulation(algorithm, 3, network_of(**SLOW | {"latency": latency}), compute=compute)


@pytest.mark.parametrize(
    "algorithm, n, network",
    [
        ("ring_allreduce", 3, SLOW),
        ("sgp", 3, SLOW),
        ({"name": "easgd", "centre": "allreduce"}, 3, SLOW),
        ("asgd", 3, SLOW),
        ("grsgd", 1, SLOW),
    ],
)
def test_others_do_not(algorithm, n, network):
    assert simulation(algorithm, n, network_of(**network), compute="constant:0").train() == "steps"


@pytest.mark.parametrize("algorithm", [{"name": "cssgd", "r": "auto"}, "dpsgd"])
def test_the_time_of_a_run_begins_with_its_training(algorithm):
    """And not with the first broadcast, or what is measured before."""
    job = simulation(algorithm, 3)
    job.train()
    ends = [trainer.snapshots.moments[-1].time for trainer in job.trainers]
    assert max(ends) <= job.seconds() == pytest.approx(job.env.now - job.began)
    assert job.began > 0


def test_two_ranks_whose_steps_take_no_time_would_never_end():
    """A rank alone knows when it has ended."""
    assert simulation("gosgd", 1, network_of(), compute="constant:0").train() == "steps"
    with pytest.raises(ConfigError, match="gosgd would never end"):
        simulation("gosgd", 2, network_of(), compute="constant:0")
