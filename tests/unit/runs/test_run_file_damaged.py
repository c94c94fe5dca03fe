"""Damaged run files, whole sectors or single bytes of them: each is read, or refused in one line, and reading ends."""

from pathlib import Path

import numpy as np
import pytest

from grsgd.runs import trial
from grsgd.runs.report import report
from grsgd.runs.run_file import load_run, save_run
from grsgd.training import checkpoint_file
from tests.support import damage
from tests.support.exhaustive import exhaustive_unless
from tests.support.runs import fake_run

HEADER = checkpoint_file.Header("5f3a", 720, 2, 1)


@pytest.fixture
def content(tmp_path, monkeypatch) -> bytes:
    """A run file; of a damaged one the reading gets half a second of a processor."""
    monkeypatch.setattr(trial, "SECONDS", 0.5)
    save_run(tmp_path / "run.h5", fake_run())
    return (tmp_path / "run.h5").read_bytes()


def read(path: Path):
    load_run(path)
    report([path])


@pytest.mark.parametrize("every", exhaustive_unless([4], [1, 4]))
def test_zeroed_sectors(content, tmp_path, every):
    """Zeros where texts of attributes lie make HDF5 loop: this is told after the time that the reading gets."""
    found = damage.read_each(damage.zeroed_sectors(content, every), tmp_path / "damaged.h5", read)
    assert not damage.wrong(found)
    assert damage.REFUSED in dict(found).values()


@pytest.mark.parametrize("seed", exhaustive_unless([0], range(4)))
def test_changed_bytes(content, tmp_path, seed):
    cases = damage.changed(content, range(40) if seed == 0 else range(1000 * seed, 1000 * seed + 300))
    assert not damage.wrong(damage.read_each(cases, tmp_path / "damaged.h5", read))


def test_reading_that_does_not_end_is_told(content, tmp_path):
    at = content.find(b"GCOL") + 16  # an object of number 0 and size 0 is followed by itself
    path = tmp_path / "loop.h5"
    path.write_bytes(content[:at] + bytes(16) + content[at + 16 :])
    (found,) = damage.read_each([("loop", path.read_bytes())], path, load_run)
    assert found[1] == damage.REFUSED
    with pytest.raises(ValueError, match="reading it does not end .0.5"):
        trial.try_reading(path)
    trial.try_reading(tmp_path / "run.h5")  # by a process of its own that is new


def test_a_child_is_not_taken_for_its_parent(content, tmp_path):
    """Both ask, each a process of its own."""
    path = tmp_path / "copy.h5"
    path.write_bytes(content)
    trial.try_reading(path)
    ((_, what),) = damage.read_each([("copy", content)], tmp_path / "other.h5", load_run)
    assert what == damage.READ
    path.write_bytes(content[:100])
    with pytest.raises(ValueError, match="damaged"):
        trial.try_reading(path)


def read_sealed(path: Path):
    """Give a checkpoint the digest of what is in it, as a stranger would, and read it."""
    with open(path, "r+b") as file:
        line = checkpoint_file._line(HEADER, checkpoint_file._digest(HEADER, file))
        file.seek(0)
        file.write(line)
    checkpoint_file.read(path)


@pytest.mark.parametrize("seed", exhaustive_unless([0], range(8)))
def test_checkpoints_of_strangers_whose_digest_is_right(tmp_path, seed):
    path = tmp_path / "rank.ckpt"
    state = {"model": {"parameters": np.ones(5)}, "losses": {"0": [0.5]}, "weight": 1.0}
    checkpoint_file.write(path, HEADER, state, "seed = 1")
    cases = damage.changed(path.read_bytes(), range(300 * seed, 300 * seed + (60 if seed == 0 else 300)))
    found = damage.read_each(cases, path, read_sealed)
    assert not damage.wrong(found) and {what for _, what in found} == {damage.READ, damage.REFUSED}
