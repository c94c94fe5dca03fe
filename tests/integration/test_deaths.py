"""Processes that die in simulated time: the others go on, and spares take their ranks."""

from typing import NamedTuple

import numpy as np
import pytest
import torch

from grsgd import load_run
from grsgd.algorithms.push_sum import PushSum
from grsgd.algorithms.ring_allreduce import RingAllreduce
from grsgd.algorithms.sgp import SGP
from grsgd.comm.allreduce import halving_doubling_allreduce
from grsgd.comm.communicator import LostRank
from grsgd.comm.topologies import topology
from grsgd.data.shards import index_stream
from grsgd.errors import ConfigError
from grsgd.simulator.network import network
from grsgd.simulator.run import simulate
from grsgd.testing.simulated import network_of
from grsgd.training.deaths import comes_back
from grsgd.training.momenta import momenta
from grsgd.training.regroup import Regrouping
from tests.support import training
from tests.support.exhaustive import exhaustive_unless

VARIANTS = [
    {"name": "grsgd"},
    {"name": "grsgd", "topology": "directed-ring", "inbox_full": "merge"},
    {"name": "grsgd", "merge": "average", "topology": "full"},
    {"name": "gosgd", "p": 0.5},
    {"name": "adpsgd"},
    {"name": "adpsgd", "topology": "full", "merge": "delta"},
    {"name": "gossip"},
    {"name": "gossip", "topology": "ring", "mode": "push"},
    {"name": "gossip", "topology": "ring", "mode": "pull"},
    {"name": "gossip", "adaptive": True},
    {"name": "ring_allreduce"},
    {"name": "ring_allreduce", "variant": "halving-doubling"},
    {"name": "ring_allreduce", "variant": "swing"},
    {"name": "local_sgd", "H": 3},
    {"name": "local_sgd", "H": 2, "beta": 0.5, "variant": "tree"},
    {"name": "diloco", "H": 4, "outer_momentum": 0.3},
    {"name": "diloco", "H": 4, "fragments": 2, "delay": 1, "outer_momentum": 0.3},
    {"name": "noloco", "H": 3, "outer_momentum": 0.3},
    {"name": "diloco", "H": 3, "outer_momentum": 0.3, "compression": "int8"},
    {"name": "dpsgd", "period": 2, "first_exchange": 3},
    {"name": "dpsgd"},
    {"name": "dpsgd", "topology": "torus"},
    {"name": "choco_sgd"},
    {"name": "ring_allreduce", "compression": "sign"},
    {"name": "ring_allreduce", "compression": "power-sgd"},
    {"name": "grsgd", "outer_lr": 0.7, "outer_momentum": 0.3},
    {"name": "exact_diffusion"},
    {"name": "gradient_tracking"},
    {"name": "relaysgd"},
    {"name": "sgp"},
    {"name": "sgp", "tau": 1},
    {"name": "easgd", "centre": "allreduce", "period": 2},
    {"name": "easgd", "centre": "allreduce", "period": 2, "final": "average"},
    {"name": "lasgd"},
    {"name": "lasgd", "Hmin": 2, "Hmax": 4},
    {"name": "lasgd", "merge": "anchor"},
    {"name": "lasgd", "merge": "cocod", "Hmin": 3},
]
TOGETHER = """ring_allreduce local_sgd diloco noloco dpsgd choco_sgd exact_diffusion gradient_tracking relaysgd sgp
    easgd lasgd""".split()


@pytest.mark.parametrize("algorithm", [VARIANTS[0], VARIANTS[3]], ids=str)
def test_weights_come_back_from_those_that_die(algorithm, tmp_path, monkeypatch):
    """With no message of the dead under way, what the others weigh is what they have not given to it."""
    back = []
    monkeypatch.setattr(
        PushSum,
        "take_back",
        lambda self, message, was=PushSum.take_back: (
            back.append(self.a),
            was(self, message),
            back.append(self.a - message.weight),
        ),
    )
    for seed in range(8):
        run(tmp_path, algorithm, ranks=3, die={"1": 1.0 + 0.03 * seed}, seconds=2.0, seed=seed)
    assert len(back) >= 2 and np.allclose(back[::2], back[1::2])


@pytest.mark.parametrize(
    ("name", "n", "rank", "without", "expected"),
    [
        ("ring", 6, 0, (1,), [2, 5]),
        ("ring", 6, 0, (1, 2, 5), [3, 4]),
        ("ring", 4, 0, (1, 2, 3), []),
        ("directed-ring", 5, 0, (1, 2), [3]),
        ("full", 4, 0, (2,), [1, 3]),
    ],
)
def test_neighbours_of_those_that_are_gone_take_their_place(name, n, rank, without, expected):
    assert topology.build(name, n).out_neighbours(rank, without=without) == expected


