"""The run file: round trip, atomic writing, and refusals in one line."""

import errno
import math
import os
import resource
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

import h5py
import numpy as np
import pytest

from grsgd.errors import RunFileError
from grsgd.runs import run_file as results
from grsgd.runs.layout import LAYOUT
from grsgd.runs.run_file import check_writable, load_run, save_run
from tests.support.runs import fake_run


def assert_same(got, expected):
    """Nested dicts of arrays and plain values, types included; NaN equals NaN."""
    assert type(got) is type(expected)
    if isinstance(expected, dict):
        assert got.keys() == expected.keys()
        for key in expected:
            assert_same(got[key], expected[key])
    elif isinstance(expected, np.ndarray):
        assert got.dtype.kind == expected.dtype.kind
        np.testing.assert_array_equal(got, expected)
    else:
        assert got == expected or (math.isnan(got) and math.isnan(expected))


def refusal(function, path, *args) -> str:
    with pytest.raises(RunFileError) as caught:
        function(path, *args)
    message = str(caught.value)
    assert message.startswith(f"{path}: ")
    assert "\n" not in message
    return message.removeprefix(f"{path}: ")


def raised_in_a_child(check) -> str | None:
    """What ``check()`` raises in another process, which it must not end."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        try:
            check()
        except Exception as error:
            os.write(writing, str(error).encode())
        os._exit(0)
    os.close(writing)
    with open(reading) as said:
        text = said.read()
    assert os.waitpid(child, 0)[1] == 0
    return text or None


@pytest.fixture
def saved(tmp_path):
    path = tmp_path / "run.h5"
    save_run(path, fake_run())
    return path


# ---- round trip


def test_round_trip(tmp_path):
    run = fake_run(final_test_accuracy=math.nan, commit="abc", parameters=12345, converged=True)
    run.curve["test_accuracy"][1] = math.nan
    save_run(tmp_path / "run.h5", run)
    back = load_run(tmp_path / "run.h5")
    assert_same(back.attributes, run.attributes)
    for group in LAYOUT:
        assert_same(getattr(back, group), getattr(run, group))
        for name, column in LAYOUT[group].items():
            assert getattr(back, group)[name].dtype == column.dtype
    assert back.extra == {} and back.units == {}


def test_extra_groups_and_their_units_survive(tmp_path):
    run = fake_run()
    run.extra = {
        "traffic": {"cards": {"sent": np.arange(4), "names": np.array(["eth0", "ib0"]), "source": "sysfs", "n": 2}},
        "profile": {"deep": {"values": np.zeros((0, 3)), "labels": ["a", "b"]}, "scale": 0.5},
        "weights": np.eye(2),
    }
    run.units = {"traffic/cards/sent": ("bytes", "sent through each interface")}
    for path in (tmp_path / "first.h5", tmp_path / "second.h5"):
        save_run(path, run)
        back = load_run(path)
        assert_same(back.extra, run.extra)
        assert back.units == run.units
        run = back
    with h5py.File(path) as file:
        assert file["traffic/cards/sent"].attrs["unit"] == "bytes"


def test_further_columns_of_a_group_stay_in_it(tmp_path):
    run = fake_run()
    run.curve["test_loss"] = np.linspace(2, 1, 5)
    save_run(tmp_path / "run.h5", run)
    assert_same(load_run(tmp_path / "run.h5").curve["test_loss"], run.curve["test_loss"])


def test_what_was_not_measured_may_be_left_out(tmp_path):
    run = fake_run(commit=None)
    del run.attributes["final_test_accuracy"], run.curve["consensus_distance"]
    run.staleness = {}
    save_run(tmp_path / "run.h5", run)
    back = load_run(tmp_path / "run.h5")
    assert "commit" not in back.attributes
    assert math.isnan(back.attributes["final_test_accuracy"])
    assert_same(back.curve["consensus_distance"], np.full(5, np.nan))
    assert back.staleness["value"].shape == (0,) and back.staleness["count"].shape == (4, 0)
    with h5py.File(tmp_path / "run.h5") as file:
        assert "consensus_distance" not in file["curve"] and len(file["staleness"]) == 0
        assert "test_accuracy" in file["curve"]
    assert "consensus_distance" not in run.curve  # what was saved stays as it was


def test_lists_are_taken_for_arrays_and_numpy_scalars_for_numbers(tmp_path):
    run = fake_run(ranks=2, seed=np.int64(3))
    run.ranks["steps"] = [4, 5]
    run.curve["samples"] = run.curve["samples"].astype(float)
    save_run(tmp_path / "run.h5", run)
    back = load_run(tmp_path / "run.h5")
    assert_same(back.ranks["steps"], np.array([4, 5]))
    assert back.curve["samples"].dtype == np.int64
    assert type(back.attributes["seed"]) is int


def test_long_text_and_many_hosts(tmp_path):
    config = "# größer\n" * 100_000
    run = fake_run(ranks=100, config=config, lines=["x" * 1000] * 5000)
    save_run(tmp_path / "run.h5", run)
    back = load_run(tmp_path / "run.h5").attributes
    assert back["config"] == config
    assert back["hosts"] == [f"node{i}" for i in range(100)]
    assert back["lines"] == run.attributes["lines"]


def test_units_format_and_readable_text(saved):
    with h5py.File(saved) as file:
        assert file.attrs["format"] == results.FORMAT
        assert isinstance(file.attrs["config"], str)
        assert h5py.check_string_dtype(file.attrs.get_id("hosts").dtype).encoding == "utf-8"
        units = {}
        file.visititems(lambda name, item: units.update({name: item.attrs.get("unit")}))
        assert all(file[f"{group}/{name}"].attrs["description"] for group in LAYOUT for name in LAYOUT[group])
    assert {name: unit for name, unit in units.items() if unit != "1"} == {
        "about": None,
        "curve": None,
        "curve/time": "s",
        "curve/step": "steps",
        "curve/samples": "samples",
        "ranks": None,
        "ranks/steps": "steps",
        "ranks/samples": "samples",
        "ranks/compute_seconds": "s",
        "ranks/communicate_seconds": "s",
        "ranks/wait_seconds": "s",
        "traffic": None,
        "traffic/sent": "bytes",
        "traffic/sent_once": "bytes",
        "traffic/messages": "messages",
        "traffic/headers": "bytes",
        "traffic/repaired": "bytes",
        "traffic/lost": "datagrams",
        "traffic/interface": "bytes",
        "staleness": None,
        "staleness/value": "steps",
    }


def test_import_is_light():
    code = "import sys, grsgd.runs.run_file; print([m for m in ('torch', 'matplotlib', 'mpi4py') if m in sys.modules])"
    root = str(Path(results.__file__).parents[2])
    done = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


# ---- runs that are not whole


@pytest.mark.parametrize(
    "spoil, reason",
    [
        (lambda run: run.attributes.pop("algorithm"), "attribute 'algorithm' is missing"),
        (lambda run: run.attributes.update(seed=None), "attribute 'seed' is missing"),
        (lambda run: run.attributes.update(ranks="4"), "attribute 'ranks' must be int, not str"),
        (lambda run: run.attributes["hosts"].pop(), "attribute 'hosts' has 3 names for 4 ranks"),
        (lambda run: run.curve.pop("time"), "dataset 'curve/time' is missing"),
        (lambda run: run.traffic.pop("headers"), "dataset 'traffic/headers' is missing"),
        (
            lambda run: run.curve.update(step=np.arange(3)),
            "dataset 'curve/step' has shape (3,), but (snapshot: 5) is needed",
        ),
        (
            lambda run: run.traffic.update(sent=np.zeros((4, 3))),
            "dataset 'traffic/sent' has shape (4, 3), but (rank: 4, rank: 4) is needed",
        ),
        (lambda run: run.ranks.update(steps=[1, 2, 3, 0.5]), "dataset 'ranks/steps' must hold whole numbers"),
        (lambda run: run.curve.update(samples=np.full(5, np.nan)), "dataset 'curve/samples' must hold whole numbers"),
        (lambda run: run.extra.update(note="x"), "'note' in extra is neither a group nor an array"),
        (lambda run: run.attributes.update(note=object()), "note = <object object at 0x"),
    ],
)
def test_unfit_run_is_refused_and_nothing_written(tmp_path, spoil, reason):
    run = fake_run()
    spoil(run)
    assert refusal(save_run, tmp_path / "run.h5", run).startswith(reason)
    assert list(tmp_path.iterdir()) == []


# ---- atomic writing


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "full"), KeyboardInterrupt()])
@pytest.mark.parametrize("where", ["_write", "os.fsync", "os.replace"])
def test_failure_leaves_the_old_file_and_nothing_else(saved, monkeypatch, where, error):
    before = saved.read_bytes()
    write = results._write

    def fail(*args):
        if where == "_write":
            write(*args)
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(f"grsgd.runs.run_file.{where}", fail)
        with pytest.raises(RunFileError if isinstance(error, OSError) else KeyboardInterrupt) as caught:
            save_run(saved, fake_run(seed=2))
    if isinstance(error, OSError):
        assert str(caught.value) == f"{saved}: No space left on device"
    assert os.listdir(saved.parent) == [saved.name]
    assert saved.read_bytes() == before
    save_run(saved, fake_run(seed=2))
    assert load_run(saved).attributes["seed"] == 2


def test_a_disk_that_is_full_ends_in_a_line(saved):
    """Whatever part of a file there is still room for; a limit of the process stands for the disk."""
    run, before = fake_run(snapshots=2000), saved.read_bytes()

    def save_with_room_for(bytes: int):
        resource.setrlimit(resource.RLIMIT_FSIZE, (bytes, bytes))
        save_run(saved, run)

    for room in (0, 10_000, 50_000, 100_000):
        assert raised_in_a_child(partial(save_with_room_for, room)) == f"{saved}: File too large"
    assert saved.read_bytes() == before and os.listdir(saved.parent) == [saved.name]


def test_symbolic_link_survives(tmp_path, saved):
    link = tmp_path / "latest.h5"
    link.symlink_to(saved.name)
    save_run(link, fake_run(seed=7))
    assert link.is_symlink()
    assert load_run(saved).attributes["seed"] == 7


def test_mode_follows_the_umask(tmp_path):
    old = os.umask(0o027)
    try:
        save_run(tmp_path / "run.h5", fake_run())
    finally:
        os.umask(old)
    assert (tmp_path / "run.h5").stat().st_mode & 0o777 == 0o640


# ---- paths


def test_check_writable_leaves_no_trace(saved):
    before = saved.read_bytes(), saved.stat().st_mtime_ns
    check_writable(saved)
    check_writable(saved.parent / "new.h5")
    assert os.listdir(saved.parent) == [saved.name]
    assert (saved.read_bytes(), saved.stat().st_mtime_ns) == before


def test_check_writable_tries_the_expected_size(saved, monkeypatch):
    def full(descriptor, offset, size):
        if size > 10**6:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", full)
    check_writable(saved, 10**5)
    assert refusal(check_writable, saved, 10**7) == "No space left on device"
    assert os.listdir(saved.parent) == [saved.name]


def test_check_writable_removes_what_killed_processes_have_left(saved):
    child = os.fork()
    if not child:
        os._exit(0)
    os.waitpid(child, 0)
    old = time.time() - 2 * 3600
    for name, modified in {
        f".grsgd-{child}-01234567.tmp": old,
        f".grsgd-{child}-00000000.tmp": time.time(),  # on another host this process may be alive
        f".grsgd-{os.getpid()}-01234567.tmp": old,
        ".grsgd-x.tmp": old,
    }.items():
        (saved.parent / name).touch()
        os.utime(saved.parent / name, (modified, modified))
    check_writable(saved)
    left = {f".grsgd-{child}-00000000.tmp", f".grsgd-{os.getpid()}-01234567.tmp", ".grsgd-x.tmp", saved.name}
    assert set(os.listdir(saved.parent)) == left


def as_user(number: int, check) -> str | None:
    """What ``check()`` raises when another user calls it."""

    def checked():
        os.setegid(number)
        os.seteuid(number)
        check()

    return raised_in_a_child(checked)


@pytest.fixture
def shared():
    """A folder in which everybody may write, as /tmp."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        os.chmod(folder, 0o1777)
        yield Path(folder)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may act for others")
