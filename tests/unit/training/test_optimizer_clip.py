"""``optimizer.clip`` of a run: what is clipped, in simulated time."""

import numpy as np
import pytest
import torch

from grsgd.config import parse
from grsgd.errors import ConfigError
from grsgd.simulator.simulation import Simulation
from grsgd.testing.simulated import network_of

RATE, CLIP = 0.5, 0.01


def run(algorithm, n=3, steps=1, timing_only=False, clip=CLIP, **optimizer):
    """The simulation after its end, with the models that its ranks had at the start."""
    content = {
        "algorithm": algorithm,
        "model": {"name": "mlp", "hidden": []},
        "data": {"name": "synthetic", "samples": 60, "shape": [1, 4, 4], "classes": 2, "batch_size": 4},
        "optimizer": {"lr": RATE, "clip": clip} | optimizer,
        "train": {"steps": steps, "snapshots": 1},
        "dtype": "float64",
        "device": "cpu",
    }
    job = Simulation(parse(content), n, network_of(), "constant:0.01", timing_only)
    start = job.trainers[0].replica.params
    start = None if timing_only else start.array.copy()
    assert job.train() == "steps"
    return job, start


def models(job):
    return [trainer.replica.params.array for trainer in job.trainers]


@pytest.mark.parametrize("name", ["ring_allreduce", "parameter_server", "ssgd"])
def test_it_is_the_mean_gradient_where_gradients_are_sent(name):
    job, start = run({"name": name, **({"strategy": "bsp"} if name == "parameter_server" else {})})
    assert all((model == models(job)[0]).all() for model in models(job))
    length = np.linalg.norm(models(job)[0] - start)
    assert length == pytest.approx(RATE * CLIP, rel=1e-3)  # torch divides by the norm plus a millionth


def test_it_is_the_ranks_own_gradient_where_models_are_sent():
    job, start = run({"name": "local_sgd", "H": 1}, steps=1)
    length = np.linalg.norm(models(job)[0] - start)
    assert 0 < length < 0.999 * RATE * CLIP  # the mean of three steps of that length, in other directions
    (alone,), start = models(run({"name": "local_sgd"}, 1)[0]), run({"name": "local_sgd"}, 1)[1]
    assert np.linalg.norm(alone - start) == pytest.approx(RATE * CLIP, rel=1e-3)


def test_a_smaller_gradient_stays_as_it_is():
    with_limit, without = run({"name": "ring_allreduce"}, steps=4, clip=1e3), run({"name": "ring_allreduce"}, steps=4)
    plain = run({"name": "ring_allreduce"}, steps=4, clip=1e6)
    assert (models(with_limit[0])[0] == models(plain[0])[0]).all()
    assert (models(without[0])[0] != models(plain[0])[0]).any()


@pytest.mark.parametrize("name", ["ring_allreduce", "grsgd", "cssgd"])
def test_times_alone(name):
    run({"name": name}, timing_only=True)


def test_several_servers_are_refused():
    with pytest.raises(ConfigError, match="optimizer.clip with algorithm.servers > 1: no server sees the whole"):
        run({"name": "parameter_server", "servers": 2})


@pytest.mark.parametrize("value", [0.0, -1.0, float("inf"), "norm"])
def test_values_that_are_refused(value):
    with pytest.raises(ConfigError, match="optimizer.clip"):
        run({"name": "grsgd"}, clip=value)


@pytest.mark.parametrize("name, why", [("lbfgs", "several gradients per step"), ("SparseAdam", "sparse gradients")])
def test_optimizers_that_no_run_can_have(name, why):
    with pytest.raises(ConfigError, match=f"optimizer.name = '{name}': the optimizer .*{why}") as caught:
        run({"name": "grsgd"}, clip=1.0, name=name)
    assert "\n" not in str(caught.value)


def test_clip_is_no_argument_of_torchs():
    """It is taken out before torch sees the rest."""
    optimizer = run({"name": "grsgd"}, 1, name="adamw", weight_decay=0.1)[0].trainers[0].algorithm.optimizer
    assert isinstance(optimizer.optimizer, torch.optim.AdamW) and "clip" not in optimizer.optimizer.defaults