# ---- runs


def run(tmp_path, algorithm, ranks=5, spares=0, die=None, every=None, seconds=4.0, **more):
    faults = {"die": die or {}} | ({"every": every} if every else {})
    config = training.config(algorithm, train={"seconds": seconds, "snapshots": 4}, faults=faults, **more)
    simulate(config, ranks, network("switch"), tmp_path / "run.h5", "lognormal:0.1,0.3", spares=spares)
    return load_run(tmp_path / "run.h5")


@pytest.mark.parametrize("algorithm", VARIANTS, ids=str)
def test_spares_take_the_ranks_of_processes_that_die(algorithm, tmp_path):
    found = run(tmp_path, algorithm, spares=3, die={"0": 0.55, "3": 1.2, "4": 1.2005})
    assert found.attributes["reason"] == "seconds" and "lost" not in found.attributes
    assert found.extra["death_rank"].tolist() == [0, 3, 4]
    assert np.allclose(found.extra["death_seconds"], [0.56, 1.21, 1.2105], atol=1e-3)
    assert (found.extra["death_replaced_seconds"] - found.extra["death_seconds"] < 1e-3).all()
    assert (found.ranks["steps"] > 15).all() and found.attributes["virtual_seconds"] < 4.6
    assert np.nanmax(found.extra["longest_wait"]) < 1


@pytest.mark.parametrize("algorithm", VARIANTS, ids=str)
def test_the_others_go_on_without_those_that_die(algorithm, tmp_path):
    found = run(tmp_path, algorithm, die={"0": 0.55, "1": 1.2, "3": 2.0})
    assert found.attributes["lost"] == [0, 1, 3] and found.attributes["virtual_seconds"] < 4.6
    assert (found.ranks["steps"][[2, 4]] > 25).all() and not found.ranks["steps"][[0, 1, 3]].any()
    assert found.attributes["participation"] == 1
    assert np.isfinite(found.attributes["final_test_accuracy"])


@pytest.mark.parametrize("name", ["grsgd", "gossip", "ring_allreduce", "diloco"])
def test_the_others_go_on_without_a_host(name, tmp_path):
    """The processes of a host die at once, one of them rank 0; the launcher goes on without the host."""
    found = run(tmp_path, {"name": name}, ranks=6, die={"0": 1.2, "1": 1.2, "2": 1.2}, seconds=3.0)
    assert found.attributes["lost"] == [0, 1, 2] == sorted(found.extra["death_rank"])
    assert (found.ranks["steps"][3:] > 15).all() and found.attributes["participation"] == 1
    assert np.nanmax(found.extra["longest_wait"]) < 1


@pytest.mark.parametrize("algorithm", VARIANTS, ids=str)
@pytest.mark.parametrize("seed", exhaustive_unless([0, 1], range(6)))
def test_a_run_ends_however_many_die(algorithm, seed, tmp_path):
    """A death a step of one of four ranks, at any moment: while a process takes over, and at the end. Where all meet a
    death every other step, or all would die before a process that takes over has a model."""
    steps = 2 if algorithm["name"] in TOGETHER else 1
    found = run(tmp_path, algorithm, ranks=4, spares=30, every=0.1 * steps, seconds=1.5 * steps, seed=seed)
    assert found.attributes["virtual_seconds"] < 1.5 * steps + 1 and len(found.extra["death_rank"]) >= 5


def test_rank_0_is_not_needed_to_end_after_so_many_samples(tmp_path):
    config = training.config({"name": "grsgd"}, train={"steps": 30, "snapshots": 4}, faults={"die": {"0": 0.5}})
    simulate(config, 4, network("switch"), tmp_path / "run.h5", "constant:0.1")
    found = load_run(tmp_path / "run.h5")
    assert found.attributes["lost"] == [0] and found.attributes["reason"] == "steps"
    assert 115 <= found.ranks["steps"].sum() + 5 <= 132


@pytest.mark.parametrize("algorithm", [VARIANTS[0], {"name": "dpsgd"}], ids=str)
def test_the_same_seed_is_the_same_run(algorithm, tmp_path):
    one, other = (run(tmp_path, algorithm, spares=4, every=0.5) for _ in range(2))
    assert np.array_equal(one.curve["train_loss"], other.curve["train_loss"])
    assert np.array_equal(one.traffic["sent"], other.traffic["sent"])


# ---- those that go on together


class Seen(NamedTuple):
    """What a rank was when it regrouped: its process, how many ranks there were then, and its state."""

    process: int
    ranks: int
    step: int
    samples: int
    parameters: torch.Tensor
    momenta: torch.Tensor


