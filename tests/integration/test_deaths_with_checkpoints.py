"""Checkpoints of runs whose processes die, in simulated time: none is mixed, and a whole one exists at each moment."""

from types import SimpleNamespace

import pytest
import torch

from grsgd import load_run
from grsgd.algorithms.central import keeps_step
from grsgd.comm.elastic.meeting import Meeting
from grsgd.comm.pollables import Delay
from grsgd.simulator.network import network
from grsgd.simulator.run import simulate
from grsgd.simulator.simulation import Simulation
from grsgd.training import checkpoint_writer as module
from grsgd.training.checkpoint_file import read
from grsgd.training.checkpoint_folder import as_numbers, checkpoints, file_of, from_numbers, name_of, parts
from grsgd.training.checkpoint_writer import CheckpointWriter
from grsgd.training.checkpoints import Checkpoints, Every
from grsgd.training.loose_checkpoints import LooseCheckpoints
from grsgd.training.run_content import RunContent
from grsgd.training.survival import recovery_from_deaths
from tests.support import training

VARIANTS = [
    {"name": "ring_allreduce"},
    {"name": "local_sgd", "H": 3},
    {"name": "diloco", "H": 4, "fragments": 2, "delay": 1, "outer_momentum": 0.3},
    {"name": "sgp", "tau": 1},
    {"name": "lasgd"},
]


class Found:
    """Checkpoints in a folder after each file that a rank has written."""

    def __init__(self, folder):
        self.folder, self.whole, self.kept = folder, [], []

    def look(self):
        whole = [each for each in checkpoints(parts(self.folder, 0, 1)) if not each.problem]
        assert whole or not self.whole, "a whole checkpoint was removed before the next one was whole"
        self.whole += [each for each in whole[:1] if each not in self.whole]

    def states(self, samples: int, ranks: int) -> list[dict]:
        return [read(self.folder / name_of(samples) / file_of(rank))[1] for rank in range(ranks)]


@pytest.fixture
def found(monkeypatch, tmp_path):
    """Let simulated ranks take a checkpoint every five steps; return the checkpoints that were whole at any moment."""
    found, comms = Found(tmp_path / "kept"), []

    class AtOnce:
        def __init__(self, target, args, daemon):
            self.start = lambda: (target(*args), found.look())

        def is_alive(self):
            return False

    def recovery(simulation, process):
        if not comms:
            comms.extend(simulation._communicators(simulation.uncounted))
        config, context = simulation.config, simulation.contexts[process]
        in_lockstep = keeps_step(config.algorithm_class, config.algorithm_options, simulation.ranks)
        writer = CheckpointWriter(found.folder, RunContent(config))
        if config.traits.survives_deaths == "together":
            meeting = Meeting(comms[process], context.driver, in_lockstep)
            kept = Checkpoints(writer, Every(steps=5), meeting, config.traits.rests_between_steps)
        else:
            kept = LooseCheckpoints(writer, Every(steps=5), comms[process], context.membership)
            found.kept.append(kept)
        return recovery_from_deaths(config.traits, context, simulation.states[process], context.driver, kept)

    monkeypatch.setattr(module, "threading", SimpleNamespace(Thread=AtOnce))
    monkeypatch.setattr(Simulation, "_recovery", recovery)
    return found


def three_die(algorithm, shift: float, found, out):
    """Train on four ranks with a spare; let three processes die, and expect checkpoints of all remaining ranks."""
    die = {"1": 0.75 + shift, "0": 1.5 + shift, "3": 2.2 + shift}
    config = training.config(algorithm, train={"seconds": 3.0, "snapshots": 4}, faults={"die": die})
    simulate(config, 4, network("switch"), out, "lognormal:0.1,0.3", spares=1)
    run = load_run(out)
    assert run.attributes["reason"] == "seconds" and run.attributes["lost"] == [0, 3]
    assert [each.ranks for each in found.whole][-1] == 2 and {4, 2} <= {each.ranks for each in found.whole} <= {4, 3, 2}


@pytest.mark.parametrize("algorithm", VARIANTS, ids=str)
@pytest.mark.parametrize("shift", [0.0, 0.03, 0.06, 0.1])
def test_checkpoints_are_whole_and_of_one_step_with_the_ranks_that_are_left(algorithm, shift, found, tmp_path):
    """A spare takes the place of the first process that dies, and nothing that of the others."""
    three_die(algorithm, shift, found, tmp_path / "run.h5")
    left = [each for each in checkpoints(parts(found.folder, 0, 1)) if not each.problem]
    assert len(left) >= 2 or left[0].ranks == 2
    for each in left:
        states = found.states(each.samples, each.ranks)
        assert algorithm["name"] == "lasgd" or len({state["progress"]["batches"] for state in states}) == 1
        if algorithm["name"] == "ring_allreduce":
            models = [torch.as_tensor(state["model"]["parameters"]) for state in states]
            assert all(torch.equal(model, models[0]) for model in models)
            assert {state["progress"]["samples"] for state in states} == {each.samples}


