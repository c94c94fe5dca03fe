"""All-reduces of buckets of the gradient behind the backward pass."""

from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from grsgd.algorithms.buckets import cut
from grsgd.algorithms.ring_allreduce import RingAllreduce, RingAllreduceOptions
from grsgd.comm.allreduce import ALLREDUCE, THROUGH_MEMORY
from grsgd.errors import ConfigError
from grsgd.job import launch
from grsgd.models.replica import Replica
from grsgd.simulator.tracing.instrumentation import Instrumentation
from grsgd.testing import AlgorithmTests
from grsgd.testing.quadratic import MOMENTUM, PROBLEM, RATE, STEPS, WEIGHT_DECAY, Job, random_speeds
from grsgd.testing.simulated import network_of
from grsgd.training.gradients import FORWARD_SHARE, stages
from tests.support.seeded import seeded
from tests.support.training import simulation

VARIANTS = [name for name in ALLREDUCE if name not in THROUGH_MEMORY]
SIMULATED = [name for name in VARIANTS if name != "mpi"]
IN_ONE_ORDER = ("halving-doubling", "tree")
"""Those that sum all elements of an array in one order."""


# ---- which parameters are in which bucket


@seeded
@given(sizes=st.lists(st.integers(0, 50), min_size=1, max_size=30), count=st.integers(1, 12))
def test_buckets_are_all_parameters_from_the_last_to_the_first(sizes, count):
    buckets = cut(sizes, count)
    assert 1 <= len(buckets) <= count and all(len(bucket) for bucket in buckets)
    assert [i for bucket in buckets for i in reversed(bucket)] == list(reversed(range(len(sizes))))
    longest = max(sum(sizes[i] for i in bucket) for bucket in buckets)
    assert longest <= sum(sizes) / count + max(sizes)


def test_buckets_of_equal_parameters_are_equal():
    assert cut([10] * 6, 3) == [range(4, 6), range(2, 4), range(2)]
    assert cut([10] * 4, 9) == [range(3, 4), range(2, 3), range(1, 2), range(1)]
    assert cut([1, 1, 100, 1, 1], 4) == [range(3, 5), range(2, 3), range(2)]
    assert cut([5], 4) == [range(1)]


# ---- models


def reference(n):
    X, velocity = PROBLEM.initial(n), 0
    for step in range(STEPS):
        velocity = MOMENTUM * velocity + (PROBLEM.gradients(X, step) + WEIGHT_DECAY * X).mean(0)
        X = X - RATE * velocity
    return X