@pytest.fixture
def regrouped(monkeypatch):
    """A list that every rank adds itself to when it has regrouped."""
    seen = []

    def go_on(recovery, context, furthest, was=Regrouping._go_on):
        yield from was(recovery, context, furthest)
        trainer = recovery.trainer
        step, samples, x = trainer.progress.steps, trainer.progress.samples, trainer.replica.params.tensor.clone()
        kept = momenta(trainer.optimizer.optimizer, trainer.replica.device).tensor
        seen.append(Seen(recovery.membership.process, context.comm.size, step, samples, x, kept))

    monkeypatch.setattr(Regrouping, "_go_on", go_on)
    return seen


@pytest.mark.parametrize("algorithm", [each for each in VARIANTS if each["name"] in TOGETHER], ids=str)
def test_after_a_death_all_that_are_left_begin_with_the_same(algorithm, regrouped, tmp_path):
    run(tmp_path, algorithm, ranks=4, spares=1, die={"1": 0.75, "3": 1.5})
    times = regrouped[:4], regrouped[4:]
    assert [[each.ranks for each in together] for together in times] == [[4] * 4, [3] * 3]
    assert [{each.process for each in together} for together in times] == [{0, 2, 3, 4}, {0, 2, 4}]
    for first, *others in times:
        for other in others:
            assert torch.equal(other.parameters, first.parameters) and torch.equal(other.momenta, first.momenta)
            assert (other.step, other.samples) == (first.step, first.samples)
    assert all(first.momenta.any() and first.samples for first, *_ in times)


def test_ranks_that_are_left_drive_a_start_that_is_a_schedule(monkeypatch, tmp_path):
    """As `Algorithm.start` allows: here ranks agree on how many they are."""
    agreed = []

    def start(algorithm):
        total = np.ones(1)
        yield from halving_doubling_allreduce(algorithm.comm, total)
        agreed.append(int(total[0]))

    monkeypatch.setattr(RingAllreduce, "start", start)
    run(tmp_path, {"name": "ring_allreduce"}, ranks=4, die={"1": 0.75})
    assert agreed == [4] * 4 + [3] * 3


def test_the_model_of_equal_replicas_goes_on_bit_for_bit(regrouped, monkeypatch, tmp_path):
    """That of the ranks which had taken the last step; the others, which had not, take it."""
    before = []

    def how_far(recovery, was=Regrouping._how_far):
        trainer = recovery.trainer
        before.append((trainer.progress.steps, trainer.replica.params.tensor.clone()))
        return was(recovery)

    monkeypatch.setattr(Regrouping, "_how_far", how_far)
    for seed in range(5):
        before.clear(), regrouped.clear()
        run(tmp_path, {"name": "ring_allreduce"}, ranks=5, die={"2": 0.9 + 0.03 * seed}, seconds=2.0, seed=seed)
        assert len(before) == len(regrouped) == 4
        step, parameters = max(before, key=lambda each: each[0])
        assert all(each.step == step and torch.equal(each.parameters, parameters) for each in regrouped)


def test_a_step_that_is_taken_again_has_the_mean_of_the_gradients_that_are_there(monkeypatch, tmp_path):
    """Of the step in which a process dies the others' gradients count, once; the spare in its place has none yet."""
    own, applied = {}, {}

    def noted(algorithm, was=RingAllreduce.reduce):
        key = algorithm.replica, len(applied.setdefault(algorithm.replica, []))
        own.setdefault(key, algorithm.replica.grads.tensor.clone())  # of a step that is taken again: the first time
        yield from was(algorithm)
        applied[algorithm.replica].append(algorithm.replica.grads.tensor.clone())

    monkeypatch.setattr(RingAllreduce, "reduce", noted)
    config = training.config(
        "ring_allreduce", train={"steps": 12, "snapshots": 2}, faults={"die": {"1": 0.41}, "notice_seconds": 0.0}
    )
    slow = network_of(bandwidth="10 kbit", latency="1 ms", eager_bytes=64)  # an all-reduce takes 0.2 s
    simulate(config, 4, slow, tmp_path / "run.h5", "constant:0.4", spares=1)
    found = load_run(tmp_path / "run.h5")
    left = [replica for replica, gradients in applied.items() if len(gradients) > 5]
    first = [applied[replica][0] for replica in left]
    mean = sum(own[replica, 0] for replica in left[:3]) / 3
    assert len(left) == 4 and all(torch.equal(first[0], other) for other in first)
    assert torch.allclose(first[0], mean, rtol=1e-5, atol=1e-7)
    assert found.ranks["samples"].tolist() == [52, 48, 52, 52] and found.curve["samples"][-1] == 12 * 16 + 12
    assert found.attributes["participation"] == pytest.approx(1 - 1 / found.ranks["steps"].sum())


