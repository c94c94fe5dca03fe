"""When to exchange models, without any exchange."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from grsgd.algorithms.adaptive import LOWER, RAISE, AdaptiveTrigger, PeriodicTrigger, Slices, make_trigger
from grsgd.algorithms.gossip import GossipOptions
from tests.support.seeded import seeded

UNIT = torch.tensor([3.0, 4.0], dtype=torch.float64)  # of norm 5
ALL = np.array([True])


def made(x=UNIT, layers=(1, 1), eta_0=1.0, **options) -> AdaptiveTrigger:
    return AdaptiveTrigger(GossipOptions(adaptive=True, **options), x, list(layers), eta_0)


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


def test_slices():
    slices = Slices([2, 3, 1])
    mask = np.array([True, False, True])
    assert list(slices.selected(mask)) == [(slice(0, 2), slice(0, 2)), (slice(2, 3), slice(5, 6))]
    assert slices.size(mask) == 3 and slices.fraction(mask) == 0.5
    assert len(slices) == 3 and slices.size(~mask) == 3


@pytest.mark.parametrize("period", [1, 3])
def test_period(period):
    due = [k for k in range(1, 10) if PeriodicTrigger(period, UNIT).due(UNIT, k, 1.0).any()]
    assert due == list(range(period, 10, period))


@pytest.mark.parametrize(
    "metric, moved, change",
    [
        ("relative", [3.0, 5.0], 1 / 5),
        ("norm", [4.0, 3.0], 0.0),
        ("norm", [6.0, 8.0], 1.0),
        ("cosine", [6.0, 8.0], 0.0),
        ("cosine", [-4.0, 3.0], 1.0),
    ],
)
def test_metrics(metric, moved, change):
    x = torch.tensor(moved, dtype=torch.float64)
    assert made(metric=metric, threshold=0.1).change(x) == [pytest.approx(change, abs=1e-12)]


def test_layers_have_references_of_their_own():
    trigger = made(metric="layerwise", threshold=0.5)
    x = torch.tensor([3.0, 7.0], dtype=torch.float64)
    assert trigger.change(x) == [0.0, 0.75]
    mask = trigger.due(x, 1, 1.0)
    assert mask.tolist() == [False, True]
    trigger.exchanged(x, 1, mask)
    assert trigger.r.tolist() == [3.0, 7.0] and trigger.k_last.tolist() == [0, 1]
    x[0] = 6.0
    assert trigger.due(x, 2, 1.0).tolist() == [True, False]


def test_a_layer_of_zeros_is_due_as_soon_as_it_moves():
    trigger = made(torch.zeros(2), metric="layerwise", threshold=1e6)
    assert trigger.due(torch.tensor([0.0, 1e-3]), 1, 1.0).tolist() == [False, True]


def test_due_at_threshold():
    assert triggers(made(threshold=0.3), growth=0.5, steps=5)[0] == 3  # 1.5 of 5


def test_the_reference_is_the_model_after_the_exchange():
    trigger = made(threshold=0.5)
    trigger.exchanged(2 * UNIT, 1, np.array([True]))
    assert not trigger.due(2 * UNIT, 2, 1.0).any()
    assert trigger.due(UNIT, 3, 1.0).any()


def test_min_interval_and_max_interval():
    assert triggers(made(threshold=0.0, min_interval=3), growth=1.0, steps=9) == [3, 6, 9]
    assert triggers(made(threshold=1.0, max_interval=4), growth=0.0, steps=9) == [4, 8]


def test_max_interval_counts_from_any_exchange_and_min_interval_from_own_ones():
    trigger = made(threshold=0.0, min_interval=3)
    trigger.exchanged(UNIT, 2, np.array([True]))  # begun by another rank
    assert trigger.due(UNIT, 3, 1.0).any()
    trigger = made(threshold=1.0, max_interval=4)
    trigger.exchanged(UNIT, 2, np.array([True]))
    assert [k for k in range(3, 7) if trigger.due(UNIT, k, 1.0).any()] == [6]


def test_threshold_follows_the_learning_rate():
    trigger = made(threshold=0.4, eta_0=2.0)
    assert trigger.due(1.1 * UNIT, 1, eta=0.5).any() and not trigger.due(1.1 * UNIT, 2, eta=0.6).any()
    assert not made(threshold=0.4, eta_0=2.0, scale_threshold_with_lr=False).due(1.1 * UNIT, 1, eta=0.5).any()
    assert not made(threshold=0.4, eta_0=0.0).due(1.1 * UNIT, 1, eta=0.0).any()


def test_automatic_threshold_starts_with_the_change_after_the_first_period():
    trigger = made(target_rate=0.1)
    trigger.exchanged(2 * UNIT, 3, np.array([True]))  # of another rank: does not move the reference yet
    due = [k for k in range(1, 11) if trigger.due(UNIT * (1 + 0.01 * k), k, 1.0).any()]
    assert due == [10]
    trigger.begun(UNIT * 1.1, 10, 1.0, ALL)
    assert trigger.threshold == pytest.approx(0.1 * RAISE)


def test_automatic_threshold_is_raised_and_lowered():
    trigger = made(target_rate=0.25)
    trigger.threshold = 1.0
    for k in range(1, 5):
        assert not trigger.due(UNIT, k, 1.0).any()
    assert trigger.threshold == LOWER
    assert trigger.due(3 * UNIT, 5, 1.0).any()
    trigger.begun(3 * UNIT, 5, 1.0, ALL)
    assert trigger.threshold == pytest.approx(LOWER * RAISE)


@pytest.mark.parametrize("threshold", [None, 0.5])
def test_an_exchange_that_is_left_out_changes_nothing(threshold):
    trigger = made(target_rate=0.25, min_interval=4)
    trigger.threshold = threshold
    for k in (4, 5, 6):
        assert trigger.due(UNIT * k, k, 1.0).any()
        assert (trigger.threshold, trigger.k_begun, trigger.quiet_steps) == (threshold, 0, 0)
    trigger.begun(UNIT * 6, 6, 1.0, ALL)
    assert trigger.threshold == pytest.approx(5 * RAISE if threshold is None else threshold * RAISE)
    assert not trigger.due(UNIT * 1e3, 9, 1.0).any() and trigger.due(UNIT * 1e3, 10, 1.0).any()


def test_a_number_as_threshold_stays():
    trigger = made(threshold=0.1)
    triggers(trigger, growth=0.2, steps=100)
    assert trigger.threshold == 0.1


@settings(seeded, max_examples=10)
@given(
    target_rate=st.sampled_from([0.02, 0.08, 0.3]),
    growth=st.floats(1e-4, 0.3),
    decay=st.sampled_from([1.0, 0.999]),
    metric=st.sampled_from(["relative", "layerwise"]),
)
def test_automatic_threshold_keeps_the_rate(target_rate, growth, decay, metric):
    """Whatever the pace of the model, from the start on, and also if it follows the learning rate."""
    trigger = made(target_rate=target_rate, max_interval=10**6, metric=metric)
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
        sent += trigger.slices.fraction(mask)
    assert 0.7 * target_rate * steps < sent < 1.25 * target_rate * steps


@seeded
@given(threshold=st.floats(0, 0.5), min_interval=st.integers(1, 5), more=st.integers(0, 20), seed=st.integers(0, 100))
def test_between_exchanges_the_change_is_below_threshold(threshold, min_interval, more, seed):
    """But for steps within min_interval of the last one; and no more than max_interval steps pass."""
    max_interval = min_interval + more
    trigger = made(threshold=threshold, min_interval=min_interval, max_interval=max_interval)
    random = np.random.default_rng(seed)
    x = UNIT.clone()
    for k in range(1, 200):
        x += torch.from_numpy(random.standard_normal(2)) / 10
        mask = trigger.due(x, k, 1.0)
        if mask.any():
            trigger.begun(x, k, 1.0, mask)
            trigger.exchanged(x, k, mask)
        elif k - trigger.k_begun >= min_interval:
            assert trigger.change(x)[0] < threshold
        assert k - trigger.k_last[0] < max_interval


def test_options():
    with pytest.raises(ValidationError, match="min_interval = 5: must not be more than max_interval = 4"):
        GossipOptions(min_interval=5, max_interval=4)
    for options in ({"threshold": -0.1}, {"threshold": "often"}, {"target_rate": 0.0}, {"metric": "l1"}):
        with pytest.raises(ValidationError):
            GossipOptions(**options)
    assert GossipOptions(threshold=0).threshold == 0


def test_content_is_needed():
    with pytest.raises(ValueError, match="adaptive = true: needs the models' content"):
        made(torch.zeros(3, device="meta"))


def test_which_trigger():
    from grsgd.models.replica import Replica

    replica = Replica(torch.nn.Linear(3, 2))
    assert isinstance(make_trigger(GossipOptions(period=7), replica, 0.1), PeriodicTrigger)
    adaptive = make_trigger(GossipOptions(adaptive=True, metric="layerwise"), replica, 0.1)
    assert adaptive.slices.sizes.tolist() == [6, 2]