def test_a_run_that_is_asked_to_end_ends_after_a_checkpoint_also_when_a_process_dies(found, tmp_path, monkeypatch):
    """All ranks are asked, as by a signal, while they regroup."""
    config = training.config({"name": "dpsgd"}, train={"seconds": 9.0, "snapshots": 4}, faults={"die": {"1": 0.75}})

    def regrouped(kept, narrow, giver, was=Checkpoints.regrouped):
        kept.asks_for_checkpoint("terminated (SIGTERM)")
        yield from was(kept, narrow, giver)

    monkeypatch.setattr(Checkpoints, "regrouped", regrouped)
    simulate(config, 4, network("switch"), tmp_path / "run.h5", "lognormal:0.1,0.3")
    run = load_run(tmp_path / "run.h5")
    assert run.attributes["reason"] == "terminated (SIGTERM)" and run.attributes["virtual_seconds"] < 2
    assert found.whole[-1].ranks == 3 and run.attributes["lost"] == [1]


def test_a_run_that_was_asked_to_end_ends_also_if_a_process_dies_while_the_checkpoint_is_written(
    found, tmp_path, monkeypatch
):
    config = training.config({"name": "dpsgd"}, train={"seconds": 9.0, "snapshots": 4}, faults={"die": {"1": 0.75}})

    def before_step(kept, step, was=Checkpoints.before_step):
        if step == 2 and kept.comm.rank == 0:
            kept.asks_for_checkpoint("terminated (SIGTERM)")
        return (yield from was(kept, step))

    def written(kept, was=Checkpoints.written):
        if kept.writer.has_begun:
            yield Delay(1.0)
        yield from was(kept)

    monkeypatch.setattr(Checkpoints, "before_step", before_step)
    monkeypatch.setattr(Checkpoints, "written", written)
    simulate(config, 4, network("switch"), tmp_path / "run.h5", "lognormal:0.1,0.3")
    run = load_run(tmp_path / "run.h5")
    assert run.attributes["reason"] == "terminated (SIGTERM)" and run.attributes["virtual_seconds"] < 3
    assert found.whole[-1].ranks == 3 and run.attributes["lost"] == [1]


LOOSE = [
    {"name": "grsgd"},
    {"name": "grsgd", "merge": "average", "topology": "directed-ring"},
    {"name": "gosgd", "p": 0.5},
    {"name": "gossip"},
    {"name": "gossip", "mode": "push"},
    {"name": "adpsgd"},
]


@pytest.mark.parametrize("algorithm", LOOSE, ids=str)
@pytest.mark.parametrize("shift", [0.0, 0.05])
def test_checkpoints_without_rests_have_the_ranks_that_are_left(algorithm, shift, found, tmp_path):
    three_die(algorithm, shift, found, tmp_path / "run.h5")
    newest = [each for each in checkpoints(parts(found.folder, 0, 1)) if not each.problem][0]
    assert {found.kept[process].last for process in (2, 4)} == {found.folder / name_of(newest.samples)}
    states = found.states(newest.samples, newest.ranks)
    assert len({state["curve"]["name"] for state in states}) == 1
    for state in states:
        assert state["weight"] > 0 and state["progress"]["count_0"] + state["progress"]["count_1"] > 0
        assert abs(state["progress"]["samples"] - newest.samples) < newest.samples / 4


@pytest.mark.parametrize("asks", [1, 0, None])
@pytest.mark.parametrize("algorithm", [LOOSE[0], LOOSE[3]], ids=str)
def test_a_run_without_rests_ends_after_a_checkpoint(algorithm, asks, found, tmp_path, monkeypatch):
    """One rank is asked, as by a signal, or all are, and the rank that leads dies a moment later."""
    config = training.config(algorithm, train={"seconds": 9.0, "snapshots": 4}, faults={"die": {"0": 0.75}})

    def before_step(kept, step, was=LooseCheckpoints.before_step):
        if step == 6 and asks in (None, kept.comm.rank):
            kept.asks_for_checkpoint("terminated (SIGTERM)")
        return (yield from was(kept, step))

    monkeypatch.setattr(LooseCheckpoints, "before_step", before_step)
    simulate(config, 4, network("switch"), tmp_path / "run.h5", "lognormal:0.1,0.3")
    run = load_run(tmp_path / "run.h5")
    assert run.attributes["reason"] == "terminated (SIGTERM)" and run.attributes["virtual_seconds"] < 3
    assert found.whole[-1].ranks in (3, 4)


@pytest.mark.parametrize("names", [[], [(name_of(640), "")], [(name_of(5), "curve-00000000000ff"), (name_of(7), "")]])
def test_names_of_checkpoints_are_told_as_numbers(names):
    assert from_numbers(as_numbers(names)) == names
