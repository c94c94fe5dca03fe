"""When to exchange models, without any exchange."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from simulated import seeded

from grsgd.algorithms.gossip import GossipOptions
from grsgd.trigger import LOWER, RAISE, Parts, Period, Trigger, trigger

UNIT = torch.tensor([3.0, 4.0], dtype=torch.float64)  # of norm 5
ALL = np.array([True])


def made(x=UNIT, layers=(1, 1), eta_0=1.0, **options) -> Trigger:
    return Trigger(GossipOptions(adaptive=True, **options), x, list(layers), eta_0)


def triggers(trigger, growth, steps, eta=lambda k: 1.0):
    """The steps at which it is due, for a model whose distance from r grows by ``growth`` a step."""
    x, due = UNIT.clone(), []
    for k in range(1, steps + 1):
        x += growth * torch.tensor([1.0, 0.0], dtype=torch.float64)
        mask = trigger.due(x, k, eta(k))
        if mask.any():
            due.append(k)
            trigger.begun(x, k, eta(k), mask)
            trigger.exchanged(x, k, mask)
    return due


def test_parts():
    parts = Parts([2, 3, 1])
    mask = np.array([True, False, True])
    assert list(parts.chosen(mask)) == [(slice(0, 2), slice(0, 2)), (slice(2, 3), slice(5, 6))]
    assert parts.size(mask) == 3 and parts.fraction(mask) == 0.5
    assert len(parts) == 3 and parts.size(~mask) == 3


@pytest.mark.parametrize("period", [1, 3])
def test_period(period):
    due = [k for k in range(1, 10) if Period(period, UNIT).due(UNIT, k, 1.0).any()]
    assert due == list(range(period, 10, period))


@pytest.mark.parametrize(
    "metric, moved, change",
    [
        ("l2rel", [3.0, 5.0], 1 / 5),
        ("normdiff", [4.0, 3.0], 0.0),
        ("normdiff", [6.0, 8.0], 1.0),
        ("cosine", [6.0, 8.0], 0.0),
        ("cosine", [-4.0, 3.0], 1.0),
    ],
)
def test_metrics(metric, moved, change):
    x = torch.tensor(moved, dtype=torch.float64)
    assert made(metric=metric, theta=0.1).change(x) == [pytest.approx(change, abs=1e-12)]


def test_layers_have_references_of_their_own():
    trigger = made(metric="layerwise", theta=0.5)
    x = torch.tensor([3.0, 7.0], dtype=torch.float64)
    assert trigger.change(x) == [0.0, 0.75]
    mask = trigger.due(x, 1, 1.0)
    assert mask.tolist() == [False, True]
    trigger.exchanged(x, 1, mask)
    assert trigger.r.tolist() == [3.0, 7.0] and trigger.k_last.tolist() == [0, 1]
    x[0] = 6.0
    assert trigger.due(x, 2, 1.0).tolist() == [True, False]


def test_a_layer_of_zeros_is_due_as_soon_as_it_moves():
    trigger = made(torch.zeros(2), metric="layerwise", theta=1e6)
    assert trigger.due(torch.tensor([0.0, 1e-3]), 1, 1.0).tolist() == [False, True]


def test_due_at_theta():
    assert triggers(made(theta=0.3), growth=0.5, steps=5)[0] == 3  # 1.5 of 5


def test_the_reference_is_the_model_after_the_exchange():
    trigger = made(theta=0.5)
    trigger.exchanged(2 * UNIT, 1, np.array([True]))
    assert not trigger.due(2 * UNIT, 2, 1.0).any()
    assert trigger.due(UNIT, 3, 1.0).any()


def test_kmin_and_kmax():
    assert triggers(made(theta=0.0, kmin=3), growth=1.0, steps=9) == [3, 6, 9]
    assert triggers(made(theta=1.0, kmax=4), growth=0.0, steps=9) == [4, 8]


def test_kmax_counts_from_any_exchange_and_kmin_from_own_ones():
    trigger = made(theta=0.0, kmin=3)
    trigger.exchanged(UNIT, 2, np.array([True]))  # begun by another rank
    assert trigger.due(UNIT, 3, 1.0).any()
    trigger = made(theta=1.0, kmax=4)
    trigger.exchanged(UNIT, 2, np.array([True]))
    assert [k for k in range(3, 7) if trigger.due(UNIT, k, 1.0).any()] == [6]


def test_theta_follows_the_learning_rate():
    trigger = made(theta=0.4, eta_0=2.0)
    assert trigger.due(1.1 * UNIT, 1, eta=0.5).any() and not trigger.due(1.1 * UNIT, 2, eta=0.6).any()
    assert not made(theta=0.4, eta_0=2.0, scale_theta_with_lr=False).due(1.1 * UNIT, 1, eta=0.5).any()
    assert not made(theta=0.4, eta_0=0.0).due(1.1 * UNIT, 1, eta=0.0).any()


def test_automatic_theta_starts_with_the_change_after_the_first_period():
    trigger = made(target=0.1)
    trigger.exchanged(2 * UNIT, 3, np.array([True]))  # of another rank: does not move the reference yet
    due = [k for k in range(1, 11) if trigger.due(UNIT * (1 + 0.01 * k), k, 1.0).any()]
    assert due == [10]
    trigger.begun(UNIT * 1.1, 10, 1.0, ALL)
    assert trigger.theta == pytest.approx(0.1 * RAISE)


def test_automatic_theta_is_raised_and_lowered():
    trigger = made(target=0.25)
    trigger.theta = 1.0
    for k in range(1, 5):
        assert not trigger.due(UNIT, k, 1.0).any()
    assert trigger.theta == LOWER
    assert trigger.due(3 * UNIT, 5, 1.0).any()
    trigger.begun(3 * UNIT, 5, 1.0, ALL)
    assert trigger.theta == pytest.approx(LOWER * RAISE)


@pytest.mark.parametrize("theta", [None, 0.5])
def test_an_exchange_that_is_left_out_changes_nothing(theta):
    trigger = made(target=0.25, kmin=4)
    trigger.theta = theta
    for k in (4, 5, 6):
        assert trigger.due(UNIT * k, k, 1.0).any()
        assert (trigger.theta, trigger.k_begun, trigger.quiet) == (theta, 0, 0)
    trigger.begun(UNIT * 6, 6, 1.0, ALL)
    assert trigger.theta == pytest.approx(5 * RAISE if theta is None else theta * RAISE)
    assert not trigger.due(UNIT * 1e3, 9, 1.0).any() and trigger.due(UNIT * 1e3, 10, 1.0).any()


def test_a_number_as_theta_stays():
    trigger = made(theta=0.1)
    triggers(trigger, growth=0.2, steps=100)
    assert trigger.theta == 0.1


@settings(seeded, max_examples=10)
@given(
    target=st.sampled_from([0.02, 0.08, 0.3]),
    growth=st.floats(1e-4, 0.3),
    decay=st.sampled_from([1.0, 0.999]),
    metric=st.sampled_from(["l2rel", "layerwise"]),
)
def test_automatic_theta_keeps_the_rate(target, growth, decay, metric):
    """Whatever the pace of the model, from the start on, and also if it follows the learning rate."""
    trigger = made(target=target, kmax=10**6, metric=metric)
    noise = np.random.default_rng(0)
    x, sent = UNIT.clone(), 0.0
    steps = 2000
    for k in range(1, steps + 1):
        eta = decay**k
        x += eta * growth * torch.from_numpy(noise.uniform(0, 1, 2)) / 100
        mask = trigger.due(x, k, eta)
        if mask.any():
            trigger.begun(x, k, eta, mask)
            trigger.exchanged(x, k, mask)
        sent += trigger.parts.fraction(mask)
    assert 0.7 * target * steps < sent < 1.25 * target * steps


@seeded
@given(theta=st.floats(0, 0.5), kmin=st.integers(1, 5), more=st.integers(0, 20), seed=st.integers(0, 100))
def test_between_exchanges_the_change_is_below_theta(theta, kmin, more, seed):
    """But for steps within kmin of the last one; and no more than kmax steps pass."""
    kmax = kmin + more
    trigger = made(theta=theta, kmin=kmin, kmax=kmax)
    random = np.random.default_rng(seed)
    x = UNIT.clone()
    for k in range(1, 200):
        x += torch.from_numpy(random.standard_normal(2)) / 10
        mask = trigger.due(x, k, 1.0)
        if mask.any():
            trigger.begun(x, k, 1.0, mask)
            trigger.exchanged(x, k, mask)
        elif k - trigger.k_begun >= kmin:
            assert trigger.change(x)[0] < theta
        assert k - trigger.k_last[0] < kmax


def test_options():
    with pytest.raises(ValidationError, match="kmin = 5: must not be more than kmax = 4"):
        GossipOptions(kmin=5, kmax=4)
    for options in ({"theta": -0.1}, {"theta": "often"}, {"target": 0.0}, {"metric": "l1"}):
        with pytest.raises(ValidationError):
            GossipOptions(**options)
    assert GossipOptions(theta=0).theta == 0


def test_content_is_needed():
    with pytest.raises(ValueError, match="adaptive = true: needs the models' content"):
        made(torch.zeros(3, device="meta"))


def test_which_trigger():
    from grsgd.replica import Replica

    replica = Replica(torch.nn.Linear(3, 2))
    assert isinstance(trigger(GossipOptions(period=7), replica, 0.1), Period)
    adaptive = trigger(GossipOptions(adaptive=True, metric="layerwise"), replica, 0.1)
    assert adaptive.parts.sizes.tolist() == [6, 2]
