"""The share of the steps of living ranks that are in the model."""

from types import SimpleNamespace

import pytest

from grsgd.training.participation import left_out, participation
from grsgd.training.record import RankMeasurements


def record(steps, left_out=0):
    return SimpleNamespace(measured={"steps": steps}, left_out=left_out)


def test_the_share_is_that_of_the_ranks_that_live():
    assert participation([record(10), record(10)]) == 1
    assert participation([record(0, left_out=5), record(10), record(40)]) == pytest.approx(0.9)
    assert participation([record(10), record(40, left_out=20)], lost=[1]) == 1
    assert participation([record(3, left_out=4)]) == 0, "a signal came between two counts"
    assert participation([RankMeasurements.of_nothing()]) is None


def test_steps_without_samples_and_those_that_the_algorithm_knows_of():
    trainer = SimpleNamespace(
        totals=SimpleNamespace(steps=13, samples=48),
        config=SimpleNamespace(data=SimpleNamespace(batch_size=4)),
        algorithm=SimpleNamespace(left_out=2),
    )
    assert left_out(trainer) == 3