def test_a_file_of_somebody_else_that_cannot_be_replaced(shared):
    (shared / "run.h5").touch()
    (shared / "run.h5").chmod(0o666)
    os.chown(shared / "run.h5", 10001, 10001)
    assert as_user(10001, lambda: check_writable(shared / "run.h5")) is None
    said = as_user(10002, lambda: check_writable(shared / "run.h5"))
    assert said == f"{shared / 'run.h5'}: is another user's file in a folder where only its owner may replace it"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may act for others")
@pytest.mark.parametrize("way", ["file", "folder", "by another link"])
def test_links_of_somebody_else_in_a_shared_folder_are_not_followed(way, shared, tmp_path):
    """They would have anything overwritten that the user may write."""
    victim, link = tmp_path / "victim.h5", shared / "link"
    victim.write_text("precious")
    link.symlink_to(tmp_path if way == "folder" else victim)
    os.lchown(link, 10001, 10001)
    path = link / "victim.h5" if way == "folder" else link
    if way == "by another link":
        (tmp_path / "own").symlink_to(link)
        path = tmp_path / "own"
    for refused in (check_writable, save_run):
        reason = refusal(refused, path, *[fake_run()] * (refused is save_run))
        assert reason == f"{link} is a symbolic link of another user's in a folder where all may write"
    assert victim.read_text() == "precious"
    os.lchown(link, os.geteuid(), 0)
    check_writable(path)


