"""Models of bfloat16: all-reduces, whole trainings against float32, arrays of checkpoints, and refusals."""

import numpy as np
import pytest
import torch

from grsgd.algorithms.base import ALGORITHMS
from grsgd.comm.allreduce.bfloat16 import VARIANTS, bfloat16_allreduce
from grsgd.errors import ConfigError
from grsgd.job.resume import rounded
from grsgd.models.flat import Flat, host_array, host_tensor
from grsgd.models.mixing import add_difference, mix
from grsgd.models.values import array_of, fill
from grsgd.testing.simulated import Ranks
from tests.support.training import config, simulation

CPU = torch.device("cpu")
TRAINED = [
    {"name": "ring_allreduce"},
    {"name": "ring_allreduce", "buckets": 2, "variant": "tree"},
    {"name": "local_sgd", "H": 2},
    {"name": "local_sgd", "H": 2, "beta": 0.5, "variant": "halving-doubling"},
    {"name": "diloco", "H": 2},
    {"name": "diloco", "H": 4, "fragments": 2, "delay": 1, "mix": 0.5},
    {"name": "dpsgd"},
    {"name": "grsgd", "H": 2},
    {"name": "grsgd", "H": 2, "outer_lr": 0.7},
    {"name": "gosgd", "p": 0.5},
    {"name": "adpsgd"},
    {"name": "gossip", "period": 2},
    {"name": "gossip", "adaptive": True, "metric": "cosine", "mode": "push"},
    {"name": "gossip", "adaptive": True, "metric": "layerwise", "mode": "pull"},
    {"name": "lasgd"},
    {"name": "lasgd", "merge": "cocod"},
    {"name": "lasgd", "merge": "anchor"},
    {"name": "parameter_server", "strategy": "bsp"},
    {"name": "parameter_server", "strategy": "bsp", "server": "shared", "servers": 2, "compensation": 0.04},
    {"name": "asgd"},
    {"name": "decoupled", "H": 2},
    {"name": "cssgd", "r": 2},
    {"name": "ssgd"},
]
EQUAL_AT_THE_END = ("ring_allreduce", "local_sgd", "diloco", "cssgd", "ssgd")
"""Algorithms whose replicas are equal after a multiple of H steps, before the last average."""
TIMED = ("grsgd", "gosgd", "lasgd", "adpsgd", "gossip", "parameter_server", "asgd", "decoupled")
"""Algorithms whose messages depend on their times, or have a constant part."""
ROUNDING = 2.0**-8
"""Largest relative error of a number that is rounded to bfloat16 is half of it."""


