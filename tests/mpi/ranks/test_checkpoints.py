"""Runs that are ended after a checkpoint, and go on from it."""

import copy
import errno
import os
import shutil
import signal
import tomllib
from pathlib import Path

import numpy as np
import pytest
import torch

from grsgd import load_run
from grsgd.comm.elastic.meeting import Meeting
from grsgd.config import parse
from grsgd.errors import SetupError
from grsgd.job.keeping import Keeping
from grsgd.job.resume import Resumed
from grsgd.job.run import run
from grsgd.runs.ending import ASKED_TO_END
from grsgd.training import checkpoint_file
from grsgd.training.checkpoint_file import read
from grsgd.training.checkpoint_folder import COMPLETE, KEPT, file_of, name_of
from grsgd.training.checkpoints import Every
from grsgd.training.rank_state import state_of
from grsgd.training.saving import ModelFiles
from tests.support.ending import Ending

STEPS, ENDED_AT = 12, 5
CONFIG = {
    "model": {"name": "mlp", "hidden": [4]},
    "data": {"name": "synthetic", "samples": 120, "shape": [1, 4, 4], "classes": 3, "batch_size": 6},
    "optimizer": {"lr": 0.1, "momentum": 0.9},
    "schedule": {"name": "cosine", "warmup": 0.1},
    "train": {"steps": STEPS, "snapshots": 4},
    "comm": {"timeout": 60.0},  # of ranks that compile, or write, on few cores
}
LONG, LONGER = {"steps": 40, "snapshots": 4}, {"steps": 80, "snapshots": 4}
VARIANTS = {
    "ring_allreduce": {},
    "ring_allreduce, shared": {"variant": "shared"},
    "ring_allreduce, buckets": {"buckets": 3},
    "dpsgd": {},
    "exact_diffusion": {},
    "gradient_tracking": {},
    "relaysgd": {},
    "sgp": {},
    "local_sgd": {"H": 4},
    "local_sgd, the fastest all-reduce": {"H": 4, "variant": "auto"},
    "local_sgd, slow momentum": {"H": 3, "beta": 0.7},
    "diloco": {"H": 4},
    "noloco": {"H": 4},
    "choco_sgd": {"compression": "random-k"},
    "ring_allreduce, compressed": {"compression": "int8"},
    "ring_allreduce, power-sgd": {"compression": "power-sgd", "matrix_rank": 2},
    "dpsgd, late": {"period": 2, "first_exchange": 3},
    "diloco, compressed": {"H": 4, "fragments": 2, "compression": "int4"},
    "diloco, shared": {"H": 4, "fragments": 2, "delay": 1, "variant": "shared"},
    "diloco, streaming": {"H": 4, "fragments": 2, "delay": 1, "mix": 0.2},
    "easgd": {"centre": "allreduce", "period": 3},
    "cssgd": {"r": 1},
    "cssgd, auto": {"r": "auto"},
    "ssgd": {},
    "ssgd, by datagrams": {"transport": "ip-multicast", "rate": "1gbit"},
}


FREE = {
    "grsgd": {},
    "grsgd, plain averages": {"merge": "average", "inbox_full": "merge"},
    "gosgd": {"p": 0.5},
    "adpsgd": {},
    "gossip": {},
    "gossip, push": {"mode": "push", "period": 2},
    "gossip, adaptive": {"adaptive": True, "metric": "layerwise", "target_rate": 0.5},
    "easgd, server": {"period": 2},
    "lasgd": {"Hmin": 2},
    "lasgd, anchor": {"merge": "anchor", "Hmin": 2},
    "sgp, overlapped": {"tau": 1},
    "asgd": {"server": "shared"},
    "decoupled": {"H": 4, "quorum": 1},
    "decoupled, a grace window that is over at once": {"H": 2, "quorum": 1, "grace": 1e-7},
    "asgd, compressed": {"compression": "int4"},
    "grsgd, rounded": {"compression": "int8"},
    "gossip, rounded": {"compression": "int8"},
    "parameter_server, bsp": {"strategy": "bsp", "server": "shared"},
    "parameter_server, ssp": {"strategy": "ssp"},
    "parameter_server, dssp": {"strategy": "dssp", "server": "shared"},
    "parameter_server, rennala": {"strategy": "rennala"},
    "parameter_server, adsp": {"strategy": "adsp"},
}
"""Those of which messages are under way between two steps."""


def samples_of(folder: Path, rank: int) -> set[int]:
    """At how many samples the folder has checkpoints of the rank."""
    return {int(file.parent.name.partition("-")[2]) for file in folder.glob(f"samples-*/{file_of(rank)}")}


