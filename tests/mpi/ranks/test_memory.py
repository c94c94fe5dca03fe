"""Checkpoints in the memory of hosts. Each rank stands for a host of its own."""

import os
import shutil
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from grsgd import load_run
from grsgd.config import parse
from grsgd.errors import SetupError
from grsgd.job import host_memory, memory_resume, places
from grsgd.job.host_memory import HostFolder
from grsgd.job.keeping import Keeping
from grsgd.job.restarts import Loss, variables
from grsgd.job.run import run
from grsgd.training import memory_folder
from grsgd.training.checkpoint_file import Header, read_header, write
from grsgd.training.checkpoint_folder import file_of, name_of
from grsgd.training.checkpoints import Every
from grsgd.training.saving import ModelFiles
from tests.support.ending import Ending

pytestmark = pytest.mark.ranks(2, 3)
CONFIG = {
    "algorithm": {"name": "ring_allreduce"},
    "model": {"name": "mlp", "hidden": [4]},
    "data": {"name": "synthetic", "samples": 120, "shape": [1, 4, 4], "classes": 3, "batch_size": 6},
    "optimizer": {"lr": 0.1, "momentum": 0.9},
    "train": {"steps": 24, "snapshots": 3},
    "comm": {"timeout": 60.0},
}


@pytest.fixture
def folder(world, tmp_path_factory, monkeypatch):
    """A folder that all ranks share, in which each of them has the memory of a host."""
    monkeypatch.setattr(places, "hosts", lambda mpi: [f"host{rank}" for rank in range(mpi.size)])
    for name, value in variables([], "5f3a").items():
        monkeypatch.setenv(name, value)
    return world.bcast(tmp_path_factory.mktemp("memory"))


def files(folder: Path) -> set[tuple[int, int]]:
    """Samples and rank of each state in the memory of this host."""
    return {(header.samples, header.rank) for header in memory_folder.headers(folder)}


def test_a_job_goes_on_from_the_memory_of_other_hosts(world, folder, monkeypatch):
    """The last host is lost. The run is the undisturbed one, bit for bit."""
    kept, config = folder / "kept", parse(CONFIG)
    own = memory_folder.path_of(folder, "5f3a", f"host{world.rank}")

    def train(name: str, keeping: Keeping, ended_at: int | None = None):
        line = Ending(ended_at) if ended_at and world.rank == 0 else None
        models = ModelFiles(str(folder / f"{name}.pt"), None)
        run(world, config, folder / f"{name}.h5", line=line, models=models, keeping=keeping)
        world.Barrier()
        return load_run(folder / f"{name}.h5"), torch.load(folder / f"{name}.pt", weights_only=True)

    undisturbed, expected = train("whole", Keeping(kept, Every(steps=100), None, 3, folder))
    assert not own.exists(), "removed at the end"
    shutil.rmtree(kept) if world.rank == 0 else None
    world.Barrier()
    with monkeypatch.context() as dying:
        dying.setattr(memory_folder, "remove", lambda folder: None)
        train("ended", Keeping(kept, Every(steps=100), None, 3, folder), 10)
    there = files(own)
    states = {rank for _, rank in there}
    assert states == {world.rank, (world.rank - 1) % world.size} and len(there) <= 2 * len(states)
    if world.rank == world.size - 1:
        shutil.rmtree(own)
        shutil.rmtree(next(kept.glob("samples-*")))  # which the end of the run has left
    world.Barrier()
    monkeypatch.setenv("GRSGD_RESTARTS", variables([Loss(0.0, "host")])["GRSGD_RESTARTS"])
    found, model = train("resumed", Keeping(kept, Every(steps=100), None, 3, folder))
    at = found.attributes["resumed"]
    assert 0 < at <= 10 * 6 * world.size and at % (3 * 6 * world.size) == 0
    assert f"from step {at // 6 // world.size} in memory, on {world.size} ranks" in found.attributes["restarts"][0]
    assert all(torch.equal(model[name], expected[name]) for name in expected)
    for name in found.curve.keys() - {"time"}:
        np.testing.assert_array_equal(found.curve[name], undisturbed.curve[name])
    assert not own.exists()


