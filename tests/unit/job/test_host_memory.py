"""Folder in the memory of a host during one attempt: its lock after a restart, and its states that are not needed."""

import threading
from contextlib import nullcontext
from types import SimpleNamespace

import pytest

from grsgd.errors import ConfigError
from grsgd.job import host_memory, keeping, memory_resume
from grsgd.job.host_memory import HostFolder, held
from grsgd.job.keeping import Keeping, find_resumed
from grsgd.job.restarts import Loss, variables
from grsgd.training import memory_folder
from grsgd.training.checkpoint_folder import name_of

MPI = SimpleNamespace(rank=0)
CONFIG = SimpleNamespace(comm=SimpleNamespace(timeout=60.0))


@pytest.fixture
def restarted(monkeypatch):
    """Let this process be a rank of a job's first start, or of a restart."""
    for module in (host_memory, keeping):
        monkeypatch.setattr(module.launch, "collective_setup", lambda *_: nullcontext())
    monkeypatch.setattr(host_memory.places, "hosts", lambda mpi: ["a"])

    def start(losses: int):
        for name, value in variables([Loss(0.0, "host b")] * losses, "5f3a").items():
            monkeypatch.setenv(name, value)

    return start


def test_a_restart_waits_longer_for_ranks_of_the_last_attempt(restarted, tmp_path, monkeypatch):
    """A stopped rank holds the lock."""
    monkeypatch.setattr(host_memory, "LOCK_SECONDS", 0.0)
    monkeypatch.setattr(host_memory, "LEASE_SECONDS", 60.0)
    stopped = memory_folder.take(memory_folder.path_of(tmp_path, "5f3a", "a"))
    (memory_folder.path_of(tmp_path, "5f3a", "a") / name_of(12)).mkdir()
    monkeypatch.setattr(memory_folder, "headers", lambda folder: ["a state"])
    restarted(0)
    with pytest.raises(ConfigError, match="ranks of this job still live"), held(MPI, CONFIG, tmp_path):
        pass
    restarted(1)
    killed = threading.Timer(0.3, stopped.close)
    killed.start()
    with held(MPI, CONFIG, tmp_path) as memory:
        assert memory.folder.exists()
    killed.join()


@pytest.mark.parametrize("in_memory, left", [(True, {name_of(12)}), (False, set())])
def test_only_the_checkpoint_from_which_the_job_goes_on_stays(restarted, in_memory, left, tmp_path, monkeypatch):
    restarted(1)
    for samples in (6, 12, 24):
        (tmp_path / name_of(samples)).mkdir()
    resumed = SimpleNamespace(
        samples=12, memory=tmp_path, configured=lambda config, ranks: config, other_code=lambda config: []
    )
    monkeypatch.setattr(memory_resume, "find", lambda *_: resumed if in_memory else None)
    for hosts, expected in ((["b", "b"], {name_of(samples) for samples in (6, 12, 24)}), (["a", "b"], left)):
        mpi = SimpleNamespace(rank=1 if hosts == ["b", "b"] else 0)
        find_resumed(mpi, CONFIG, Keeping(memory=3, host=HostFolder(tmp_path, hosts)), 2)
        assert {path.name for path in tmp_path.iterdir()} == expected