def random(n: int, size: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(n, size, generator=torch.Generator().manual_seed(seed)).bfloat16()


@pytest.mark.parametrize("n", [1, 2, 3, 5])
@pytest.mark.parametrize("size", [0, 1, 4, 1000])
def test_sums_are_computed_in_float32_and_rounded_once(n, size):
    numbers, scale = random(n, size), 1 / n
    exact = numbers[0].float()
    for other in numbers[1:]:
        exact = exact + other.float()
    expected = host_array(numbers[0] if n == 1 else (exact * scale).bfloat16())
    ranks, xs = Ranks(n), [host_array(x.clone()) for x in numbers]
    ranks.finish([bfloat16_allreduce(comm, x, 1, scale) for comm, x in zip(ranks.comms, xs, strict=True)])
    assert all(np.array_equal(x, expected) for x in xs)
    assert sum(comm.traffic.sent.sum() for comm in ranks.comms) == 2 * (n - 1) * 2 * size


def test_arrays_have_the_bits_of_numbers():
    flat = Flat.zeros(3, torch.bfloat16, CPU)
    flat.tensor.copy_(torch.tensor([1.0, -2.0, 0.1]))
    assert flat.array.dtype == np.uint16 and flat.array[:2].tolist() == [0x3F80, 0xC000]
    kept = array_of(flat)
    assert torch.equal(host_tensor(kept), flat.tensor)
    other = flat.like()
    fill(other, kept)
    assert torch.equal(other.tensor, flat.tensor) and other.tensor.dtype == torch.bfloat16
    assert flat.wide().tensor.dtype == torch.float32


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_the_mean_of_checkpoints_is_rounded_to_their_dtype(dtype):
    mean = np.array([1.0, 1 / 3, -7e-3])
    right = torch.from_numpy(mean).to(dtype)
    assert torch.equal(host_tensor(rounded(mean, host_array(right).dtype)), right)


def test_a_mix_is_rounded_once():
    x, y, z = random(3, 100_000)
    expected = (0.5 * x.float() + 0.25 * y.float() + 0.25 * z.float()).bfloat16()
    mix(x, 0.5, [(0.25, y), (0.25, z)])
    assert torch.equal(x, expected)
    expected = (x.float() + (y.float() - z.float()) * 0.5).bfloat16()
    add_difference(x, y, z, 0.5)
    assert torch.equal(x, expected)


def trained(algorithm, **sections):
    job = simulation(algorithm, 4, steps=12, optimizer={"lr": 0.05, "momentum": 0.9}, **sections)
    initial = job.trainers[0].replica.params.tensor.float().clone()
    assert job.train() == "steps"
    return job, initial


@pytest.mark.parametrize("algorithm", TRAINED, ids=str)
def test_a_training_is_that_of_float32_within_16_bits(algorithm):
    """The difference of the models is at most a few roundings of each of the 12 steps."""
    (found, _), (reference, initial) = (trained(algorithm, dtype=dtype) for dtype in ("bfloat16", "float32"))
    models = [trainer.replica.params.tensor for trainer in found.trainers]
    assert all(model.dtype == torch.bfloat16 and torch.equal(model, models[0]) for model in models)
    right = reference.trainers[0].replica.params.tensor
    assert (right - initial).norm() > 0.1 * initial.norm(), "the training changes the model by more than rounding"
    assert (models[0].float() - right).norm() < 12 * ROUNDING * right.norm()
    sent, of_float32 = (sum(t.comm.traffic.sent.sum() for t in job.trainers) for job in (found, reference))
    if algorithm["name"] in ("cssgd", "ssgd"):
        assert sent == of_float32  # messages are int32
    elif algorithm["name"] not in TIMED:
        assert sent == of_float32 / 2


@pytest.mark.parametrize("algorithm", [each for each in TRAINED if each["name"] in EQUAL_AT_THE_END], ids=str)
def test_replicas_of_synchronous_algorithms_are_equal_bit_for_bit(algorithm, monkeypatch):
    if algorithm.get("mix") or algorithm.get("delay"):
        pytest.skip("replicas keep a part of their own")
    monkeypatch.setattr(ALGORITHMS[algorithm["name"]], "average", lambda self: iter(()))
    job, _ = trained(algorithm, dtype="bfloat16")
    models = [trainer.replica.params.tensor for trainer in job.trainers]
    assert all(torch.equal(model, models[0]) for model in models)


@pytest.mark.parametrize("algorithm", TRAINED[:1] + TRAINED[6:8], ids=str)
def test_times_alone(algorithm):
    assert simulation(algorithm, 3, timing_only=True, dtype="bfloat16").train() == "steps"


@pytest.mark.parametrize("name", sorted(set(ALGORITHMS) - {each["name"] for each in TRAINED}))
def test_other_algorithms_are_refused(name):
    with pytest.raises(ConfigError, match=f"bfloat16 with {name}: only adpsgd, asgd, cssgd, .* of 16 bits") as got:
        config(name, dtype="bfloat16")
    assert "\n" not in str(got.value)


@pytest.mark.parametrize(
    "algorithm, named",
    [
        ({"name": "ring_allreduce", "variant": "swing"}, f"option variant = 'swing'; .*: {', '.join(VARIANTS)}"),
        ({"name": "local_sgd", "variant": "mpi"}, "option variant = 'mpi'"),
        ({"name": "ring_allreduce", "variant": "auto"}, "option variant = 'auto'"),
        ({"name": "ring_allreduce", "compression": "power-sgd"}, "option compression = 'power-sgd'; .*: none"),
        ({"name": "grsgd", "compression": "int8"}, "option compression = 'int8'"),
    ],
    ids=str,
)
def test_options_that_are_refused(algorithm, named):
    with pytest.raises(ConfigError, match=named):
        config(algorithm, dtype="bfloat16")