@pytest.fixture
def find(world, folder, monkeypatch):
    """Puts states into the memory of hosts, and looks for the newest checkpoint there."""
    own = folder / f"host{world.rank}"
    own.mkdir()
    read = {}

    def loaded(place, checkpoint, rank, ranks):
        needed = {rank} if checkpoint.ranks == ranks else {0} if rank else {*range(checkpoint.ranks)}
        read["id"] = {read_header(place / name_of(checkpoint.samples) / file_of(each)).id for each in needed}
        return SimpleNamespace(samples=checkpoint.samples)

    monkeypatch.setattr(memory_resume, "load", loaded)
    monkeypatch.setattr(memory_resume, "with_all_ranks", lambda mpi, timeout, resumed, ranks: resumed)
    monkeypatch.setattr(memory_resume, "replace", lambda resumed, **_: resumed)

    def looked(states, least=0, ranks=world.size):
        """``states`` are samples, id, rank, number of ranks, and host."""
        shutil.rmtree(own)
        own.mkdir()
        for samples, id, rank, count, host in states:
            if host == world.rank:
                path = own / name_of(samples) / file_of(rank)
                path.parent.mkdir(exist_ok=True)
                write(path, Header(id.removesuffix("!"), samples, count, rank), {"a": np.arange(9)}, "")
                if id.endswith("!"):
                    path.write_bytes(path.read_bytes().replace(b"\3", b"\4"))
        world.Barrier()
        hosts = [f"host{rank}" for rank in range(world.size)]
        found = memory_resume.find(world, HostFolder(own, hosts), folder, 60.0, ranks, least)
        return found and (found.samples, *read["id"])

    looked.names = lambda: sorted(path.name for path in own.iterdir())
    return looked


def test_only_a_whole_checkpoint_of_one_step_is_used(world, find, capfd):
    n, ranks = world.size, range(world.size)
    whole = [(12, "a", rank, n, (rank + 1) % n) for rank in ranks]
    assert find([]) is None
    assert find(whole) == (12, "a") and find(whole, least=12) is None
    assert find([*whole, *((24, "b", rank, n, rank) for rank in ranks[1:])]) == (12, "a"), "a state is missing"
    assert find.names() == [name_of(12)], "the newer states have made room"
    mixed = [(24, "b" if rank else "c", rank, n, rank) for rank in ranks]
    assert find([*whole, *mixed]) == (12, "a"), "of two checkpoints"
    damaged = [(24, "b!" if rank == 0 else "b", rank, n, rank) for rank in ranks]
    assert find([*whole, *damaged]) == (12, "a")
    copy = (24, "b", 0, n, n - 1)
    assert find([*whole, *damaged, copy]) == (24, "b"), "the other copy is undamaged"
    fewer = [(36, "d", rank, n + 1, 1) for rank in range(n + 1)]
    assert find([*whole, *fewer]) == (36, "d"), "of another number of ranks"
    world.Barrier()
    if world.rank == 0:
        line = f"{name_of(24)} in memory: the state of rank 0 of {n} is on no host, or damaged: the run uses an older"
        assert line in capfd.readouterr().err


def test_a_job_without_room_or_without_restarts_is_refused(world, folder, monkeypatch):
    keeping = Keeping(folder / "kept", Every(steps=100), None, 3, folder)
    monkeypatch.setattr(memory_folder, "room", lambda folder: 10)
    with pytest.raises(SetupError, match="--memory: .*10 B are free: enlarge the folder"):
        run(world, parse(CONFIG), folder / "run.h5", keeping=keeping)
    world.Barrier()
    assert not [*folder.glob("grsgd-*")]
    monkeypatch.delenv("GRSGD_JOB")
    with pytest.raises(SetupError, match="--memory: only in a job of `grsgd run --restarts N`"):
        run(world, parse(CONFIG), folder / "run.h5", keeping=keeping)
    monkeypatch.setenv("GRSGD_JOB", "5f3a")
    with pytest.raises(SetupError, match="--memory: only with --checkpoint FOLDER"):
        run(world, parse(CONFIG), folder / "run.h5", keeping=keeping._replace(folder=None))
    monkeypatch.setattr(host_memory, "survives", lambda config: True)
    with pytest.raises(SetupError, match="--memory: not in a run that survives the death of processes"):
        run(world, parse(CONFIG), folder / "run.h5", keeping=keeping)
    assert os.environ["GRSGD_JOB"]
