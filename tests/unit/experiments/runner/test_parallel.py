"""Runs that are made side by side in processes of their own."""

import mmap
import os
import signal
import weakref
from concurrent.futures.process import BrokenProcessPool

import pytest

from experiments.runner import parallel
from experiments.runner.parallel import make_in_parallel

LARGE = 2**25


def make_file(item, folder):
    """Leave a file; item 2 kills its process instead."""
    if item == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    (folder / str(item)).touch()


def test_a_killed_process_costs_what_was_being_made_in_it(tmp_path):
    with pytest.raises(BrokenProcessPool):
        list(make_in_parallel(make_file, range(8), tmp_path, 1))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0", "1", "3", "4", "5", "6", "7"]


class Circle:
    """An object that only the garbage collector frees, as the trainers of a simulation are."""

    alive = 0

    def __init__(self, freed):
        self.itself = self
        Circle.alive += 1
        weakref.finalize(self, note_end, freed)


def note_end(freed):
    Circle.alive -= 1
    freed.touch()


def make_circle(item, folder):
    """Note whether the circle of the item before is gone, and leave another one."""
    if item and not (folder / f"freed {item - 1}").exists():
        (folder / f"kept {item - 1}").touch()
    Circle(folder / f"freed {item}")


def test_no_run_keeps_much_memory_when_it_is_over(tmp_path, monkeypatch):
    monkeypatch.setattr(parallel, "MAX_LEFT", LARGE // 2)
    monkeypatch.setattr(parallel, "memory", lambda: LARGE * Circle.alive)
    assert list(make_in_parallel(make_circle, range(4), tmp_path, 1)) == [0, 1, 2, 3]
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"freed {item}" for item in range(4)]


def test_the_memory_of_a_process_is_read():
    before = parallel.memory()
    with mmap.mmap(-1, LARGE) as held:  # new pages, where an array might get freed memory of another test
        held[:: mmap.PAGESIZE] = bytes(LARGE // mmap.PAGESIZE)
        assert parallel.memory() >= before + LARGE // 2