def config(variant: str, **tables):
    options = (VARIANTS | FREE)[variant]
    return parse(CONFIG | {"algorithm": {"name": variant.partition(",")[0], **options}} | tables)


@pytest.fixture
def folder(world, tmp_path_factory):
    return world.bcast(tmp_path_factory.mktemp("checkpoints"))


@pytest.fixture
def trained(world, folder):
    """Trains; returns how the run ended, the run, and its final model."""

    def train(name: str, config, keeping=None, ended_at=None, mpi=world):
        line = Ending(ended_at) if ended_at and mpi.rank == 0 else None
        out, models = folder / f"{name}.h5", ModelFiles(str(folder / f"{name}.pt"), None)
        end = run(mpi, config, out, line=line, models=models, keeping=keeping or Keeping())
        mpi.Barrier()
        return end, load_run(out), torch.load(folder / f"{name}.pt", weights_only=True)

    return train


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_run_that_goes_on_is_the_undisturbed_one_bit_for_bit(variant, trained, folder, world):
    if world.size == 1 and "transport" in VARIANTS[variant]:
        pytest.skip("one rank sends nothing, and refuses datagrams")
    kept = folder / "kept"
    end, *_ = trained("ended", config(variant), Keeping(kept, Every(steps=4)), ENDED_AT)
    assert end.reason == ASKED_TO_END and end.checkpoint.parent == kept
    assert len(samples_of(kept, world.rank)) == 2 and max(samples_of(kept, world.rank)) < STEPS * 6 * world.size
    decided = parse(tomllib.loads(load_run(folder / "ended.h5").attributes["config"]))  # of r = "auto", too
    _, undisturbed, expected = trained("whole", decided)
    at = int(end.checkpoint.name.removeprefix("samples-"))
    end, found, model = trained("resumed", config(variant), Keeping(kept, Every(steps=4), kept))
    assert end.reason == "steps" and found.attributes["resumed"] == at
    assert all(torch.equal(model[name], expected[name]) for name in expected)
    for name in found.curve.keys() - {"time"}:
        np.testing.assert_array_equal(found.curve[name], undisturbed.curve[name])
    for name in ("sent", "headers", "messages", "sent_once"):
        np.testing.assert_array_equal(found.traffic[name], undisturbed.traffic[name])
    np.testing.assert_array_equal(found.ranks["steps"], undisturbed.ranks["steps"])
    assert (np.diff(found.curve["time"]) > 0).all()
    assert len(samples_of(kept, world.rank)) <= KEPT


@pytest.mark.parametrize("variant", ["dpsgd", "grsgd"])
def test_after_sigusr2_a_run_takes_a_checkpoint_and_goes_on(variant, folder, world):
    kept, delays = folder / "kept", {str(rank): {"probability": 1.0, "seconds": 0.004} for rank in range(world.size)}
    slow = config(variant, train=LONG, stragglers={"tail": delays})
    line = Ending(ENDED_AT, signal.SIGUSR2)  # all ranks get the signal, as from a launcher
    end = run(world, slow, folder / "run.h5", line=line, keeping=Keeping(kept, Every(seconds=1000.0)))
    world.Barrier()
    steps = load_run(folder / "run.h5").ranks["steps"]
    assert end.reason == "steps" and sum(steps) >= LONG["steps"] * world.size
    samples = samples_of(kept, world.rank)
    assert 1 <= len(samples) <= KEPT and max(samples) < LONG["steps"] * 6 * world.size
    assert end.checkpoint == kept / name_of(max(samples))


def different(one, other, where: str = "") -> list[str]:
    """Return where two states differ."""
    if isinstance(one, dict) and isinstance(other, dict):
        return [
            path for name in {**one, **other} for path in different(one.get(name), other.get(name), f"{where}/{name}")
        ]
    alike = np.array_equal(one, other, equal_nan=True) if isinstance(one, np.ndarray) else repr(one) == repr(other)
    return [] if alike else [f"{where}: {one!r}, {other!r}"]


