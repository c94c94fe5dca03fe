"""Learning-rate schedules as functions of the samples of all ranks together."""

import itertools
import math
import threading

import pytest
import torch

from grsgd.config.sections import Schedule
from grsgd.training.progress import Progress
from grsgd.training.schedule import ScheduledOptimizer, factor

EPOCH, END = 1000, 10_000


def at(samples, end=END, **schedule):
    return factor(Schedule(**schedule), samples, EPOCH, end)


def test_constant():
    assert at(0) == at(5000) == at(10**9) == at(3, end=None) == 1


def test_warmup_is_linear_from_zero():
    assert at(0, warmup=2.0) == 0
    assert at(500, warmup=2.0) == 0.25
    assert at(1999, warmup=2.0) == pytest.approx(0.9995)
    assert at(2000, warmup=2.0) == at(9000, warmup=2.0) == 1


def test_steps():
    schedule = dict(name="step", milestones=[3.0, 6.0], factor=0.1)
    assert at(0, **schedule) == at(2999, **schedule) == 1
    assert at(3000, **schedule) == at(5999, **schedule) == pytest.approx(0.1)
    assert at(6000, **schedule) == at(10**6, end=None, **schedule) == pytest.approx(0.01)


def test_steps_in_any_order():
    assert at(4000, name="step", milestones=[6.0, 3.0], factor=0.5) == 0.5


def test_steps_after_warmup():
    schedule = dict(name="step", milestones=[1.0], factor=0.1, warmup=2.0)
    assert at(500, **schedule) == 0.25
    assert at(1500, **schedule) == pytest.approx(0.075)
    assert at(2000, **schedule) == pytest.approx(0.1)


def test_cosine():
    assert at(0, name="cosine") == 1
    assert at(2500, name="cosine") == pytest.approx((1 + math.cos(math.pi / 4)) / 2)
    assert at(5000, name="cosine") == pytest.approx(0.5)
    assert at(END, name="cosine") == at(2 * END, name="cosine") == 0


def test_cosine_begins_after_warmup():
    schedule = dict(name="cosine", warmup=2.0)
    assert at(1000, **schedule) == 0.5
    assert at(2000, **schedule) == 1
    assert at(6000, **schedule) == pytest.approx(0.5)
    assert at(END, **schedule) == 0


def test_warmup_as_long_as_the_run():
    assert at(5000, name="cosine", warmup=10.0) == 0.5
    assert math.isfinite(at(END, name="cosine", warmup=10.0))


@pytest.mark.parametrize("name", ["constant", "step", "cosine"])
def test_between_zero_and_one(name):
    for samples in range(0, 2 * END, 97):
        assert 0 <= at(samples, name=name, warmup=1.5, milestones=[2.0] if name == "step" else []) <= 1


# ---- the optimizer that follows a schedule


def scheduled(**schedule):
    x = torch.nn.Parameter(torch.zeros(1))
    x.grad = torch.ones(1)
    progress = Progress(None, None, END, None, 1, samples_per_step=100)
    clock = itertools.count().__next__
    optimizer = torch.optim.SGD([x], lr=0.5)
    return x, progress, ScheduledOptimizer(optimizer, Schedule(**schedule), progress, EPOCH, clock)


def test_a_step_is_taken_at_the_rate_that_belongs_to_the_progress():
    x, progress, optimizer = scheduled(name="step", milestones=[1.0], factor=0.1)
    optimizer.step()
    assert x.item() == -0.5
    progress.note_steps(10)
    assert progress.samples == EPOCH
    optimizer.step()
    assert x.item() == pytest.approx(-0.55) and optimizer.param_groups[0]["lr"] == pytest.approx(0.05)


def test_a_constant_rate_may_be_changed_by_others():
    x, _, optimizer = scheduled()
    optimizer.param_groups[0]["lr"] = 2.0
    optimizer.step()
    assert x.item() == -2.0


def test_steps_of_another_thread_take_none_of_this_ones_time():
    _, _, optimizer = scheduled()
    optimizer.step()
    assert optimizer.seconds == 1
    other = threading.Thread(target=optimizer.step)
    other.start()
    other.join()
    assert optimizer.seconds == 1
