"""Run files that somebody has edited: `report` and `plot` read them or refuse them in one line, and end."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import h5py
import numpy as np
import pytest

from grsgd.cli import main
from grsgd.errors import RunFileError
from grsgd.runs.report import report
from grsgd.runs.run_file import load_run, save_run
from tests.support.runs import fake_run

SECRET = b"the first bytes of another file " * 32


@pytest.fixture
def run_file(tmp_path):
    path = tmp_path / "run.h5"
    save_run(path, fake_run())
    return path


def external_storage(file: h5py.File):
    secret = Path(file.filename).with_name("secret")
    secret.write_bytes(SECRET)
    file.create_group("leak").create_dataset(
        "bytes", (len(SECRET),), np.uint8, external=[(str(secret), 0, len(SECRET))]
    )


def virtual_dataset(file: h5py.File):
    other = Path(file.filename).with_name("other.h5")
    with h5py.File(other, "w") as source:
        source["x"] = np.arange(8)
    layout = h5py.VirtualLayout((8,), np.int64)
    layout[:] = h5py.VirtualSource(other, "x", (8,))
    file.create_virtual_dataset("virtual", layout)


def never_written(file: h5py.File):
    file.create_dataset("huge", (2**30,), np.float64)


def huge_chunks(file: h5py.File):
    file.create_dataset("huge", (1,), np.float64, maxshape=(None,), chunks=(2**28,))


def compressed(file: h5py.File):
    file.create_dataset("small", data=np.zeros(2**20), compression="gzip")


def many_names(file: h5py.File):
    group = file.create_group("a")
    for level in range(40):
        inside = group.create_group(f"{level}")
        group[f"again {level}"] = inside
        group = inside


def circle(file: h5py.File):
    file.create_group("a")["back"] = file["/"]


def deep(file: h5py.File):
    file.create_group("/".join(map(str, range(100))))


def a_long_text(file: h5py.File):
    """All texts of an array take the room of the longest."""
    texts = file.create_dataset("texts", (40_000,), h5py.string_dtype())
    texts[0] = "x" * 8_000


def many_texts(file: h5py.File):
    file.create_dataset("texts", (10**6,), h5py.string_dtype())


def linked(link):
    def edit(file: h5py.File):
        file["elsewhere"] = link

    return edit


@pytest.mark.parametrize(
    ("edit", "reason"),
    [
        (external_storage, "dataset 'leak/bytes' lies in another file"),
        (virtual_dataset, "dataset 'virtual' lies in other files"),
        (linked(h5py.ExternalLink("/etc/hostname", "/")), "'elsewhere' is a link"),
        (linked(h5py.SoftLink("/curve")), "'elsewhere' is a link"),
        (never_written, "dataset 'huge' is larger than the file"),
        (huge_chunks, "dataset 'huge' is larger than the file"),
        (compressed, "dataset 'small' is compressed; `h5repack -f NONE` makes"),
        (many_names, "nested more than 8 levels deep"),
        (circle, "'a/back' has two names"),
        (deep, "nested more than 8 levels deep"),
        (many_texts, "holds 1000000 texts"),
        (a_long_text, "holds 40000 texts, one of 8000 characters"),
    ],
)
def test_what_run_files_do_not_need_is_refused(run_file, edit, reason):
    with h5py.File(run_file, "a") as file:
        edit(file)
    with pytest.raises(RunFileError) as refused:
        load_run(run_file)
    assert reason in str(refused.value) and "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("target_accuracy", "high"),
        ("target_accuracy", [0.5, 0.6]),
        ("train_samples", "many"),
        ("final_test_accuracy", "good"),
        ("dataset", 7),
        ("model", [1]),
        ("clock", 1),
        ("batch_size", 0.5),
        ("warnings", [1, 2]),
        ("hosts", [1, 2, 3, 4]),
        ("ranks", True),
    ],
)
def test_attributes_of_another_type_are_named(run_file, name, value):
    with h5py.File(run_file, "a") as file:
        file.attrs[name] = value
    with pytest.raises(RunFileError, match=f"attribute '{name}' must be"):
        load_run(run_file)


def test_counts_below_zero(run_file):
    with h5py.File(run_file, "a") as file:
        file["staleness/count"][0] = -5
    with pytest.raises(RunFileError, match="'staleness/count' must hold 0 or more"):
        load_run(run_file)


CONFIGS = [
    "algorithm = 1",
    "algorithm = []",
    "x = " + "[" * 5000,
    "x = " + "9" * 5000,
    ".".join(["a"] * 5000) + " = 1",
    "not toml",
]


def edited(run_file, attributes: list[dict]) -> list[Path]:
    """A copy of the run file for each, with these attributes in place of its own."""
    copies = []
    for number, replaced in enumerate(attributes):
        copies.append(run_file.with_name(f"copy{number}.h5"))
        shutil.copy(run_file, copies[-1])
        with h5py.File(copies[-1], "a") as file:
            file.attrs.update(replaced)
    return copies


def test_any_text_may_stand_for_the_configuration(run_file, tmp_path, capsys):
    """Of a run alone, and of all of them in one figure."""
    copies = edited(run_file, [{"config": config} for config in CONFIGS])
    for copy in copies:
        assert main(["report", str(copy)]) == 0
        assert main(["report", "--group", str(copy), str(copy)]) == 0
    assert main(["plot", *map(str, copies), "-o", str(tmp_path / "x.png")]) == 0


def test_ages_beyond_what_can_be_added_up(run_file):
    with h5py.File(run_file, "a") as file:
        file["staleness/count"][...] = 2**62
    report([run_file])


HOSTILE = "a\x1b]0;title\x07b\x9b31m\nc\u202e\r" + "x" * 100_000


def test_terminals_are_told_nothing_and_long_names_cut(run_file, tmp_path, capsys):
    config = '[algorithm]\nstrategy = "\\u001b[2J"\nperiod = "\\u001b[2J"\n'
    names = ("label", "reason", "dataset", "model")
    copies = edited(run_file, [{"ended": "failed", name: HOSTILE, "config": config} for name in names])
    for copy in copies:
        assert main(["report", str(copy)]) == 0
        said = capsys.readouterr().out
        assert "\\x1b]0;title" in said and all(letter.isprintable() for letter in said.replace("\n", ""))
        assert max(map(len, said.splitlines())) < 5000
    assert main(["plot", *map(str, copies), "-o", str(tmp_path / "x.png")]) == 0


@pytest.mark.parametrize("command", ["report", "plot"])
def test_messages_are_one_line_and_plain(tmp_path, command, capsys):
    path = tmp_path / "two\nlines\x1b[31m.h5"
    path.write_bytes(b"no HDF5")
    assert main([command, str(path), *["-o", str(tmp_path / "x.png")] * (command == "plot")]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and "\x1b" not in said and "not an HDF5 file" in said


def in_a_terminal(*words, **environment) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-m", "grsgd", *map(str, words)],
        cwd=Path(__file__).parents[3],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_a_terminal_that_knows_few_letters(run_file, encoding):
    with h5py.File(run_file, "a") as file:
        file.attrs["final_test_accuracy"] = np.nan
    done = in_a_terminal("report", run_file, PYTHONIOENCODING=encoding)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
def test_a_full_disk_behind_the_output(run_file):
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "grsgd", "report", run_file],
            cwd=Path(__file__).parents[3],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=120,
            check=False,
        )
    assert done.returncode == 1
    assert done.stderr == "grsgd: error: the output cannot be written: No space left on device\n"


def test_a_backend_for_windows_is_not_needed(run_file, tmp_path):
    done = in_a_terminal("plot", run_file, "-o", tmp_path / "x.png", MPLBACKEND="foo")
    assert (done.returncode, done.stderr) == (0, "")