@pytest.mark.ranks(2, 3, 4, 5)
@pytest.mark.parametrize("variant", FREE)
def test_a_run_whose_messages_are_under_way_goes_on_with_all_of_them(variant, trained, folder, world, monkeypatch):
    kept, restored = folder / "kept", []

    def restore(resumed, trainer):
        curve = original(resumed, trainer)
        restored.append((copy.deepcopy(resumed.state), state_of(trainer)))  # training writes into its arrays
        return curve

    original = Resumed.restore
    monkeypatch.setattr(Resumed, "restore", restore)
    delays = {str(rank): {"probability": 1.0, "seconds": 0.004} for rank in range(world.size)}
    steps = 400  # so many that all hear in time that they are to end
    slow = config(variant, train={"steps": steps, "snapshots": 4}, stragglers={"tail": delays})
    end, ended, _ = trained("ended", slow, Keeping(kept, Every(steps=2)), ENDED_AT)
    assert end.reason == ASKED_TO_END and end.checkpoint.parent == kept
    _, state, _ = read(end.checkpoint / file_of(world.rank))
    if "a" in state["algorithm"]:
        assert sum(world.allgather(state["algorithm"]["a"])) == pytest.approx(world.size, rel=1e-12)
    end, found, model = trained("resumed", slow, Keeping(kept, Every(steps=2), kept))
    ((before, after),) = restored
    for tree in before, after:
        del tree["progress"]["elapsed"]
    del before["curve"]["name"], before["curve"]["digests"], before["code"]
    assert different(before, after) == []
    assert end.reason == "steps" and found.attributes["resumed"] == sum(world.allgather(before["totals"]["samples"]))
    # A worker of decoupled takes the others to be as far as itself: the run ends up to a round early.
    least = steps - slow.algorithm.H if variant.startswith("decoupled") else steps
    assert found.curve["samples"][-1] >= least * 6 * len(found.ranks["steps"].nonzero()[0])
    assert (found.ranks["steps"] >= ended.ranks["steps"]).all()
    assert found.traffic["sent"].sum() > ended.traffic["sent"].sum()
    assert all(tensor.isfinite().all() for tensor in model.values())


@pytest.mark.ranks(2, 3, 4)
def test_other_ranks_go_on_from_the_average(trained, folder, world):
    kept, few = folder / "kept", world.Split(world.rank == 0)
    _, ended, average = trained("ended", config("dpsgd"), Keeping(kept, Every(steps=4)), ENDED_AT)
    if world.rank:
        _, found, _ = trained("resumed", config("dpsgd"), Keeping(None, None, kept), mpi=few)
        samples = ended.curve["samples"][-1] // (6 * few.size) * 6 * few.size
        assert found.attributes["ranks"] == few.size and found.curve["samples"][0] == samples
        assert found.curve["samples"][-1] == STEPS * 6 * few.size or samples >= STEPS * 6 * few.size
        np.testing.assert_allclose(found.curve["test_accuracy"][0], ended.curve["test_accuracy"][-1])
    few.Free()


def test_a_checkpoint_in_time_is_taken_by_all_at_once(trained, folder, world):
    kept = folder / "kept"
    end, *_ = trained(
        "timed", config("dpsgd", train={"seconds": 1.5, "snapshots": 2}, schedule={}), Keeping(kept, Every(seconds=0.2))
    )
    assert end.reason == "seconds" and end.checkpoint is not None
    assert len(set(map(frozenset, world.allgather(samples_of(kept, world.rank))))) == 1


@pytest.mark.ranks(2, 3)
@pytest.mark.parametrize("left", [0, 1])
def test_a_part_of_a_first_checkpoint_is_none(left, trained, folder, world):
    """A job that was killed while it wrote its first one begins anew; one whose files were lost does not."""
    kept = folder / "kept"
    trained("ended", config("dpsgd"), Keeping(kept, Every(steps=4)), ENDED_AT)
    _, _, expected = trained("whole", config("dpsgd"))
    if world.rank == 0:
        older, newer = (kept / name_of(samples) for samples in sorted(samples_of(kept, 0)))
        shutil.rmtree(older)
        for rank in {*range(world.size)} - {left}:
            (newer / file_of(rank)).unlink()
    world.Barrier()
    with pytest.raises(SetupError, match=r": rank-000\d.ckpt of \d ranks is missing; no checkpoint is "):
        trained("other", config("dpsgd"), Keeping(kept, Every(steps=4), kept))
    if world.rank == 0:
        (kept / COMPLETE).unlink()
    world.Barrier()
    _, found, model = trained("anew", config("dpsgd"), Keeping(kept, Every(steps=4), kept))
    assert "resumed" not in found.attributes and all(torch.equal(model[name], expected[name]) for name in expected)
    assert len(samples_of(kept, world.rank)) <= KEPT


