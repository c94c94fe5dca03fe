"""The order in which loops call an algorithm's hooks, and what a trainer asks of its recovery."""

from types import SimpleNamespace

import pytest

from grsgd.algorithms.lifecycle import Lifecycle
from grsgd.simulator.simulation import Simulation
from grsgd.testing.simulated import network_of
from grsgd.training.recovery import Recovery
from grsgd.training.regroup import Regrouping
from grsgd.training.succession import Succession
from tests.support.training import CONSTANT, config


def noting(*names):
    """Return an object with these methods, schedules that wait once, and the list of calls that they note."""
    calls = []

    def method(name):
        def schedule():
            calls.append(name)
            yield name

        return schedule

    return SimpleNamespace(**{name: method(name) for name in names}), calls


def test_an_algorithm_starts_once_and_begins_again_after_each_rest():
    algorithm, calls = noting("start", "begin", "drain", "average")
    lifecycle = Lifecycle(algorithm)
    for hook in ("start", "start", "begin", "begin", "rest", "begin", "drain", "average"):
        for waited in getattr(lifecycle, hook)():
            assert waited == calls[-1]
    assert calls == ["start", "begin", "drain", "begin", "drain", "average"]


def test_an_algorithm_that_begins_has_started():
    algorithm, calls = noting("start", "begin")
    list(Lifecycle(algorithm).begin())
    assert calls == ["start", "begin"]


class Noted(Recovery):
    """Notes which methods the trainer calls."""

    def __init__(self):
        super().__init__()
        self.calls = []

    def __getattribute__(self, name):
        found = super().__getattribute__(name)
        if callable(found) and not name.startswith("_") and name != "go_on":
            super().__getattribute__("calls").append(name)
        return found


def test_a_trainer_tells_its_recovery_of_each_stage(monkeypatch):
    recoveries = []

    def recovery(simulation, process):
        recoveries.append(Noted())
        return recoveries[-1]

    monkeypatch.setattr(Simulation, "_recovery", recovery)
    Simulation(config("dpsgd", train={"steps": 2, "snapshots": 1}), 2, network_of(), CONSTANT).train()
    of_a_step = ["before_step", "guarded", "gradient", "guarded"]
    expected = ["context_of", "attach", "started", "train", "begun", *of_a_step, *of_a_step]
    expected += ["leave_steps", "at_rest", "average", "ended"]
    for each in recoveries:
        assert "watch" in each.calls
        assert [name for name in each.calls if name != "watch"] == expected


@pytest.mark.parametrize(("name", "kind"), [("grsgd", Succession), ("ring_allreduce", Regrouping)])
def test_each_kind_of_survival_has_its_recovery(name, kind):
    dying = config(name, train={"steps": 2, "snapshots": 1}, faults={"die": {"0": 99.0}})
    simulation = Simulation(dying, 3, network_of(), CONSTANT)
    assert [type(trainer.recovery) for trainer in simulation.trainers] == [kind] * 3