@pytest.mark.parametrize("buckets", [1, 2])
@pytest.mark.parametrize("n", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("variant", SIMULATED)
def test_the_mean_gradient(variant, n, buckets):
    """Whatever order gradients, steps and messages come in; where the order of sums is that of the whole gradient, bit
    for bit."""
    random = np.random.default_rng(n)
    job = Job("ring_allreduce", n, random_speeds(n), random=random, variant=variant, buckets=buckets).train()
    assert (job.X == job.X[0]).all() and np.abs(job.X - reference(n)).max() < 1e-12
    whole = Job("ring_allreduce", n, variant=variant).train()
    if n <= 2 or buckets == 1 or variant in IN_ONE_ORDER:
        assert (job.X == whole.X).all()
    assert job.nothing_is_left() and job.sent() == whole.sent()
    again = Job("ring_allreduce", n, variant=variant, buckets=buckets).train()
    assert (again.X == job.X).all(), "times change nothing"


@pytest.mark.parametrize("n", [2, 3])
def test_gradients_that_nobody_tells_of(n):
    """Frozen in a step on some ranks, or finished by other means: they are there when the step comes."""
    job = Job("ring_allreduce", n, buckets=2)
    told = [(), (0,), (1, 0)]
    job.stages = lambda rank: [(0.5, partial(job.algorithms[rank].gradient_ready, layer)) for layer in told[rank]]
    assert np.abs(job.train().X - reference(n)).max() < 1e-12 and (job.X == job.X[0]).all()


def test_a_gradient_that_is_finished_twice():
    algorithm = Job("ring_allreduce", 2, buckets=2).algorithms[0]
    algorithm.gradient_ready(1)
    with pytest.raises(RuntimeError, match="^the gradient of 'layers.1' was finished twice in one step .*buckets out$"):
        algorithm.gradient_ready(1)


class TestBuckets(AlgorithmTests):
    algorithm, options = "ring_allreduce", {"buckets": 2}
    test_real_ranks_do_what_simulated_ones_do = test_it_goes_on_from_a_checkpoint = None


# ---- times


def test_the_model_of_a_backward_pass():
    told = []
    found = stages([30, 0, 60, 10], told.append)
    for _, call in found:
        call()
    assert told == [3, 2, 1, 0]
    shares = [FORWARD_SHARE + (1 - FORWARD_SHARE) * done for done in (0.1, 0.7, 0.7, 1.0)]
    assert [share for share, _ in found] == pytest.approx(shares) and found[-1][0] <= 1


SECONDS = 0.9
LAYERS = {"model": {"name": "mlp", "hidden": [8]}}
SIZES = [8 * 16, 8, 2 * 8, 2]
"""Of its parameters."""


def step_seconds(options, network, timing_only=False, ranks=2, **sections):
    """Simulate; returns seconds of a step, and the bytes that leave rank 0 in it."""
    compute = f"constant:{SECONDS}"
    job = simulation({"name": "ring_allreduce"} | options, ranks, network, compute, timing_only, **LAYERS | sections)
    job.train()
    return job.env.now / 8, job.trainers[0].comm.traffic.sent.sum() / 8


@pytest.mark.parametrize("timing_only", [False, True])
@pytest.mark.parametrize("kbit", [1, 4, 8, 16])
def test_what_hides_in_simulated_time(kbit, timing_only):
    """A bucket is sent when it is there, and the one before it has been summed."""
    network = network_of(bandwidth=f"{kbit} kbit")
    found, sent = step_seconds({"buckets": 2}, network, timing_only)
    whole, sent_whole = step_seconds({}, network, timing_only)
    byte = 8 / (1000 * kbit)
    assert whole == pytest.approx(SECONDS + 4 * sum(SIZES) * byte, rel=1e-4) and sent == sent_whole
    there, end = 0, 0.0
    for bucket in cut(SIZES, 2):
        size = sum(SIZES[i] for i in bucket)
        there += size
        ready = SECONDS * (FORWARD_SHARE + (1 - FORWARD_SHARE) * there / sum(SIZES))
        end = max(end, ready) + 4 * size * byte
    assert found == pytest.approx(end, rel=1e-4) and found < whole


def test_times_with_gradients_and_without_are_the_same():
    network = network_of(bandwidth="2 kbit", latency="1 ms", processor={"send": "1ms", "receive": "2ms"})
    found = [step_seconds({"buckets": 3}, network, timing_only, 3) for timing_only in (False, True)]
    assert found[0] == found[1]


def test_a_rank_with_delays_sends_when_they_are_over():
    network, slow = network_of(bandwidth="8 kbit"), {"stragglers": {"slowdown": {"1": 2.0}}}
    options = {"name": "ring_allreduce", "buckets": 2}
    job = simulation(options, 2, network, f"constant:{SECONDS}", **LAYERS | slow)
    job.train()
    assert job.env.now / 8 == pytest.approx(2 * SECONDS + 4 * sum(SIZES) / 1000, rel=1e-4)
    assert [len(trainer.computing.stages) for trainer in job.trainers] == [4, 0]


def test_a_processor_computes_on_after_each_stage():
    """What messages take of it is added, and nothing else."""
    free = network_of(processor={"send": "0ms"})
    assert step_seconds({"buckets": 2}, free)[0] == pytest.approx(SECONDS, rel=1e-4)
    costly = network_of(processor={"receive": "20ms"})
    assert step_seconds({"buckets": 2}, costly)[0] == pytest.approx(SECONDS + 0.02, rel=1e-4), "the first bucket's"


# ---- what is refused


@pytest.mark.parametrize(
    "options, words",
    [
        ({"compression": "int8"}, 'buckets = 3: compression = "int8" needs whole gradients'),
        ({"compression": "power-sgd"}, 'buckets = 3: compression = "power-sgd" needs whole gradients'),
        ({"variant": "shared"}, 'variant = "shared": needs whole gradients; with buckets allowed: ring, .*, mpi'),
        ({"variant": "hierarchical"}, 'variant = "hierarchical": needs whole gradients; .*, mpi'),
        ({"variant": "auto"}, 'variant = "auto": needs whole gradients; with buckets allowed: ring, .*, mpi'),
        ({"buckets": 0}, "greater than or equal to 1"),
    ],
)
def test_what_buckets_do_not_go_with(options, words):
    with pytest.raises(ValidationError, match=words):
        RingAllreduceOptions(**{"buckets": 3} | options)


def test_traits():
    plain = RingAllreduce.traits_of(RingAllreduceOptions())
    assert plain == RingAllreduce.traits and not plain.sends_early and not plain.in_background
    for variant in VARIANTS:
        traits = RingAllreduce.traits_of(RingAllreduceOptions(variant=variant, buckets=2))
        assert traits.sends_early and traits.in_background and traits.exact_gradient and traits.rests_between_steps
        assert not traits.survives_deaths and not traits.only_allreduces
        assert traits.label == ("ring_allreduce buckets" if variant == "ring" else f"ring_allreduce {variant} buckets")


def test_gradients_on_a_gpu_are_refused():
    options = RingAllreduceOptions(buckets=2)
    launch.check_place(None, RingAllreduce, options, 2, torch.device("cpu"))
    with pytest.raises(ConfigError, match="^algorithm.buckets: the gradients lie in the memory of a GPU; allowed"):
        launch.check_place(None, RingAllreduce, options, 2, torch.device("cuda"))


def test_a_trace_is_refused(tmp_path):
    recording = Instrumentation(trace=tmp_path / "run.goal")
    recording.check(tmp_path / "run.h5", False, network_of())
    with pytest.raises(ConfigError, match="^--trace: not with algorithm.buckets: GOAL cannot express a message"):
        recording.check(tmp_path / "run.h5", False, network_of(), sends_early=True)


# ---- the hook of a replica


def test_gradients_lie_in_flat_memory_when_they_are_told_of():
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 2)).double()
    replica, told = Replica(model), []

    def ready(i):
        p = replica.trained[i]
        begin = sum(q.numel() for q in replica.trained[:i])
        there = replica.grads.tensor[begin : begin + p.numel()]
        told.append((i, torch.equal(there, p.grad.flatten()) and bool(there.any())))

    handles = replica.on_gradient(ready)
    for clear in (replica.zero_gradients, model.zero_grad):
        told.clear()
        clear()
        model(torch.ones(5, 3, dtype=torch.float64)).square().sum().backward()
        assert sorted(told) == [(i, True) for i in range(4)] and told[0][0] >= 2
    for handle in handles:
        handle.remove()