@pytest.mark.ranks(3, 4)
def test_the_newest_whole_checkpoint_is_gone_on_from_whatever_number_of_ranks_has_taken_it(trained, folder, world):
    kept, few = folder / "kept", world.Split(world.rank < 2)
    trained("first", config("dpsgd", train=LONG), Keeping(kept, Every(steps=1000)), ENDED_AT)
    if world.rank < 2:
        trained("fewer", config("dpsgd", train=LONG), Keeping(kept, Every(steps=8), kept), mpi=few)
    world.Barrier()
    newest = world.bcast(max(samples_of(kept, 0)))
    end, found, model = trained("again", config("dpsgd", train=LONGER), Keeping(kept, Every(steps=8), kept))
    assert found.attributes["resumed"] == newest and end.reason == "steps"
    assert np.isfinite(found.curve["test_accuracy"]).all()
    # A job of more ranks that is killed while it writes its first checkpoint: the one before is there for all.
    older, newer = world.bcast(sorted(samples_of(kept, 0)))
    if world.rank == 0:
        (kept / name_of(newer) / file_of(world.size - 1)).unlink()
    world.Barrier()
    if world.rank < 2:
        _, found, _ = trained("less", config("dpsgd", train=LONGER), Keeping(kept, Every(steps=1000), kept), mpi=few)
        assert found.attributes["resumed"] == older
    few.Free()


@pytest.mark.ranks(2, 3)
def test_a_damaged_checkpoint_is_gone_on_from_the_one_before_it(trained, folder, world, capfd):
    kept, copy = folder / "kept", folder / "copy"
    trained("ended", config("dpsgd"), Keeping(kept, Every(steps=4)), ENDED_AT)
    _, whole, expected = trained("whole", config("dpsgd"))
    older, newer = sorted(samples_of(kept, world.rank))
    if world.rank == 0:
        with open(kept / name_of(newer) / file_of(1), "r+b") as file:
            file.seek(3000)
            file.write(b"damage")
        shutil.copytree(kept, copy)
    world.Barrier()
    capfd.readouterr()
    _, found, model = trained("resumed", config("dpsgd"), Keeping(kept, Every(steps=4), kept))
    assert found.attributes["resumed"] == older and all(torch.equal(model[name], expected[name]) for name in expected)
    np.testing.assert_array_equal(found.curve["test_accuracy"], whole.curve["test_accuracy"])
    if world.rank == 0:
        assert "rank-0001.ckpt: damaged: its digest differs: the run uses an older checkpoint" in capfd.readouterr().err
        (snapshots,) = copy.glob("curve-*/rank-0001.bin")
        snapshots.write_bytes(bytes(snapshots.stat().st_size))
    world.Barrier()
    _, found, model = trained("shorter", config("dpsgd"), Keeping(None, None, copy))
    assert all(torch.equal(model[name], expected[name]) for name in expected)
    assert any("rank-0001.bin is damaged" in warning for warning in found.attributes["warnings"])
    places = [list(whole.curve["samples"]).index(samples) for samples in found.curve["samples"]]
    assert 0 < len(places) < len(whole.curve["samples"])
    np.testing.assert_array_equal(found.curve["test_accuracy"], whole.curve["test_accuracy"][places])


IN_STEP = [
    {"strategy": "bsp"},
    {"strategy": "bsp", "server": "shared"},
    {"strategy": "adsp", "s": 0, "smax": 0},
    {"strategy": "m_sync", "fastest": 2},
]


@pytest.mark.ranks(3)
@pytest.mark.parametrize("options", IN_STEP)
def test_checkpoints_change_no_update_where_workers_keep_step(options, trained, folder, world):
    algorithm = {"name": "parameter_server"} | options
    if options.get("server") == "shared":
        algorithm["servers"] = 2
    slow = {str(rank): {"probability": 1.0, "seconds": 0.002 * rank} for rank in range(1, world.size)}
    same = config("dpsgd", algorithm=algorithm, stragglers={"tail": slow})
    _, whole, expected = trained("whole", same)
    kept = folder / "kept"
    end, *_ = trained("ended", same, Keeping(kept, Every(steps=3)), ENDED_AT)
    assert end.reason == ASKED_TO_END
    _, found, model = trained("resumed", same, Keeping(kept, Every(steps=3), kept))
    np.testing.assert_array_equal(found.ranks["steps"], whole.ranks["steps"])
    assert all(torch.equal(model[name], expected[name]) for name in expected)