def unwritable_paths(saved: Path) -> dict[Path, str]:
    folder = saved.parent
    os.mkfifo(folder / "pipe")
    with pytest.raises(ValueError) as null_byte:  # has other words in Python 3.13
        os.lstat("\0")
    paths = {
        folder: "is a directory",
        folder / "none" / "run.h5": f"there is no directory {folder / 'none'}",
        saved / "run.h5": "Not a directory",
        folder / ("x" * 300): "File name too long",
        folder / "a\0b": str(null_byte.value),
        folder / "pipe": "not a regular file",
        Path("/dev/null"): "not a regular file",
    }
    if Path("/proc/self").exists():
        paths[Path("/proc/run.h5")] = "No such file or directory"  # as the kernel puts it
    return paths


def test_unwritable_paths_for_any_user(saved):
    for path, reason in unwritable_paths(saved).items():
        assert refusal(check_writable, path) == reason
        assert refusal(save_run, path, fake_run()) == reason
    assert not Path("/dev/null").is_file()
    assert sorted(os.listdir(saved.parent)) == ["pipe", "run.h5"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_unwritable_paths_for_others_than_root(saved):
    saved.chmod(0o444)
    assert refusal(check_writable, saved) == "Permission denied"
    saved.parent.chmod(0o555)
    try:
        assert refusal(check_writable, saved.parent / "new.h5") == "Permission denied"
    finally:
        saved.parent.chmod(0o755)


# ---- files that are no runs


def test_a_missing_file_is_told_in_one_exception(tmp_path):
    with pytest.raises(RunFileError) as caught:
        load_run(tmp_path / "run.h5")
    assert caught.value.__cause__ is None and caught.value.__suppress_context__


def test_missing_file(tmp_path):
    assert refusal(load_run, tmp_path / "run.h5") == "No such file or directory"
    assert refusal(load_run, tmp_path) == "is a directory"


def test_truncated_at_any_length(saved):
    content = saved.read_bytes()
    for length in [*range(0, 600, 7), *range(600, len(content), 997), len(content) - 1]:
        saved.write_bytes(content[:length])
        reason = refusal(load_run, saved)
        assert reason == "not an HDF5 file" or reason.startswith("truncated or damaged HDF5 file: ")


def test_damaged_bytes_are_refused_or_read(saved):
    content, random = saved.read_bytes(), np.random.default_rng(1)
    for _ in range(200):
        damaged = bytearray(content)
        for position in random.integers(len(content), size=5):
            damaged[position] = random.integers(256)
        saved.write_bytes(damaged)
        try:
            load_run(saved)
        except RunFileError as error:
            assert "\n" not in str(error)


def test_not_hdf5(tmp_path):
    path = tmp_path / "run.h5"
    path.write_text("algorithm = gossip\n" * 100)
    assert refusal(load_run, path) == "not an HDF5 file"


def test_hdf5_of_something_else(tmp_path):
    path = tmp_path / "run.h5"
    h5py.File(path, "w").close()
    assert refusal(load_run, path) == "not a run file: attribute 'format' is missing"


def test_parts_missing_from_the_file(saved):
    with h5py.File(saved, "a") as file:
        del file["ranks/steps"]
    assert refusal(load_run, saved) == "dataset 'ranks/steps' is missing"
    with h5py.File(saved, "a") as file:
        del file["curve"]
        file["curve"] = np.zeros(3)
    assert refusal(load_run, saved) == "not a run file: 'curve' is no group"


def as_format_1(path, stopped, config):
    """Turn a file into one of format 1."""
    with h5py.File(path, "r+") as file:
        for name in ("label", "ended", "reason"):
            del file.attrs[name]
        file.attrs["format"], file.attrs["stopped"], file.attrs["config"] = 1, stopped, config
        file.attrs["progress"] = "inline"


@pytest.mark.parametrize(
    "stopped, ended",
    [
        ("epochs", "completed"),
        ("non-finite loss (nan) on rank 1 at step 7", "diverged"),
        ("interrupted (Ctrl-C)", "interrupted"),
        ("terminated (SIGTERM)", "interrupted"),
        ("rank 1 lost: its process has died", "failed"),
    ],
)
def test_files_of_format_1_are_read(saved, stopped, ended):
    as_format_1(saved, stopped, '[algorithm]\nname = "gossip"\nstrategy = "adsp"\nadaptive = true\nmode = "pull"\n')
    attributes = load_run(saved).attributes
    assert (attributes["ended"], attributes["reason"]) == (ended, stopped) and "stopped" not in attributes
    assert attributes["label"] == "gossip adsp" and attributes["depends_on_values"] is True
    assert attributes["comparison"] == "mode = pull; centre = server; rho = 1"
    assert "synchronous" not in attributes
    assert attributes["progress_mode"] == "inline" and "progress" not in attributes
    save_run(saved, load_run(saved))
    assert load_run(saved).attributes == attributes


def test_format_1_without_a_configuration_that_can_be_read(saved):
    as_format_1(saved, "epochs", "no [TOML")
    assert load_run(saved).attributes["label"] == "gossip"


def test_newer_format(saved):
    with h5py.File(saved, "a") as file:
        file.attrs["format"] = 3
    assert refusal(load_run, saved) == "format 3 is newer than this program, which reads up to 2"


def test_format_1_without_a_configuration_is_refused(saved):
    as_format_1(saved, "epochs", "")
    with h5py.File(saved, "a") as file:
        del file.attrs["config"]
    with pytest.raises(RunFileError, match="attribute 'config' is missing$"):
        load_run(saved)
