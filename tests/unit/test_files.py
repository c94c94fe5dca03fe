"""Files that several processes write or lock."""

import os
import subprocess
import sys
import time

import pytest

from grsgd.files import atomic_write, exclusive_lock

HOLD = """
import sys
from grsgd.files import exclusive_lock
with exclusive_lock(sys.argv[1]):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_a_file_is_replaced_as_a_whole(tmp_path):
    file = tmp_path / "file.txt"
    file.write_text("old")
    with atomic_write(file) as temporary:
        temporary.write_text("new")
        assert file.read_text() == "old"
    assert file.read_text() == "new"
    assert os.listdir(tmp_path) == ["file.txt"]


def test_what_fails_leaves_the_old_file(tmp_path):
    file = tmp_path / "file.txt"
    file.write_text("old")
    with pytest.raises(KeyError), atomic_write(file) as temporary:
        temporary.write_text("half of the n")
        raise KeyError
    assert file.read_text() == "old"
    assert os.listdir(tmp_path) == ["file.txt"]


@pytest.fixture
def holder(tmp_path):
    command = [sys.executable, "-c", HOLD, str(tmp_path / "lock")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "held\n"
        yield process
        process.stdin.close()


def test_a_lock_is_held_by_one_process(tmp_path, holder):
    waits = []
    with pytest.raises(TimeoutError):
        exclusive_lock(tmp_path / "lock", timeout=0)
    begin = time.monotonic()
    with pytest.raises(TimeoutError, match="held by another process"):
        exclusive_lock(tmp_path / "lock", timeout=0.1, on_wait=lambda: waits.append(1))
    assert time.monotonic() - begin >= 0.1 and waits == [1]
    holder.stdin.close()
    with exclusive_lock(tmp_path / "lock", timeout=60) as file:
        assert not file.closed


def test_a_lock_goes_with_its_process(tmp_path, holder):
    holder.kill()
    with exclusive_lock(tmp_path / "lock", timeout=60):
        pass


def test_a_lock_follows_no_link(tmp_path):
    (tmp_path / "lock").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match="symbolic links"):
        exclusive_lock(tmp_path / "lock")
    assert not (tmp_path / "elsewhere").exists()
