"""The curve of a run shows what its final model would be at each mark."""

import numpy as np
import pytest
import torch

from grsgd.testing.simulated import network_of
from grsgd.training import evaluation as evaluate
from grsgd.training.evaluation import score
from grsgd.training.snapshots import common_marks
from tests.support.training import SLOW, simulation


@pytest.mark.parametrize("name, options", [("grsgd", {}), ("gosgd", {"p": 0.8}), ("sgp", {"tau": 2}), ("dpsgd", {})])
def test_the_curve_shows_what_the_final_model_would_be(name, options, monkeypatch):
    """Models count with their weights at that moment; at the last mark the average is the final model."""
    job = simulation(
        {"name": name} | options,
        3,
        network_of(**SLOW | {"latency": "12 ms"}),
        dtype="float64",
        stragglers={"slowdown": {0: 4.0}},
        train={"steps": 20, "snapshots": 5, "evaluate_replicas": False},
    )
    taken = [[] for _ in job.trainers]
    for trainer, own in zip(job.trainers, taken, strict=True):

        def noting(marks=1, trainer=trainer, own=own, take=trainer.take_snapshot):
            algorithm = trainer.algorithm
            weight = getattr(algorithm, "a", getattr(algorithm, "w", 1.0))
            own.extend([(weight, algorithm.x.array.copy())] * marks)
            take(marks)

        trainer.take_snapshot = noting
    assert job.train() == "steps"
    final = job.trainers[0].replica.params.array.copy()
    seen = []

    def noted(model, split, task, indices, device):
        seen.append(torch.nn.utils.parameters_to_vector(model.parameters()).detach().numpy())
        return score(model, split, task, indices, device)

    monkeypatch.setattr(evaluate, "score", noted)
    job.evaluate()
    marks = common_marks([trainer.snapshots.numbers for trainer in job.trainers])
    seen = np.array(seen).reshape(len(marks) + 1, 3, -1)
    for mark, models in zip(marks, seen, strict=False):
        weights, replicas = zip(*(own[mark] for own in taken), strict=True)
        expected = np.average(replicas, 0, weights)
        assert np.abs(models - expected).max() < 1e-14
        assert name == "dpsgd" or mark == 0 or len(set(weights)) > 1
    assert np.abs(seen[-2] - final).max() < 1e-14 and (seen[-1] == final).all()