@pytest.mark.parametrize("tau", [0, 1])
def test_push_sum_weights_sum_to_the_ranks_that_are_left(tau, monkeypatch, tmp_path):
    weights = []
    monkeypatch.setattr(SGP, "drain", lambda self, was=SGP.drain: (yield from noting(self, was, weights)))
    run(tmp_path, {"name": "sgp", "tau": tau}, ranks=5, die={"2": 0.9, "4": 1.7})
    assert len(weights) == 3 and abs(sum(weights) - 3) < 1e-9


def noting(algorithm, drain, weights):
    yield from drain(algorithm) or ()
    weights.append(algorithm.w)


def test_a_run_of_so_many_samples_ends_after_as_many_with_fewer_ranks(tmp_path):
    config = training.config("dpsgd", train={"steps": 30, "snapshots": 4}, faults={"die": {"0": 0.95}})
    simulate(config, 4, network("switch"), tmp_path / "run.h5", "constant:0.1")
    found = load_run(tmp_path / "run.h5")
    assert found.attributes["lost"] == [0] and found.attributes["reason"] == "steps"
    assert found.ranks["steps"].tolist() == [0, 37, 37, 37]  # 9 of 4 ranks, then 28 of 3: 120 in all
    assert found.attributes["warnings"] == [
        "rank 0: its process has died, and none has taken its place; its shard, 25.0% of the training data, was not "
        "read any more"
    ]


def test_with_replication_other_ranks_read_the_shards_of_those_that_are_gone(monkeypatch, tmp_path):
    """All samples are read after a death; without replication a quarter of them is not."""
    for replication, read, words in ((1, 45, "was not read any more"), (2, 60, "other ranks have read its shard")):
        samples = set()

        def noted(*args, rank, samples=samples, **more):
            for batch in index_stream(*args, rank=rank, **more):
                samples.update(batch.tolist() if rank != 1 else ())
                yield batch

        monkeypatch.setattr("grsgd.training.gradients.index_stream", noted)
        found = run(tmp_path, {"name": "local_sgd"}, ranks=4, die={"1": 0.01}, data={"replication": replication})
        assert found.attributes["lost"] == [1] and words in found.attributes["warnings"][0]
        assert len(samples) == read


# ---- planned deaths


def test_a_spare_is_there_when_a_process_has_come_back(tmp_path):
    config = training.config(
        "dpsgd", train={"seconds": 4.0, "snapshots": 4}, faults={"die": {"0": 0.55, "1": 1.2}, "back_seconds": 1.5}
    )
    simulate(config, 4, network("switch"), tmp_path / "run.h5", "constant:0.1", spares=3)
    found = load_run(tmp_path / "run.h5")
    assert np.allclose(found.extra["death_replaced_seconds"], [2.05, 2.7], atol=0.02)
    assert "lost" not in found.attributes and found.attributes["virtual_seconds"] < 4.2
    assert comes_back(config.faults, 4, config.seed, 2) == np.inf  # two deaths, so the third spare never comes


@pytest.mark.parametrize(("algorithm", "waits"), [("ring_allreduce", True), ("grsgd", False)])
def test_messages_wait_while_a_link_is_cut(algorithm, waits, tmp_path):
    seconds = []
    for faults in ({}, {"cut": {"1": {"at": 0.85, "seconds": 0.6}}}):
        config = training.config(algorithm, train={"steps": 30, "snapshots": 4}, faults=faults)
        simulate(config, 4, network("switch"), tmp_path / "run.h5", "constant:0.1")
        seconds.append(load_run(tmp_path / "run.h5").attributes["virtual_seconds"])
    assert seconds[1] - seconds[0] == pytest.approx(0.55 if waits else 0.0, abs=0.06)


def test_a_run_whose_processes_have_all_died(tmp_path):
    with pytest.raises(LostRank, match="the processes of all ranks have died, at 0.6"):
        run(tmp_path, {"name": "grsgd"}, ranks=2, die={"0": 0.5, "1": 0.6})


def test_refusals(tmp_path):
    with pytest.raises(ConfigError, match="^--spares 1: with dpsgd the run ends when a rank dies$"):
        run(tmp_path, {"name": "dpsgd", "topology": "hypercube"}, ranks=4, spares=1)
    with pytest.raises(ConfigError, match="^faults: with cssgd the run ends when a rank dies$"):
        run(tmp_path, {"name": "cssgd"}, every=1.0)
    with pytest.raises(ConfigError, match="^faults.cut: rank 7 in a job of 3; allowed: 0 to 2$"):
        config = training.config("grsgd", faults={"cut": {"7": {"at": 1.0, "seconds": 1.0}}})
        simulate(config, 3, network("switch"), tmp_path / "run.h5")
    with pytest.raises(ConfigError, match="^faults.die: rank 5 in a job of 5; allowed: 0 to 4$"):
        run(tmp_path, {"name": "grsgd"}, die={"5": 1.0})
