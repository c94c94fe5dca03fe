"""The checkpoints in a folder: which exist, which are whole, and which are removed."""

from pathlib import Path

import pytest

from grsgd.errors import ConfigError
from grsgd.training.checkpoint_file import Header, write
from grsgd.training.checkpoint_folder import (
    COMPLETE,
    checkpoints,
    file_of,
    mark_if_whole,
    name_of,
    parts,
    remove_older,
    remove_others,
    take,
    whole_in,
)


def put(folder: Path, samples: int, ranks: int, id: str = "a", only=None):
    """Write a checkpoint of so many ranks, or the files of ``only`` some."""
    for rank in range(ranks) if only is None else only:
        path = folder / name_of(samples) / file_of(rank)
        path.parent.mkdir(parents=True, exist_ok=True)
        write(path, Header(id, samples, ranks, rank), {}, "")


def found(folder: Path, ranks: int = 1) -> list[tuple]:
    """Return the checkpoints that so many ranks find together: samples, ranks, problem."""
    return [tuple(each) for each in checkpoints(part for rank in range(ranks) for part in parts(folder, rank, ranks))]


@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 7])
def test_the_newest_whole_one_is_found_by_any_number_of_ranks(tmp_path, ranks):
    put(tmp_path, 720, 4)
    put(tmp_path, 900, 2)
    put(tmp_path, 1000, 4, only=[0, 1, 3])
    missing = "rank-0002.ckpt of 4 ranks is missing"
    assert found(tmp_path, ranks) == [(1000, 4, missing), (900, 2, ""), (720, 4, "")]


def test_files_of_several_checkpoints_are_no_whole_one(tmp_path):
    put(tmp_path, 360, 3)
    put(tmp_path, 360, 3, "b", only=[1])
    assert found(tmp_path) == [(360, 0, "the files belong to several checkpoints")]


def test_files_of_an_older_job_with_more_ranks_do_no_harm(tmp_path):
    put(tmp_path, 360, 4)
    put(tmp_path, 360, 2, "b")
    assert found(tmp_path, 2) == [(360, 2, "")]


def test_a_file_in_the_place_of_another_is_named(tmp_path):
    put(tmp_path, 360, 2)
    place = tmp_path / name_of(360)
    (place / file_of(0)).rename(place / file_of(1))
    assert found(tmp_path) == [(360, 0, f"{place}/rank-0001.ckpt: is rank 0's file after 360 samples")]


def test_a_file_that_claims_many_ranks_is_one_of_them(tmp_path):
    put(tmp_path, 360, 10**9, only=[0])
    assert found(tmp_path) == [(360, 10**9, f"rank-0001.ckpt of {10**9} ranks is missing")]


def test_what_is_kept_stays_and_what_killed_jobs_have_left_goes(tmp_path):
    for samples, ranks in ((240, 4), (360, 2), (480, 2), (720, 4)):
        put(tmp_path, samples, ranks)
        (tmp_path / name_of(samples) / ".grsgd-1-0123abcd.tmp").touch()
    for curve in ("curve-1", "curve-2"):
        (tmp_path / curve).mkdir()
        for rank in range(4):
            (tmp_path / curve / f"rank-000{rank}.bin").touch()
    others = tmp_path / "notes", tmp_path / name_of(999)
    others[0].mkdir()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / file_of(0)).touch()
    others[1].symlink_to(tmp_path / "elsewhere")
    for rank in (0, 1):
        remove_others(tmp_path, {name_of(360), name_of(480), "curve-2"}, rank, 2)
    left = {path.name for path in tmp_path.iterdir()}
    assert left == {name_of(360), name_of(480), "curve-2", "notes", name_of(999), "elsewhere"}
    assert found(tmp_path, 2)[1:] == [(480, 2, ""), (360, 2, "")] and len(list((tmp_path / "curve-2").iterdir())) == 4
    assert (tmp_path / "elsewhere" / file_of(0)).exists()


def test_two_jobs_take_no_checkpoints_in_one_folder(tmp_path, monkeypatch):
    monkeypatch.setattr("grsgd.training.checkpoint_folder.LOCK_SECONDS", 0.05)
    with take(tmp_path), pytest.raises(ConfigError, match=f"^{tmp_path}: another job takes its checkpoints there: "):
        take(tmp_path)
    take(tmp_path).close()


def test_a_folder_that_cannot_be_written_is_refused(tmp_path):
    (tmp_path / "file").touch()
    for folder, why in ((tmp_path / "file", "File exists"), (tmp_path / "file" / "kept", "Not a directory")):
        with pytest.raises(ConfigError, match=f"^{folder}: no checkpoint can be written there: {why}$"):
            take(folder)
    (tmp_path / "lock").symlink_to(tmp_path / "file")
    with pytest.raises(ConfigError, match="no checkpoint can be written there: Too many levels of symbolic links$"):
        take(tmp_path)


def test_a_folder_whose_checkpoints_were_removed_begins_anew(tmp_path):
    (tmp_path / COMPLETE).touch()
    put(tmp_path, 360, 1)
    take(tmp_path).close()
    assert (tmp_path / COMPLETE).exists()
    remove_others(tmp_path, set(), 0, 1)
    take(tmp_path).close()
    assert not (tmp_path / COMPLETE).exists()


def test_the_rank_that_writes_the_last_file_records_that_a_checkpoint_is_whole(tmp_path):
    for last, is_whole in ((1, False), (0, False), (2, True)):
        put(tmp_path, 360, 3, only=[last])
        mark_if_whole(tmp_path, 360)
        assert (tmp_path / COMPLETE).exists() == is_whole


def test_one_rank_removes_the_files_of_all_ranks_before_the_last_two_whole_checkpoints(tmp_path):
    """The curve of a kept checkpoint stays, and so does any curve while that of a kept checkpoint is not known."""
    for samples, only in ((100, None), (200, [0]), (300, None), (400, [1]), (500, None), (550, [0]), (600, [0])):
        put(tmp_path, samples, 2, str(samples), only)
    for curve in ("curve-1", "curve-2", "curve-3"):
        (tmp_path / curve).mkdir()
        (tmp_path / curve / "rank-0001.bin").touch()
    remove_older(tmp_path, 600, {500: "curve-2", 600: "curve-3"})
    assert (tmp_path / COMPLETE).exists() and whole_in(tmp_path) == [300, 500]
    assert [samples for samples, *_ in found(tmp_path)] == [600, 500, 300] and (tmp_path / "curve-1").exists()
    remove_older(tmp_path, 600, {100: "curve-1", 300: "curve-2", 500: "curve-2", 600: "curve-3"})
    assert sorted(each.name for each in tmp_path.glob("curve-*")) == ["curve-2", "curve-3"]
