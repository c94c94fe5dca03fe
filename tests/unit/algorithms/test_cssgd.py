"""CSSGD and its baseline SSGD, whole trainings in simulated time."""

import re
import tomllib
from itertools import islice
from math import comb

import numpy as np
import pytest
import torch

from coding.cost import cost_in_bytes
from coding.fixed_point import FixedPoint
from coding.placement import subset_placement
from coding.time_model import step_seconds
from grsgd.data.shards import index_stream
from grsgd.errors import ConfigError
from grsgd.runs.run_file import load_run
from grsgd.simulator.run import simulate
from grsgd.testing.simulated import network_of
from grsgd.training.snapshots import common_marks, train_loss
from tests.support.exhaustive import exhaustive_unless
from tests.support.training import CONSTANT, SLOW, STEP, config, simulation

CASES = exhaustive_unless(
    lambda n, r: n == 3 or (n, r) in [(4, 2), (4, 3)], [(n, r) for n in (3, 4, 5) for r in range(1, n)]
)
STEPS = 8
RATE, MOMENTUM, WEIGHT_DECAY = 0.05, 0.9, 0.1
SUBSETS = {"coded": {}, "paper": {"enumeration": "paper"}, "uncoded": {"scheme": "uncoded"}}
EXACT = {
    **{name: {"name": "cssgd"} | more for name, more in SUBSETS.items()},
    "coded by unicast": {"name": "cssgd", "transport": "unicast"},
    "local sum": {"name": "ssgd"},
    "local sum by unicast": {"name": "ssgd", "transport": "unicast"},
    "per block": {"name": "ssgd", "accounting": "per-block"},
}
"""All that do the same arithmetic if the batch is cut alike."""
GROUPED = {name: {"name": "cssgd", "scheme": name} for name in ("grouped-direct", "grouped-rs")}
FLOAT64 = dict(dtype="float64")


class Result:
    """What came of a simulation: the models of all ranks, and the curve."""

    def __init__(self, job):
        self.job = job
        self.first = job.trainers[0].replica.params.array.copy()
        assert job.train() == "steps"
        self.models = [trainer.replica.params.array.copy() for trainer in job.trainers]
        assert all(model.tobytes() == self.models[0].tobytes() for model in self.models)
        snapshots = [trainer.snapshots for trainer in job.trainers]
        marks = common_marks([each.numbers for each in snapshots])
        self.train_loss = [train_loss([each.moments[mark] for each in snapshots]) for mark in marks]
        self.warnings = [warning for trainer in job.trainers for warning in trainer.algorithm.warnings()]
        if job.config.dtype != "float32":  # evaluation is not what this is about
            return
        qualities, final = job.evaluate()
        self.accuracies = [quality.mean for quality in (*qualities, final)]
        assert {quality.consensus_distance for quality in (*qualities, final)} == {0.0}

    @property
    def model(self):
        return self.models[0]

    def assert_equals(self, other, what):
        assert self.model.tobytes() == other.model.tobytes(), what
        assert self.train_loss == other.train_loss, what
        if self.job.config.dtype == "float32":
            assert self.accuracies == other.accuracies, what


def result(n, section, network=None, **sections):
    optimizer = {"lr": RATE, "momentum": MOMENTUM, "weight_decay": WEIGHT_DECAY}
    return Result(simulation(section, n, network, **{"optimizer": optimizer} | sections))


def common_batches(job, n, batch_size=4):
    """Images, flat, and labels of the batches that all ranks share."""
    train = job.trainers[0].data.train
    stream = index_stream(np.arange(len(train)), n * batch_size, seed=job.config.seed, rank=0)
    for x, y in train.batches(islice(stream, STEPS)):
        yield x.numpy().reshape(len(x), -1).astype(np.float64), y.numpy()


