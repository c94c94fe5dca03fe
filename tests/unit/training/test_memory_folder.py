"""Folders in the memory of hosts: neighbours, remains of dead jobs, and states that are left."""

import os
import time

import pytest

from grsgd.errors import ConfigError
from grsgd.training import memory_folder
from grsgd.training.checkpoint_file import Header, write
from grsgd.training.checkpoint_folder import file_of, name_of
from grsgd.training.memory_folder import Neighbours


@pytest.mark.parametrize("hosts", ["aabb", "abc", "aaab", "abab", "aabbbc"])
def test_each_state_is_on_two_hosts(hosts):
    found = [Neighbours.of(rank, list(hosts)) for rank in range(len(hosts))]
    for rank, each in enumerate(found):
        assert hosts[each.to] != hosts[rank] and rank in found[each.to].sources
    for host in set(hosts):
        here = [each for rank, each in enumerate(found) if hosts[rank] == host]
        assert [each.leads for each in here] == [True] + [False] * (len(here) - 1)
        assert {each.states for each in here} == {len(here) + sum(len(each.sources) for each in here)}


def test_one_host_has_no_neighbour():
    assert Neighbours.of(1, ["a", "a"]) == (None, (), False, 2)


def test_remains_of_dead_jobs_are_removed_and_nothing_else(tmp_path):
    def old(folder):
        for path in (folder / "lock", folder):
            os.utime(path, times=(0, 0))

    kept, locks = [], []
    for job in ("own", "young", "locked", "touched", "dead"):
        folder = memory_folder.path_of(tmp_path, job, "a b/c")
        locks.append(memory_folder.take(folder))
        if job != "young":
            old(folder)
        if job != "locked":
            locks[-1].close()
        if job != "dead":
            kept.append(folder.name)
    memory_folder.touch(memory_folder.path_of(tmp_path, "touched", "a b/c"))
    (tmp_path / "grsgd-1-other").mkdir()
    memory_folder.remove_remains(tmp_path, "own")
    assert {path.name for path in tmp_path.iterdir()} == {*kept, "grsgd-1-other"}
    assert all("/" not in name and " " not in name for name in kept)
    locks[2].close()


def test_a_folder_of_others_is_refused(tmp_path):
    (tmp_path / "other").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "other")
    with pytest.raises(ConfigError, match="link: belongs to another user: name another folder with --memory-folder"):
        memory_folder.take(tmp_path / "link")
    with pytest.raises(ConfigError, match="none/own: .*: name another folder in memory with --memory-folder"):
        memory_folder.take(tmp_path / "none" / "own")
    with memory_folder.take(tmp_path / "own"), pytest.raises(ConfigError, match="ranks of this job still live"):
        memory_folder.take(tmp_path / "own", 0.0)
    assert (tmp_path / "own").stat().st_mode & 0o777 == 0o700


def test_states_in_a_folder(tmp_path):
    headers = [Header("a", samples, 2, rank) for samples in (12, 24) for rank in (0, 1)]
    for header in headers:
        (tmp_path / name_of(header.samples)).mkdir(exist_ok=True)
        write(tmp_path / name_of(header.samples) / file_of(header.rank), header, {}, "")
    (tmp_path / name_of(12) / file_of(2)).write_bytes(b"damaged")
    (tmp_path / name_of(12) / file_of(0)).rename(tmp_path / name_of(24) / file_of(3))
    (tmp_path / "samples-").mkdir()
    assert sorted(memory_folder.headers(tmp_path), key=str) == sorted(headers[1:], key=str)
    memory_folder.remove_except(tmp_path, {name_of(24)})
    assert [path.name for path in tmp_path.iterdir()] == [name_of(24)]
    memory_folder.remove(tmp_path)
    assert not tmp_path.exists() and memory_folder.headers(tmp_path) == []


def test_too_little_room_is_said_with_the_remedy(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "b").write_bytes(bytes(7))
    assert memory_folder.room(tmp_path) > 0
    assert memory_folder.size(tmp_path) == 7 and memory_folder.size(tmp_path / "none") == 0
    assert "need 2.00 MiB, and 1.00 MiB are free: enlarge the folder" in memory_folder.too_small(2**21, 2**20)


def test_the_age_of_a_folder_is_that_of_its_last_sign(tmp_path):
    folder = tmp_path / "own"
    memory_folder.take(folder).close()
    assert time.time() - folder.stat().st_mtime < memory_folder.LEFT_SECONDS
