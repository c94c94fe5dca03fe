"""Buffers: what training changes is averaged, what it does not change keeps its bits on all ranks."""

from math import inf

import numpy as np
import pytest
import torch

from grsgd.algorithms import ALGORITHMS
from grsgd.simulator import simulation as simulations
from grsgd.simulator.simulation import Simulation
from grsgd.testing.quadratic import STEPS, Job, uneven
from grsgd.testing.simulated import network_of
from grsgd.training.inputs import build_model
from tests.support.training import CONSTANT, SLOW, config

N = 3
"""The mean of three equal numbers may round."""
CONSTANTS = [0.1, 0.7, -0.0, 1e-30, 1e30, inf, -inf]
LASGD = [
    {"merge": merge} | more
    for merge in ("delta", "overwrite", "cocod", "anchor")
    for more in ({"Hmin": 2}, {"resync": 3, "warmup": 2})
]
AVERAGING = [("lasgd", options) for options in LASGD]
AVERAGING += [("local_sgd", {"H": 3}), ("grsgd", {}), ("ring_allreduce", {}), ("easgd", {})]
SECTIONS = [{"name": name} for name in sorted(ALGORITHMS)] + [{"name": "lasgd"} | options for options in LASGD]


class Normalising(Job):
    """Buffers of which the last one changes in every step, by 1 on rank 0, 2 on rank 1 ..."""

    def __init__(self, name, **options):
        super().__init__(name, N, uneven, network_of(latency="0.6 s"), statistics=len(CONSTANTS) + 1, **options)
        self.start = np.array([*CONSTANTS, 1.0])
        for algorithm in self.algorithms:
            algorithm.replica.buffers.array[:] = self.start
            algorithm.replica.note_buffers()

    def differentiate(self, rank, step):
        super().differentiate(rank, step)
        self.algorithms[rank].replica.buffers.array[-1] += 1 + rank
        self.check(rank)

    def check(self, rank):
        assert self.algorithms[rank].replica.buffers.array[:-1].tobytes() == self.start[:-1].tobytes()


@pytest.mark.parametrize("name, options", AVERAGING)
def test_only_what_changes_is_averaged(name, options):
    job = Normalising(name, **options).train().average()
    for rank in range(N):
        job.check(rank)
    assert np.isfinite(job.X).all() and (job.X == job.X[0]).all()
    statistics = np.array([algorithm.replica.buffers.array[-1] for algorithm in job.algorithms])
    assert (statistics == statistics[0]).all()
    if options.get("merge") == "overwrite":  # which forgets
        assert 1 < statistics[0] < 1 + 2 * STEPS
    else:
        assert abs(statistics[0] - (1 + 2 * STEPS)) < 1e-12


@pytest.mark.parametrize("section", SECTIONS)
def test_whole_runs(section, monkeypatch):
    """Whatever the algorithm, evaluation included: a mask and an encoding of positions are what they were."""
    encoding = torch.linspace(-1, 1, 50).sin()
    mask = torch.full((5, 5), -inf).triu(1)

    def with_buffers(*arguments):
        model = build_model(*arguments)
        model.register_buffer("encoding", encoding.clone())
        model.register_buffer("mask", mask.clone())
        return model

    monkeypatch.setattr(simulations, "build_model", with_buffers)
    job = Simulation(config(section), N, network_of(**SLOW), CONSTANT)
    job.train()
    job.evaluate()
    for trainer in job.trainers:
        assert trainer.replica.params.tensor.isfinite().all()
        found = dict(trainer.replica.model.named_buffers())
        for name, first in (("encoding", encoding), ("mask", mask)):
            assert found[name].numpy().tobytes() == first.numpy().tobytes(), name