def reference(job, n, first):
    """The linear classifier trained in a plain loop with the gradients written out; and what one gradient's error
    can become: (model, mean loss of each step, bound for the error in the model of errors of 1 in each gradient)."""
    parameters, velocity = first.astype(np.float64), np.zeros(first.size)
    difference, difference_velocity, losses = 0.0, 0.0, []
    for x, y in common_batches(job, n):
        x1 = np.hstack([x, np.ones((len(x), 1))])
        weights = np.hstack([parameters[:32].reshape(2, 16), parameters[32:].reshape(2, 1)])
        scores = x1 @ weights.T
        scores -= scores.max(1, keepdims=True)
        p = np.exp(scores) / np.exp(scores).sum(1, keepdims=True)
        losses.append(-np.log(p[np.arange(len(y)), y]).mean())
        gradient = (p - np.eye(2)[y]).T @ x1 / len(x)
        gradient = np.concatenate([gradient[:, :16].reshape(-1), gradient[:, 16]]) + WEIGHT_DECAY * parameters
        velocity = MOMENTUM * velocity + gradient
        parameters = parameters - RATE * velocity
        curvature = np.linalg.eigvalsh(x1.T @ x1 / len(x))[-1] / 2  # that of cross-entropy is half of it at most
        difference_velocity = MOMENTUM * difference_velocity + 1 + (curvature + WEIGHT_DECAY) * difference
        difference += RATE * difference_velocity
    return parameters, losses, difference


def quantisation_error(blocks, size=34, limit=10.0):
    """The largest norm of the error of a sum of so many quantised blocks."""
    return blocks * FixedPoint(limit).step / 2 * size**0.5


# ---- the same arithmetic


@pytest.mark.parametrize("n, r", CASES)
def test_schemes_with_the_same_blocks_are_equal_bit_for_bit(n, r):
    """Parameters after 8 steps, the loss curve, the accuracies."""
    results = {name: result(n, section | {"r": r}) for name, section in EXACT.items()}
    first = results.pop("coded")
    assert len(first.train_loss) == 4 and len(first.accuracies) == 5
    assert np.isfinite(first.train_loss).all() and first.train_loss[-1] < first.train_loss[0]
    assert not np.array_equal(first.model, first.first)
    for name, other in results.items():
        other.assert_equals(first, name)
    assert not first.warnings
    for trainer in first.job.trainers:
        assert trainer.gradients.samples == sum(block.samples for block in trainer.gradients.blocks)
        assert trainer.totals.samples == STEPS * 4
    computed = sum(trainer.gradients.samples for trainer in first.job.trainers)
    assert computed == r * n * 4


