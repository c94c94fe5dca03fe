"""The comparison of methods after equally many samples."""

import math
from types import SimpleNamespace

import numpy as np
import pytest

from experiments.learning.__main__ import RANKS, ROWS, LearningRun, rows_of
from grsgd.algorithms.central import workers_of


@pytest.mark.parametrize("row", ROWS)
@pytest.mark.parametrize("task", ["gpt", "cnn"])
def test_every_row_can_be_trained_by_eight(task, row):
    setting = LearningRun(task, row, 0.5, 3)
    config = setting.config()
    config.check_ranks(setting.ranks())
    assert workers_of(config.algorithm_class, config.algorithm_options, setting.ranks()) == RANKS
    assert config.seed == 3 and config.algorithm.name == row.partition(",")[0]
    assert config.optimizer.lr == pytest.approx(LearningRun(task, row, 1.0, 0).config().optimizer.lr / 2)


def test_files_are_told_apart():
    settings = [LearningRun(task, row, rate, 0) for task in ("gpt", "cnn") for row in ROWS for rate in (0.5, 1.0)]
    assert len({setting.spec().name("here") for setting in settings}) == len(settings)


def test_the_best_learning_rate_counts():
    """By its mean over the seeds; a run that has diverged is never best."""

    def run(loss):
        attributes = {"metric": "cross_entropy", "final_test_cross_entropy": loss}
        return SimpleNamespace(attributes=attributes, traffic={"sent": np.array([[0, 3_000_000], [3_000_000, 0]])})

    losses = {
        ("ring_allreduce", 1.0): (0.10, 0.14),
        ("ring_allreduce", 2.0): (0.09, math.nan),
        ("dpsgd", 1.0): (0.30, 0.31),
        ("dpsgd", 2.0): (0.126, 0.126),
    }
    runs = {
        LearningRun("cnn", row, rate, seed): run(loss)
        for (row, rate), pair in losses.items()
        for seed, loss in enumerate(pair)
    }
    ring, dpsgd = rows_of(runs)
    assert ring == ["ring_allreduce", "1", "0.120 (0.100 to 0.140)", "+0.0%", "6"]
    assert dpsgd == ["dpsgd", "2", "0.126 (0.126 to 0.126)", "+5.0%", "6"]
