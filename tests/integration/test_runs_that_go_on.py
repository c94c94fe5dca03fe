"""Runs with checkpoints, and runs that go on from these, on ranks that are threads: states of every kind of algorithm.

On real ranks: ``tests/mpi/ranks/test_checkpoints.py``.
"""

import copy
import errno
import os

import numpy as np
import pytest
import torch

from grsgd.job import run as runs
from grsgd.job.keeping import Keeping
from grsgd.job.resume import Resumed
from grsgd.runs.run_file import load_run
from grsgd.training import checkpoint_file
from grsgd.training.checkpoint_folder import COMPLETE, file_of, name_of
from grsgd.training.checkpoints import KEPT, Every
from grsgd.training.rank_state import state_of
from grsgd.training.saving import ModelFiles
from tests.support.runs_on_threads import allow_threads
from tests.support.threads import on_threads
from tests.support.training import config

STEPS, EVERY, RANKS = 14, 4, 3
IN_LOCKSTEP = {
    "ring_allreduce": {},
    "gradient_tracking": {},
    "diloco": {"H": 2, "fragments": 2, "delay": 1},
    "choco_sgd": {"compression": "random-k"},
    "easgd": {"centre": "allreduce", "period": 3},
    "noloco": {"H": 2},
    "relaysgd": {},
    "cssgd": {"r": 2},
}
FREE = {
    "grsgd": {},
    "lasgd": {"Hmin": 2},
    "gossip": {"adaptive": True, "target_rate": 0.5},
    "adpsgd": {},
    "easgd": {"period": 2},
    "decoupled": {"H": 2, "quorum": 1},
    "parameter_server": {"strategy": "adsp"},
    "asgd": {"server": "shared"},
}


@pytest.fixture
def trained(monkeypatch, tmp_path):
    """``trained(name, config, keeping)``: how the ranks ended, the run, and its final model."""
    allow_threads(monkeypatch)

    def train(name, chosen, keeping):
        out, models = tmp_path / f"{name}.h5", ModelFiles(str(tmp_path / f"{name}.pt"), None)

        def work(mpi):
            return runs.run(mpi, chosen, out, models=models, keeping=keeping)

        endings = on_threads(monkeypatch, RANKS, work)
        return endings, load_run(out), torch.load(tmp_path / f"{name}.pt", weights_only=True)

    return train


def kept_samples(folder) -> list[int]:
    """At how many samples of all ranks the whole checkpoints of a folder were taken."""
    return sorted(int(file.parent.name.partition("-")[2]) for file in folder.glob(f"samples-*/{file_of(RANKS - 1)}"))


@pytest.mark.parametrize("name", IN_LOCKSTEP)
def test_a_run_goes_on_bit_for_bit_from_its_last_checkpoint(name, trained, tmp_path):
    kept, chosen = tmp_path / "kept", config({"name": name} | IN_LOCKSTEP[name], steps=STEPS)
    endings, whole, expected = trained("whole", chosen, Keeping(kept, Every(steps=EVERY)))
    at = endings[0].checkpoint
    assert {(ending.reason, ending.checkpoint) for ending in endings} == {("steps", at)}
    samples = kept_samples(kept)
    assert len(samples) == KEPT and samples[-1] == whole.curve["samples"][-1] * 12 // STEPS
    assert at.name.endswith(str(samples[-1])) and (kept / COMPLETE).exists()
    assert {path.name for path in kept.glob("curve-*")} and len(list(kept.glob("samples-*"))) == KEPT
    endings, found, model = trained("resumed", chosen, Keeping(kept, Every(steps=EVERY), kept))
    assert {ending.reason for ending in endings} == {"steps"} and found.attributes["resumed"] == samples[-1]
    assert all(torch.equal(model[key], expected[key]) for key in expected)
    for column in found.curve.keys() - {"time"}:
        np.testing.assert_array_equal(found.curve[column], whole.curve[column])
    for counter in ("sent", "headers", "messages", "sent_once"):
        np.testing.assert_array_equal(found.traffic[counter], whole.traffic[counter])
    assert (np.diff(found.curve["time"]) > 0).all()


def without_times(state: dict) -> str:
    """Return a state as a text, but for the parts that no checkpoint has."""
    state = copy.deepcopy(state)
    state["progress"].pop("elapsed", None)
    state.pop("code", None)
    for name in ("name", "digests"):
        state["curve"].pop(name, None)
    with np.printoptions(threshold=100_000, floatmode="unique"):
        return repr(state)


@pytest.mark.parametrize("name", FREE)
def test_all_that_a_rank_knows_of_messages_under_way_comes_back(name, trained, tmp_path, monkeypatch):
    kept, restored = tmp_path / "kept", []
    original = Resumed.restore

    def restore(resumed, trainer):
        curve = original(resumed, trainer)
        restored.append((without_times(resumed.state), without_times(state_of(trainer))))
        return curve

    monkeypatch.setattr(Resumed, "restore", restore)
    slow = {"tail": {"1": {"probability": 1.0, "seconds": 0.002}}}
    chosen = config({"name": name} | FREE[name], steps=60, stragglers=slow)
    endings, whole, _ = trained("whole", chosen, Keeping(kept, Every(steps=2)))
    samples = kept_samples(kept)
    assert {ending.reason for ending in endings} == {"steps"} and len(samples) == KEPT
    endings, found, model = trained("resumed", chosen, Keeping(kept, Every(steps=2), kept))
    assert {ending.reason for ending in endings} == {"steps"} and found.attributes["resumed"] == samples[-1]
    assert len(restored) == RANKS and all(before == after for before, after in restored)
    assert found.curve["samples"][-1] >= samples[-1] and found.traffic["sent"].sum() > 0
    assert all(tensor.isfinite().all() for tensor in model.values())


def test_a_checkpoint_that_cannot_be_written_ends_no_run(trained, tmp_path, capsys, monkeypatch):
    """The disk of rank 0 is full at the first one, and an object does not fit into the second."""
    kept, write = tmp_path / "kept", checkpoint_file.write
    problems = [OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), TypeError("a set")]

    def written(temporary, header, *others):
        if header.rank == 0 and problems:
            raise problems.pop(0)
        write(temporary, header, *others)

    monkeypatch.setattr(checkpoint_file, "write", written)
    endings, found, _ = trained("run", config("dpsgd", steps=STEPS), Keeping(kept, Every(steps=EVERY)))
    last = kept / name_of(RANKS * 4 * 12)
    assert {(ending.reason, ending.checkpoint) for ending in endings} == {("steps", last)}
    assert "warnings" not in found.attributes, "the last checkpoint could be written"
    assert [path.name for path in kept.glob("samples-*")] == [last.name] and len(list(last.glob("*"))) == RANKS
    said = capsys.readouterr().err
    for why in ("No space left on device", "a set"):
        assert said.count(f"rank 0: a checkpoint could not be written, training goes on: {kept}: {why}") == 1


def test_the_last_checkpoint_that_cannot_be_written_is_a_warning(trained, tmp_path, monkeypatch):
    def refused(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(checkpoint_file, "write", refused)
    endings, found, _ = trained("run", config("dpsgd", steps=6), Keeping(tmp_path / "kept", Every(steps=EVERY)))
    assert {(ending.reason, ending.checkpoint) for ending in endings} == {("steps", None)}
    assert "the last checkpoint could not be written: " in str(found.attributes["warnings"])