@pytest.mark.parametrize("n, r", CASES)
def test_equal_to_a_plain_loop(n, r):
    """To quantisation error, whose effect on the model is bounded by the curvature of the loss."""
    sections = {name: EXACT[name] for name in ("coded", "local sum")} | GROUPED
    for name, section in sections.items():
        found = result(n, section | {"r": r}, **FLOAT64)
        expected, losses, growth = reference(found.job, n, found.first)
        blocks = -(-n // r) if name in GROUPED else comb(n, r)
        tolerance = growth * quantisation_error(blocks)
        assert tolerance < 3e-5
        error = np.linalg.norm(found.model - expected)
        assert error <= tolerance, name
        assert error > 0, "not quantised"
        steps = [moment.step for moment in found.job.trainers[0].snapshots.moments]
        means = [np.mean(part) for part in np.split(losses, steps)[:-1]]
        np.testing.assert_allclose(found.train_loss, means, atol=100 * tolerance)


@pytest.mark.parametrize("n, r", CASES)
def test_grouped_schemes_differ_by_quantisation_alone(n, r):
    """From the others, which cut the batch into more blocks, and not at all from each other."""
    exact = result(n, EXACT["coded"] | {"r": r}, **FLOAT64)
    direct, scattered = (result(n, section | {"r": r}, **FLOAT64) for section in GROUPED.values())
    scattered.assert_equals(direct, "grouped-rs")
    _, _, growth = reference(exact.job, n, exact.first)
    q = -(-n // r)
    tolerance = growth * quantisation_error(comb(n, r) + q)
    assert np.linalg.norm(exact.model - direct.model) <= tolerance
    np.testing.assert_allclose(exact.train_loss, direct.train_loss, atol=100 * tolerance)
    if q == n:  # r = 1: the blocks are the same, and so is everything
        direct.assert_equals(exact, "grouped-direct")


@pytest.mark.parametrize("name", list(EXACT))
def test_everybody_computes_everything(name):
    """r = n: one block, and whoever computes it."""
    found = result(3, EXACT[name] | {"r": 3})
    other = result(3, {"name": "cssgd", "r": 3})
    other_way = result(3, {"name": "cssgd", "r": 3, "scheme": "grouped-direct"})
    found.assert_equals(other, name)
    found.assert_equals(other_way, name)


def test_float32_is_a_plain_loop_to_rounding():
    found = result(4, {"name": "cssgd", "r": 2})
    expected, losses, _ = reference(found.job, 4, found.first)
    np.testing.assert_allclose(found.model, expected, atol=2e-5)
    np.testing.assert_allclose(np.mean(losses), np.mean(found.train_loss), rtol=1e-5)


NETWORKS = {
    "switch": SLOW,
    "multicasting switch": SLOW | {"multicast": True},
    "shared": SLOW | {"medium": "shared"},
    "fast": dict(bandwidth="inf bit", latency="0 s"),
    "rendezvous": SLOW | {"eager_bytes": 0},
}


@pytest.mark.parametrize("network", exhaustive_unless(["shared"], NETWORKS))
def test_neither_transport_nor_network_nor_stragglers_matter(network):
    stragglers = {"slowdown": {1: 3.0}, "tail": {0: {"probability": 0.5, "seconds": 0.02}}}
    expected = result(4, {"name": "cssgd", "r": 2})
    for transport in ("multicast", "unicast"):
        for section in (EXACT["coded"], EXACT["uncoded"], EXACT["per block"]):
            section = section | {"r": 2, "transport": transport}
            found = result(4, section, network_of(**NETWORKS[network]), stragglers=stragglers)
            found.assert_equals(expected, section)


@pytest.mark.parametrize("n, r", exhaustive_unless(lambda n, r: n < 5, [(3, 2), (4, 2), (5, 3)]))
@pytest.mark.parametrize("scheme", ["coded", "uncoded", "grouped-direct", "grouped-rs"])
def test_bytes_of_a_run(n, r, scheme):
    """As by `coding.cost`: nothing else is sent."""
    load = cost_in_bytes(scheme, n, r, 34).times(STEPS)
    for transport in ("multicast", "unicast"):
        found = result(n, {"name": "cssgd", "scheme": scheme, "r": r, "transport": transport})
        traffic = [trainer.comm.traffic for trainer in found.job.trainers]
        assert [each.sent.sum() for each in traffic] == list(load.copies)
        assert [each.sent_once for each in traffic] == list(load.sent if transport == "multicast" else load.copies)


# ---- what is random


class Dropout(torch.nn.Module):
    """Zeroes a part of the pixels, and remembers which."""

    def __init__(self, model):
        super().__init__()
        self.model, self.masks = model, []

    def forward(self, x):
        mask = torch.nn.functional.dropout(torch.ones(len(x), 1, *x.shape[2:]), 0.5, self.training)
        if self.training:
            self.masks.append(mask.numpy().tobytes())
        return self.model(x * mask)


def with_dropout(n, section):
    job = simulation(section, n, compute="lognormal:0.01,0.5")
    for trainer in job.trainers:
        trainer.replica.model = Dropout(trainer.replica.model)
    return Result(job)


@pytest.mark.parametrize("n, r", exhaustive_unless(lambda n, r: n < 5 and r == 2, [(3, 2), (4, 2), (4, 3), (5, 3)]))
def test_dropout_is_the_blocks_own(n, r):
    """All ranks that compute a block zero the same pixels in it, and no two blocks or steps are alike."""
    results = {name: with_dropout(n, section | {"r": r}) for name, section in EXACT.items()}
    masks = {}
    for trainer in results["coded"].job.trainers:
        seen = trainer.replica.model.masks[: STEPS * len(trainer.gradients.blocks)]
        keys = [(step, block.number) for step in range(STEPS) for block in trainer.gradients.blocks]
        for key, mask in zip(keys, seen, strict=True):
            assert masks.setdefault(key, mask) == mask
    assert len(masks) == STEPS * comb(n, r) == len(set(masks.values()))
    first = results.pop("coded")
    assert not np.array_equal(first.model, result(n, {"name": "cssgd", "r": r}).model)
    for name, other in results.items():
        other.assert_equals(first, name)
    for section in GROUPED.values():
        with_dropout(n, section | {"r": r})  # asserts that all models are equal


def test_seeds_differ():
    losses = [with_dropout(3, {"name": "cssgd", "r": 2}).train_loss, result(3, {"name": "cssgd"}, seed=1).train_loss]
    assert losses[0] != losses[1] != result(3, {"name": "cssgd"}).train_loss


# ---- range


def run_file(path, n, section, network=None, **sections):
    """The attributes of a simulated run's file."""
    simulate(config(section, **sections), n, network or network_of(**SLOW), path, CONSTANT)
    return load_run(path).attributes


def suggestions(warnings):
    return [float(text) for text in re.findall(r"a range of (\S+) would do", "\n".join(warnings))]


@pytest.mark.parametrize("name", ["coded", "uncoded", "per block"])
def test_a_range_too_small_is_told(name, tmp_path):
    section = EXACT[name] | {"r": 2}
    warnings = run_file(tmp_path / "run.h5", 4, section | {"range": 0.05})["warnings"]
    assert len(warnings) == 4
    for rank, warning in enumerate(warnings):
        assert re.fullmatch(
            rf"rank {rank}: gradients of blocks are wrong: values beyond the range of 0.05: \d+, the largest "
            r"[\d.]+; a range of [\d.]+ would do",
            warning,
        )
    assert int(re.search(r"0.05: (\d+),", warnings[0])[1]) > 3
    suggested = max(suggestions(warnings))
    assert run_file(tmp_path / "run.h5", 4, section | {"range": suggested}).get("warnings") is None


@pytest.mark.parametrize("section", [{"name": "ssgd", "r": 2}, {"name": "cssgd", "scheme": "grouped-rs"}], ids=str)
def test_sums_beyond_the_range_are_told(section, tmp_path):
    """Every block fits, and a sum of some does not: with blocks scaled up so that this is known beforehand."""
    job = simulation(section | {"range": 1.0}, 4)
    for trainer in job.trainers:
        trainer.gradients.next_gradient = lambda trainer=trainer: constant_gradients(trainer, 0.75)
    found = Result(job)
    assert found.warnings
    for warning in found.warnings:
        assert warning.startswith("sums of gradients are wrong: values beyond the range of 1: ")
    assert set(suggestions(found.warnings)) == {4.0}
    job = simulation(section | {"range": 4.0}, 4)
    for trainer in job.trainers:
        trainer.gradients.next_gradient = lambda trainer=trainer: constant_gradients(trainer, 0.75)
    assert not Result(job).warnings


def constant_gradients(trainer, value):
    for block in trainer.gradients.blocks:
        trainer.replica.grads.array.fill(value)
        trainer.algorithm.block_gradient_ready(block.number)
    return {block.number: 1.0 for block in trainer.gradients.blocks}


def test_a_gradient_that_is_no_number_is_told():
    job = simulation({"name": "cssgd"}, 3)
    trainer, ready = job.trainers[1], job.trainers[1].gradients.ready

    def poisoned(block):
        trainer.replica.grads.array[3] = np.nan
        ready(block)

    trainer.gradients.ready = poisoned
    job.train()
    assert [len(trainer.algorithm.warnings()) for trainer in job.trainers] == [0, 1, 0]
    count = STEPS * len(trainer.gradients.blocks)
    assert f"gradients of blocks are wrong: values that are not finite: {count}" in trainer.algorithm.warnings()[0]


# ---- refusals


@pytest.mark.parametrize(
    "n, section, options, reason",
    [
        (5, {"name": "cssgd", "r": 2}, {"batch_size": 1}, "batch_size = 1: cssgd .* common batch of 5 samples"),
        (5, {"name": "ssgd", "r": 2}, {"batch_size": 1}, "batch_size = 1: ssgd .* common batch of 5 samples"),
        (6, {"name": "cssgd", "r": 3}, {"batch_size": 3}, "batch_size = 3: cssgd .* common batch of 18 samples"),
        (3, {"name": "cssgd"}, {"alpha": 0.5}, "data.alpha = 0.5: cssgd has no shards"),
        (3, {"name": "ssgd"}, {"alpha": 0.5}, "data.alpha = 0.5: ssgd has no shards"),
        (3, {"name": "cssgd", "r": "auto"}, {"alpha": 0.5}, "data.alpha = 0.5: cssgd has no shards"),
        (3, {"name": "cssgd"}, {"workers": 2}, "data.workers = 2: cssgd .*; allowed: 0"),
        (3, {"name": "ssgd"}, {"workers": 2}, "data.workers = 2: ssgd .*; allowed: 0"),
        (3, {"name": "cssgd"}, {"replication": 2}, "data.replication = 2: cssgd has no shards"),
        (3, {"name": "ssgd"}, {"replication": 2}, "data.replication = 2: ssgd has no shards"),
        (3, {"name": "cssgd", "r": 4}, {}, "r = 4 with 3 ranks; allowed are 1 to 3, and 'auto'"),
        (3, {"name": "ssgd", "r": 4}, {}, "r = 4 with 3 ranks; allowed are 1 to 3"),
        (60, {"name": "cssgd", "r": 20}, {}, "60 ranks have .* subsets of 21: too many"),
        (60, {"name": "cssgd", "r": 20, "scheme": "uncoded"}, {}, "60 ranks have .* subsets of 20: too many"),
        (3, {"name": "cssgd", "r": 0}, {}, "algorithm.r: allowed are 1 to the number of ranks, and 'auto'; found 0"),
        (3, {"name": "cssgd", "r": "most"}, {}, "allowed are 1 to the number of ranks, and 'auto'; found 'most'"),
        (3, {"name": "cssgd", "r": True}, {}, "algorithm.r: allowed are 1 to .*found True"),
        (3, {"name": "cssgd", "r": 1.5}, {}, "allowed are 1 to .*found 1.5"),
        (3, {"name": "ssgd", "r": "auto"}, {}, "algorithm.r = 'auto': "),
        (3, {"name": "cssgd", "range": 0.0}, {}, "algorithm.range = 0.0"),
        (3, {"name": "cssgd", "scheme": "uncoded", "enumeration": "paper"}, {}, "enumeration = 'paper' with scheme"),
    ],
    ids=str,
)
def test_refusals(n, section, options, reason):
    data = {"name": "synthetic", "samples": 60, "shape": [1, 4, 4], "classes": 2, "batch_size": 4}
    with pytest.raises(ConfigError, match=reason) as caught:
        simulation(section, n, data=data | options)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("section", [{"name": "cssgd", "r": 2}, {"name": "ssgd", "r": 2}], ids=str)
def test_a_block_of_one_sample(section):
    """As many blocks as samples is the most there can be: 10 blocks of 5 ranks."""
    data = {"name": "synthetic", "samples": 60, "shape": [1, 4, 4], "classes": 2, "batch_size": 2}
    found = result(5, section, data=data)
    assert all(block.samples == 1 for trainer in found.job.trainers for block in trainer.gradients.blocks)


def test_blocks_of_unequal_size():
    """The mean loss counts every sample once, and so does the gradient."""
    data = {"name": "synthetic", "samples": 60, "shape": [1, 4, 4], "classes": 2, "batch_size": 3}
    results = [result(5, section | {"r": 2}, data=data) for section in EXACT.values()]
    sizes = {block.samples for trainer in results[0].job.trainers for block in trainer.gradients.blocks}
    assert sizes == {1, 2}
    for other in results[1:]:
        other.assert_equals(results[0], other.job.config.algorithm)
    holders = subset_placement(5, 2).holders
    for trainer in results[0].job.trainers:
        assert all(trainer.comm.rank in holders[block.number] for block in trainer.gradients.blocks)


# ---- r = "auto"


FAST = dict(bandwidth="1 tbit", latency="0 s")
AUTO = {"name": "cssgd", "r": "auto"}


def chosen(attributes):
    return tomllib.loads(attributes["config"])["algorithm"]["r"]


def predicted(why):
    """What is printed: predicted seconds of a step, by r."""
    lines = why.splitlines()
    ((header, *rs),) = (line.split() for line in lines if line.split()[:1] == ["r"] and line.split()[1] != "=")
    ((times),) = [line.removeprefix("predicted ms a step").split() for line in lines if line.startswith("predicted")]
    return {int(r): float(time) / 1e3 for r, time in zip(rs, times, strict=True)}


@pytest.mark.parametrize(
    "scheme, network, medium, expected",
    [
        ("coded", FAST, "point-to-point", {1}),
        ("coded", FAST | {"multicast": True}, "switch", {1}),
        ("coded", SLOW | {"medium": "shared", "bandwidth": "100 kbit"}, "shared", {3, 4}),
        ("grouped-rs", SLOW | {"medium": "shared", "bandwidth": "200 kbit"}, "shared", {2, 3, 4}),
        ("uncoded", FAST, "point-to-point", {1}),
    ],
    ids=str,
)
def test_auto_chooses_what_the_model_says(scheme, network, medium, expected, tmp_path):
    """Of a network as fast as that, no redundancy; of a slow shared medium, more."""
    section = AUTO | {"scheme": scheme}
    attributes = run_file(tmp_path / "run.h5", 4, section, network_of(**network))
    r, why = chosen(attributes), attributes["redundancy"]
    assert r in expected
    assert why.startswith(f"r = {r}: measured 10 ms for a gradient, ")
    steps = predicted(why)
    assert list(steps) == [1, 2, 3, 4]
    assert r == min(steps, key=steps.get)
    bits = {"1 tbit": 1e12, "100 kbit": 1e5, "200 kbit": 2e5}[network["bandwidth"]]
    for each, seconds in steps.items():
        bytes_alone = step_seconds(scheme, 4, each, STEP, 8 * 136 / bits, medium)
        assert 0.99 * bytes_alone <= seconds <= 1.01 * bytes_alone + 12 * 2.1e-3, "and latencies"


def test_auto_is_repeatable_and_leaves_no_trace(tmp_path):
    """Equal seeds, equal choice; and the training is that of a run with the same number."""
    network = network_of(**SLOW | {"medium": "shared"})
    runs = [run_file(tmp_path / f"{k}.h5", 4, AUTO, network) for k in range(2)]
    assert runs[0]["config"] == runs[1]["config"]
    assert runs[0]["redundancy"] == runs[1]["redundancy"]
    automatic = result(4, AUTO, network)
    r = automatic.job.config.algorithm_options.r
    assert r == chosen(runs[0])
    fixed = result(4, {"name": "cssgd", "r": r}, network)
    automatic.assert_equals(fixed, "auto")
    traffic = [[trainer.comm.traffic.sent.tolist() for trainer in each.job.trainers] for each in (automatic, fixed)]
    assert traffic[0] == traffic[1]


def test_a_number_needs_no_reason(tmp_path):
    assert run_file(tmp_path / "run.h5", 3, {"name": "cssgd", "r": 2}).get("redundancy") is None


def test_auto_of_time_alone():
    """Without content the choice is the same."""
    network = network_of(**SLOW | {"medium": "shared", "bandwidth": "100 kbit"})
    jobs = [simulation(AUTO, 4, network, timing_only=timing_only) for timing_only in (False, True)]
    assert jobs[0].reasons == jobs[1].reasons
    assert jobs[0].config.algorithm_options.r == jobs[1].config.algorithm_options.r > 1


def test_auto_leaves_out_what_the_batch_is_too_small_for():
    """Five samples cannot be cut into ten blocks."""
    data = {"name": "synthetic", "samples": 60, "shape": [1, 4, 4], "classes": 2, "batch_size": 1}
    job = simulation(AUTO, 5, data=data)
    assert list(predicted(job.reasons["redundancy"])) == [1, 4, 5]


def test_auto_on_one_rank():
    job = simulation(AUTO, 1)
    assert job.config.algorithm_options.r == 1
    assert job.train() == "steps"


