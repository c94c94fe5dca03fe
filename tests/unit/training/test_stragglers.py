"""Injected delays."""

import numpy as np
import pytest

from grsgd.config.sections import Stragglers
from grsgd.training.stragglers import DelayModel


def model(rank=1, seed=0, **kinds):
    return DelayModel(Stragglers(**kinds), rank, seed)


def test_no_delay_by_default():
    assert [model().delay(step, 0.5) for step in range(10)] == [0] * 10


def test_slowdown_is_a_factor():
    slow = model(slowdown={1: 3.0})
    assert slow.delay(0, 0.5) == slow.delay(7, 0.5) == 1.0
    assert slow.delay(0, 0.0) == 0
    assert model(rank=0, slowdown={1: 3.0}).delay(0, 0.5) == 0


def test_pause_comes_every_so_many_steps():
    pausing = model(pause={1: {"every": 3, "seconds": 2.0}})
    assert [pausing.delay(step, 0.1) for step in range(7)] == [0, 0, 2, 0, 0, 2, 0]
    assert model(rank=2, pause={1: {"every": 1, "seconds": 2.0}}).delay(0, 0.1) == 0


def test_tail_is_random_with_the_given_probability_and_mean():
    tail = model(tail={1: {"probability": 0.25, "seconds": 2.0}})
    delays = np.array([tail.delay(step, 0.1) for step in range(4000)])
    late = delays[delays > 0]
    assert 0.22 < len(late) / len(delays) < 0.28
    assert late.mean() == pytest.approx(2.0, rel=0.1)
    assert late.std() == pytest.approx(2.0, rel=0.15)  # exponential: as large as the mean


def test_tail_is_keyed_by_seed_rank_and_step():
    everywhere = {rank: {"probability": 1.0, "seconds": 1.0} for rank in range(3)}

    def delays(rank, seed):
        return [model(rank, seed, tail=everywhere).delay(step, 0.1) for step in range(5)]

    assert delays(1, 0) == delays(1, 0)
    assert delays(1, 0) != delays(2, 0)
    assert delays(1, 0) != delays(1, 1)
    assert len(set(delays(1, 0))) == 5
    again = model(1, 0, tail=everywhere)
    assert [again.delay(step, 0.9) for step in reversed(range(5))] == delays(1, 0)[::-1]  # in whatever order


def test_all_kinds_act_together():
    tail = {"probability": 1.0, "seconds": 1.0}
    alone = model(tail={1: tail}).delay(1, 0.5)
    together = model(slowdown={1: 2.0}, tail={1: tail}, pause={1: {"every": 2, "seconds": 10.0}})
    assert together.delay(1, 0.5) == pytest.approx(0.5 + alone + 10)
    assert together.delay(0, 0.5) < 0.5 + 10
