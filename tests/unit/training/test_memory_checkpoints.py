"""States that a rank writes to memory, sends to another host, and keeps for another rank."""

import errno
import threading
from collections import deque
from types import SimpleNamespace

import numpy as np
import pytest

from grsgd.errors import ConfigError
from grsgd.training import memory_checkpoints, memory_folder
from grsgd.training.checkpoint_file import Header, verify, write
from grsgd.training.checkpoint_folder import file_of, name_of
from grsgd.training.memory_checkpoints import MemoryCheckpoints
from grsgd.training.memory_folder import Neighbours

OWN, SOURCE = 1, 0


class ToItself:
    """A communicator whose messages come back to their sender; a message is complete when it is received."""

    rank = OWN

    def __init__(self):
        self.sent = deque()

    def Isend(self, array, dest, tag):
        self.sent.append((tag, array.copy()))
        return SimpleNamespace(Test=lambda: True)

    Issend = Isend

    def Irecv(self, array, source, tag):
        def come():
            if not self.sent:
                return False
            came, content = self.sent.popleft()
            assert came == tag and content.size == array.size
            array[:] = content
            return True

        return SimpleNamespace(Test=come)


class Moved:
    """A driver whose schedules go on whenever they are asked whether they have ended."""

    def start(self, schedule):
        waited = []

        def ended():
            while waited != [None]:
                if waited and not waited[0].Test():
                    return False
                waited[:] = [next(schedule, None)]
            return True

        return SimpleNamespace(Test=ended)


class Writer:
    """A writer whose thread writes a state; it fails with ``problem``."""

    problem, is_writing, state_bytes = "", False, 1000

    def begin(self, header, curve, before, folder):
        path = folder / name_of(header.samples) / file_of(header.rank)
        if not self.problem:
            path.parent.mkdir(parents=True)
            write(path, header, {"a": np.arange(1000)}, "")
        thread = threading.Thread(target=before or (lambda: None))
        thread.start()
        thread.join()
        return thread

    def written(self):
        yield from ()


@pytest.fixture
def memory(tmp_path, monkeypatch):
    monkeypatch.setattr(memory_checkpoints, "PIECE", 3000)
    neighbours = Neighbours(SOURCE, (SOURCE,), True, 2)
    return MemoryCheckpoints(Writer(), tmp_path, 5, ToItself(), Moved(), neighbours)


def taken(memory, samples: int):
    """Take a checkpoint, and let all of its messages come."""
    memory.begin(Header("5f3a", samples, 2, OWN), None)
    while memory.is_under_way:
        pass
    assert list(memory.over()) and not memory.comm.sent


def kept(memory) -> list[str]:
    return sorted(str(path.relative_to(memory.folder)) for path in memory.folder.glob("samples-*/*"))


def test_a_state_comes_whole_and_older_ones_are_removed_later(memory):
    files = [[f"{name_of(samples)}/{file_of(rank)}" for rank in (SOURCE, OWN)] for samples in (12, 24)]
    taken(memory, 12)
    assert kept(memory) == files[0] and verify(memory.folder / files[0][0]).id == "5f3a"
    assert not memory.lacks_part
    memory.conclude(True, name_of(24))
    taken(memory, 24)
    assert kept(memory) == files[0] + files[1]
    memory.conclude(True, name_of(36))
    memory.conclude(True, name_of(36))
    assert kept(memory) == files[1] and memory.warnings() == []


def test_a_state_that_was_not_written_is_not_sent(memory):
    taken(memory, 12)
    memory.conclude(True, name_of(24))
    memory.writer.problem = "no room"
    taken(memory, 24)
    assert memory.lacks_part
    assert memory.warnings() == ["the last checkpoint in memory is not whole: no room"]
    memory.conclude(False, name_of(36))
    assert {name.split("/")[0] for name in kept(memory)} == {name_of(12)}, "the whole one stays"


def test_a_state_that_does_not_fit_is_received_and_not_kept(memory, monkeypatch, capsys):
    def full(place):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(memory_checkpoints, "make_place", full)
    taken(memory, 12)
    assert kept(memory) == [f"{name_of(12)}/{file_of(OWN)}"] and memory.lacks_part
    line = "rank 1: a neighbour's state could not be kept, training goes on: "
    assert capsys.readouterr().err.count(line) == 1 and "No space left" in memory.warnings()[0]
    memory.conclude(False, name_of(24))
    assert kept(memory) == []


def test_too_little_room(memory, monkeypatch):
    monkeypatch.setattr(memory_folder, "room", lambda folder: 1999)
    with pytest.raises(OSError, match="--memory-folder"):
        memory._check_room()
    array = SimpleNamespace(nbytes=300)
    replica = SimpleNamespace(params=SimpleNamespace(array=array), buffers=SimpleNamespace(array=array))
    with pytest.raises(ConfigError, match="^--memory: .*: the states of this host.s ranks and of their neigh"):
        memory.attach(SimpleNamespace(replica=replica))
    monkeypatch.setattr(memory_folder, "room", lambda folder: 2400)
    memory.attach(SimpleNamespace(replica=replica))
    memory._check_room()


def test_states_of_the_last_attempt_make_room(memory, monkeypatch):
    """The folder has room for exactly two checkpoints, and a state of the last attempt takes a quarter of this room."""
    left = memory.folder / name_of(6) / file_of(OWN)
    left.parent.mkdir()
    left.write_bytes(bytes(500))
    monkeypatch.setattr(memory_folder, "room", lambda folder: 2000 - memory_folder.size(memory.folder))
    array = SimpleNamespace(nbytes=250)
    replica = SimpleNamespace(params=SimpleNamespace(array=array), buffers=SimpleNamespace(array=array))
    memory.attach(SimpleNamespace(replica=replica))
    memory._begun = name_of(12)
    written = memory.folder / name_of(12) / file_of(SOURCE)
    written.parent.mkdir()
    written.write_bytes(bytes(1000))
    memory._check_room()
    assert kept(memory) == [f"{name_of(12)}/{file_of(SOURCE)}"], "another rank's file of the new checkpoint stays"
    memory.conclude(True, name_of(24))
    memory._begun = name_of(24)
    with pytest.raises(OSError, match="--memory-folder"):
        memory._check_room()
    assert len(kept(memory)) == 1, "the last whole checkpoint stays"


def test_it_is_due_every_few_steps(memory):
    assert [step for step in range(12) if memory.is_due(step)] == [5, 10]
    memory.step = 5
    assert not memory.is_due(5) and memory.is_due(10)
