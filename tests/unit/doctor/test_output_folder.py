"""The folder of run files."""

import errno
import fcntl
import os
import time

import pytest

from grsgd.doctor import output_folder
from grsgd.doctor.output_folder import FolderFacts, facts, file_system, findings

HEALTHY = FolderFacts("/data", "ext4", 2**40, 0.01, "")


def hurting(found) -> dict[str, str]:
    return {each.name: each.remedy for each in findings(found) if each.remedy}


def test_a_healthy_folder_is_left_as_it_was(tmp_path, monkeypatch):
    monkeypatch.setattr(output_folder, "SLOW_SECONDS", 60.0)  # other tests may write at the same time
    found = facts(tmp_path / "not" / "there", 60.0)
    assert found.folder == str(tmp_path) and not found.error and not found.locks and found.seconds > 0
    assert not any(tmp_path.iterdir()) and hurting(found) == {}


@pytest.mark.parametrize(
    "change, name, words",
    [
        ({"free": 10}, "free", "make room"),
        ({"seconds": 10.0}, "writing", "local disk"),
        ({"locks": "No locks available"}, "locks", "HDF5_USE_FILE_LOCKING"),
        ({"error": "Permission denied"}, "folder", "--out"),
    ],
)
def test_a_folder_that_hurts(change, name, words):
    found = hurting(HEALTHY._replace(**change))
    assert {*found} == {name} and words in found[name]


def test_a_folder_without_locks(tmp_path, monkeypatch):
    def refuse(file, operation):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", refuse)
    assert "locks" in hurting(facts(tmp_path))
    monkeypatch.setattr(fcntl, "flock", lambda file, operation: None)
    assert facts(tmp_path).locks == "two openers of a file held its lock at once"


def test_a_folder_that_does_not_answer_and_one_that_cannot_be_written(tmp_path, monkeypatch):
    monkeypatch.setattr(output_folder, "trial", lambda folder: time.sleep(60))
    assert "no answer within 0.2 s" in facts(tmp_path, 0.2).error
    monkeypatch.undo()
    (tmp_path / "file").touch()
    assert facts(tmp_path / "file").error


def test_the_kind_of_the_file_system(tmp_path):
    mounts = tmp_path / "mounts"
    mounts.write_text(f"disk / ext4 rw 0 0\nserver:/x {tmp_path.resolve()} nfs4 rw 0 0\n")
    assert file_system(tmp_path, mounts) == "nfs4" and file_system(tmp_path.parent, mounts) == "ext4"
    assert file_system(tmp_path, tmp_path / "none") == "unknown"