@pytest.mark.parametrize("name", ["dpsgd", "grsgd"])
def test_a_run_that_is_made_longer_has_a_curve_to_its_end(name, trained, folder, world):
    kept, steps = folder / "kept", 60
    # Ranks that run free are to hear of checkpoints before their last step.
    delays = {str(rank): {"probability": 1.0, "seconds": 0.004} for rank in range(world.size)}
    made = {"train": {"steps": steps, "snapshots": 4}, "stragglers": {"tail": delays}}
    _, first, _ = trained("first", config(name, **made), Keeping(kept, Every(steps=20)))
    at = max(samples_of(kept, world.rank))
    longer = config(name, **made | {"train": {"steps": 2 * steps, "snapshots": 10}})
    _, found, _ = trained("longer", longer, Keeping(None, None, kept))
    before = first.curve["samples"][:-1]  # the last one is at the end that the first run has had
    before = before[before <= at]
    # A rank that runs free hears of a checkpoint before its next step, so it may pass a mark next to it after its copy.
    sure = before if name == "dpsgd" else before[before < at - 6 * world.size]
    np.testing.assert_array_equal(found.curve["samples"][: len(sure)], sure)
    passed = np.arange(1, len(before) + 1) * steps * 6 * world.size / 4
    assert (found.curve["samples"][: len(before)] >= passed).all()
    marks, later = np.arange(1, 11) * 2 * steps * 6 * world.size / 10, found.curve["samples"][len(before) :]
    marks = marks[marks > at]
    # Ranks that run free may pass several marks in a step.
    assert len(later) == len(marks) and (later >= marks).all() if name == "dpsgd" else len(later) > len(marks) / 2


@pytest.mark.parametrize(
    ("tables", "named"),
    [({"seed": 1}, "seed: 0, now 1"), ({"optimizer": {"lr": 0.2, "momentum": 0.9}}, "optimizer.lr: 0.1, now 0.2")],
)
def test_what_does_not_fit_is_refused_on_all_ranks(tables, named, trained, folder):
    kept = folder / "kept"
    trained("ended", config("dpsgd"), Keeping(kept, Every(steps=4)))
    with pytest.raises(SetupError, match=named):
        trained("other", config("dpsgd", **tables), Keeping(kept, Every(steps=4), kept))
    with pytest.raises(SetupError, match="checkpoints of another run"):
        trained("other", config("dpsgd"), Keeping(kept, Every(steps=4)))
    with pytest.raises(SetupError, match="holds no checkpoint that this version can read"):
        trained("other", config("dpsgd"), Keeping(None, None, folder / "none"))
    evicting = {"name": "asgd", "server": "shared", "on_lost_worker": "evict"}
    with pytest.raises(SetupError, match="not with algorithm.on_lost_worker"):
        trained("other", config("dpsgd", algorithm=evicting), Keeping(folder / "new", Every(steps=4)))


@pytest.mark.parametrize("in_lockstep", [False, True])
def test_who_asks_when_nobody_steps_any_more_leaves_no_message(in_lockstep, comm, driver):
    meeting = Meeting(comm, driver, in_lockstep)
    if comm.rank == comm.size - 1:
        meeting.ask()
    if comm.rank != 0:  # which is at its end before it can hear
        meeting.watch(7)
    driver.run(meeting.end())
    comm.backend.mpi.Barrier()
    assert not comm.backend.mpi.Iprobe()


def test_a_checkpoint_that_cannot_be_written_ends_no_run(trained, folder, world, capfd, monkeypatch):
    """The disk of rank 0 is full at the first one, and an object does not fit into the second; a folder in which
    nothing can be written is refused."""
    kept, write = folder / "kept", checkpoint_file.write
    problems = [OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), TypeError("a set")] if world.rank == 0 else []

    def written(*arguments):
        if problems:
            raise problems.pop(0)
        write(*arguments)

    monkeypatch.setattr(checkpoint_file, "write", written)
    end, found, _ = trained("run", config("dpsgd", train=LONG), Keeping(kept, Every(steps=12)))
    assert end.reason == "steps" and end.checkpoint == kept / name_of(36 * 6 * world.size)
    assert "warnings" not in found.attributes  # which are of the last one
    assert samples_of(kept, world.rank) == {36 * 6 * world.size}
    if world.rank == 0:
        said = capfd.readouterr().err
        for why in ("No space left on device", "a set"):
            assert f"rank 0: a checkpoint could not be written, training goes on: {kept}: {why}" in said
    with pytest.raises(SetupError, match="run.h5: no checkpoint can be written there: File exists"):
        trained("other", config("dpsgd"), Keeping(folder / "run.h5", Every(steps=4)))
