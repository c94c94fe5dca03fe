"""Small files that stand for much memory or time, and what else files of strangers do: refused in one line."""

import gzip
import io
import os
import pickle
import struct
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch

import grsgd
from experiments.runner import on_nodes, records
from grsgd.comm.coded.multicast_link import json_of
from grsgd.config import load
from grsgd.data import fetch
from grsgd.data.base import DamagedData
from grsgd.data.sets.cifar import read_binary, read_pickle
from grsgd.data.sets.idx import read_idx
from grsgd.errors import ConfigError, ModelError, RunFileError
from grsgd.runs import trial
from grsgd.runs.loggers import CsvLogger, TensorBoardLogger
from grsgd.runs.run_file import load_run, save_run
from grsgd.simulator.network import network
from grsgd.simulator.tracing import goal
from grsgd.simulator.tracing.replay import replay
from grsgd.training.state_file import state_in
from tests.support import damage
from tests.support.runs import fake_run

MUCH = 2**40


@pytest.fixture(autouse=True)
def little_memory():
    """Let this process have half a gigabyte beside what it has, so that what takes more fails."""
    import resource

    before = resource.getrlimit(resource.RLIMIT_AS)
    own = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (own + 2**29, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_AS, before)


def sparse(path: Path, start: bytes = b"") -> Path:
    path.write_bytes(start)
    os.truncate(path, MUCH)
    return path


# ---- run files


def test_texts_of_attributes_are_counted(tmp_path, monkeypatch):
    """Here a thousand that are the same hundred kilobytes of the file, 100 MB in memory."""
    import h5py

    count, size, path = 1000, 100_000, tmp_path / "run.h5"
    save_run(path, fake_run())
    with h5py.File(path, "a", libver="v108") as file:
        file.attrs.create("z", ["A" * size] + ["b"] * (count - 1), dtype=h5py.string_dtype())
    content = bytearray(path.read_bytes())
    at = content.find(struct.pack("<I", size))
    while struct.unpack_from("<I", content, at + 16)[0] != 1:  # a length, an address, a number; the next text is short
        at = content.find(struct.pack("<I", size), at + 1)
    content[at : at + 16 * count] = content[at : at + 16] * count
    path.write_bytes(content)
    with pytest.raises(RunFileError, match="attribute 'z' of '/' claims to be longer than the whole file"):
        load_run(path)
    monkeypatch.setattr(trial, "BYTES", 2**26)
    os.utime(path)
    with pytest.raises(RunFileError, match="memory|allocat"):
        load_run(path)


def test_a_run_file_of_a_terabyte_that_lies_nowhere(tmp_path, monkeypatch):
    import h5py

    save_run(tmp_path / "run.h5", fake_run())
    with h5py.File(tmp_path / "run.h5", "a") as file:
        file.create_dataset("huge", (MUCH // 16,), np.float64)
    sparse_file = tmp_path / "run.h5"
    os.truncate(sparse_file, MUCH)
    with pytest.raises(RunFileError, match="memory|allocate|truncated or damaged"):
        load_run(sparse_file)


# ---- saved models


def model_file(compression: int) -> bytes:
    """Return a file of torch.save, packed anew."""
    plain, packed = io.BytesIO(), io.BytesIO()
    torch.save({"weight": torch.zeros(1000)}, plain)
    with zipfile.ZipFile(plain) as source, zipfile.ZipFile(packed, "w", compression) as target:
        for entry in source.infolist():
            target.writestr(entry.filename, source.read(entry))
    return packed.getvalue()


def test_a_compressed_model_is_refused():
    """Of 2 MB it may be of as many gigabytes as there are."""
    assert state_in(Path("x.pt"), model_file(zipfile.ZIP_STORED))["weight"].shape == (1000,)
    with pytest.raises(ModelError, match="is not a file of torch.save: its content is compressed"):
        state_in(Path("x.pt"), model_file(zipfile.ZIP_DEFLATED))


@pytest.mark.parametrize(
    ("model", "words"),
    [
        ("name = 'mlp'\nhidden = [100000, 100000]", "does not fit model.name = 'mlp': "),
        ("name = 'mlp'\nhidden = [4611686018427387904, 2]", "model.name = 'mlp': "),
        ("name = 'mlp'\nhidden = [" + "1, " * 2000 + "]", "hidden has 2000 widths, expected at most 1000"),
    ],
)
def test_a_network_is_compared_with_its_file_before_it_takes_memory(model, words, tmp_path):
    torch.save({"weight": torch.zeros(3)}, tmp_path / "x.pt")
    rest = '[algorithm]\nname = "dpsgd"\n[data]\nname = "mnist"\n[train]\nsteps = 1\n[model]\n'
    (tmp_path / "x.toml").write_text(rest + model)
    with pytest.raises((ModelError, ConfigError)) as refused:
        grsgd.load_model(tmp_path / "x.pt", tmp_path / "x.toml")
    assert words in str(refused.value) and "\n" not in str(refused.value)


def test_a_model_that_is_larger_than_the_memory(tmp_path):
    names = 'algorithm.name = "dpsgd"\nmodel.name = "mlp"\ndata.name = "mnist"\n'
    (tmp_path / "x.toml").write_text(f"{names}train.steps = 1")
    with pytest.raises(RunFileError, match="x.pt: holds 1.00 TiB, and .* of memory are free"):
        grsgd.load_model(sparse(tmp_path / "x.pt"), tmp_path / "x.toml")


# ---- data


def state_of(content) -> bytes:
    """Return a batch whose pixels have something else than bytes."""
    import numpy

    dtype = numpy.dtype("u1")

    class Pixels:
        def __reduce__(self):
            return numpy.ndarray, (), (1, (1, 3072), dtype, False, content)

    text = pickle.dumps({b"data": Pixels(), b"labels": [1]}, 2)
    return text.replace(b"cnumpy\nndarray\n", b"cnumpy\n_reconstruct\n")


@pytest.mark.parametrize(
    "content",
    [
        b"\x80\x05\x96" + struct.pack("<Q", 2**36) + b".",
        b"\x80\x05\x8e" + struct.pack("<Q", 2**36) + b".",
        b"\x80\x05\x95" + struct.pack("<Q", 2**36) + b".",
        b"\x80\x05\x8b" + struct.pack("<i", 2**30) + b".",
        state_of(2**36),
    ],
    ids=["bytearray", "bytes", "frame", "integer", "number for pixels"],
)
def test_lengths_in_a_pickle_that_are_not_true(content, tmp_path):
    (tmp_path / "data_batch_1").write_bytes(content)
    with pytest.raises(DamagedData, match="not a batch of CIFAR-10 .UnpicklingError: "):
        read_pickle(tmp_path / "data_batch_1")


@pytest.mark.parametrize("read", [read_pickle, read_binary, lambda path: read_idx(path, 3)])
def test_data_of_a_terabyte_that_lie_nowhere(read, tmp_path):
    with pytest.raises(DamagedData, match=f"{MUCH} bytes, expected at most"):
        read(sparse(tmp_path / "x.gz"))


def test_black_images(tmp_path):
    count = 100_000
    content = bytes([0, 0, 8, 3]) + struct.pack(">III", count, 28, 28)  # no more of it is unpacked
    (tmp_path / "x.gz").write_bytes(gzip.compress(content))
    with pytest.raises(DamagedData, match="78400016 bytes by its header, expected at most 67108864"):
        read_idx(tmp_path / "x.gz", 3)


# ---- traces


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("num_ranks 200000", "num_ranks 200000: about .* of memory are needed"),
        ("num_ranks 1\nrank 0 {\ncalc 1" + "0" * 5000 + "\n}", "line 3: 1000.*: a number has at most 18 digits"),
        ("num_ranks 1\nrank 0 {\ncalc 1" + "0" * 400 + "\n}", "line 3: 1000.*: a number has at most 18 digits"),
        ("num_ranks 1" + "0" * 5000, "line 1: 1000.*: a number has at most 18 digits"),
        ("num_ranks 2\nrank 0 {\nsend 8b to 1 tag " + "9" * 50 + "\n}", "a number has at most 18 digits"),
        (
            "num_ranks 2\nrank 0 {\nsend 16b to 1\n}\nrank 1 {\nrecv 8b from 0\n}",
            "replay: rank 0 sends 16 bytes with tag 0 to rank 1, which has room for 8",
        ),
    ],
)
def test_traces(text, words, tmp_path):
    (tmp_path / "x.goal").write_text(text)
    with pytest.raises(ConfigError, match=words) as refused:
        replay(goal.read(tmp_path / "x.goal"), network("switch", None))
    assert "\n" not in str(refused.value) and len(str(refused.value)) < 1000


def test_long_lines_and_comments_take_no_longer_than_short_ones(tmp_path):
    """What takes time by the square of the length would take minutes."""
    ranks = 30_000
    line = f"num_ranks {ranks}" + "".join(f" rank {rank} {{ }}" for rank in range(ranks))
    ((_, what),) = damage.read_each([("line", line.encode())], tmp_path / "x.goal", goal.read)
    assert what == damage.READ
    ((_, what),) = damage.read_each([("comments", b"/*" * 300_000)], tmp_path / "x.goal", goal.read)
    assert what == damage.REFUSED


def test_changed_traces(tmp_path):
    lines = "l1: calc 10 cpu 1\nl2: send 8b to 1 tag 3\nl2 requires l1\n}\nrank 1 {\nl1: recv 8b from 0 tag 3\n}\n"
    cases = damage.changed(f"num_ranks 2\nrank 0 {{\n{lines}".encode(), range(200))

    def read(path):
        replay(goal.read(path), network("switch", None))

    found = damage.wrong(damage.read_each(cases, tmp_path / "x.goal", read))
    assert not [what for _, what in found if not what.startswith("Deadlock: ")]


# ---- links, archives, lists


@pytest.fixture
def link(tmp_path):
    """A link that another user has put into a folder where all may write."""
    (tmp_path / "private").mkdir()
    link = tmp_path / "everybodys" / "live"
    link.parent.mkdir()
    link.parent.chmod(0o1777)
    link.symlink_to(tmp_path / "private")
    os.lchown(link, 65534, -1)
    return link


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make files of another user")
@pytest.mark.parametrize("place", ["live", "live/runs.csv"])
@pytest.mark.parametrize("logger", [CsvLogger, TensorBoardLogger])
def test_links_of_others_are_not_followed(logger, place, link):
    if logger is TensorBoardLogger:
        pytest.importorskip("tensorboard")
    with pytest.raises(RunFileError, match="is a symbolic link of another user's"):
        logger(link.parent / place)
    assert not list((link.parent.parent / "private").iterdir())


def member(name: str, **more) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    for key, value in more.items():
        setattr(info, key, value)
    return info


@pytest.mark.parametrize(
    "odd",
    [
        member("../out.h5"),
        member("/tmp/out.h5"),
        member("folder/out.h5"),
        member("..", type=tarfile.DIRTYPE),
        member("out.h5", type=tarfile.SYMTYPE, linkname="/etc/passwd"),
        member("out.h5", type=tarfile.LNKTYPE, linkname="/etc/passwd"),
        member("out.h5", type=tarfile.FIFOTYPE),
    ],
    ids=lambda info: f"{info.name} {info.type}",
)
@pytest.mark.parametrize("has_filter", [True, False])
def test_archives_hold_plain_files_alone(odd, has_filter, tmp_path, monkeypatch):
    """With a Python whose tarfile has no filters, too."""
    if not has_filter:
        monkeypatch.delattr(tarfile, "data_filter", raising=False)
    (tmp_path / "recorded").mkdir()
    with tarfile.open(tmp_path / "recorded" / "paper.tar.xz", "w:xz") as archive:
        archive.addfile(member("good.h5"))
        archive.addfile(odd)
    with pytest.raises(ConfigError, match="is not a plain file with a plain name"):
        records.unpack(tmp_path / "recorded", tmp_path / "runs")
    assert not (tmp_path / "runs").exists() and [path.name for path in tmp_path.iterdir()] == ["recorded"]


def test_archives_are_of_a_largest_size(tmp_path, monkeypatch):
    monkeypatch.setattr(records, "MAX_BYTES", 10**6)
    (tmp_path / "large.h5").write_bytes(bytes(2 * 10**6))
    (tmp_path / "paper.tar.xz").write_bytes(records.packed([tmp_path / "large.h5"]))
    with pytest.raises(ConfigError, match="paper.tar.xz: holds more than 976.56 KiB"):
        list(records.files_in(tmp_path / "paper.tar.xz"))


def test_a_list_that_somebody_else_has_written_is_not_unpickled(tmp_path):
    (tmp_path / "list.pickle").write_bytes(pickle.dumps("theirs"))
    with pytest.raises(ValueError, match="its SHA-256 differs: another program has written it"):
        on_nodes.load_list(tmp_path / "list.pickle", "0" * 64)


def test_what_another_fetch_works_in_stays_without_locks(tmp_path, monkeypatch):
    monkeypatch.setattr(fetch, "exclusive_lock", lambda *_, **__: io.StringIO())
    (tmp_path / f"{fetch._temporary_name()}x").mkdir()
    (tmp_path / f"{fetch.TEMPORARY}elsewhere-1-x").mkdir()
    old = tmp_path / f"{fetch.TEMPORARY}old-host-2-x"
    old.mkdir()
    os.utime(old, (0, 0))
    dead = tmp_path / fetch._temporary_name().replace(f"-{os.getpid()}-", f"-{2**22 + 1}-")
    dead.mkdir()
    with fetch._only_one(tmp_path, print):
        left = {path.name for path in tmp_path.iterdir()}
    assert left == {f"{fetch._temporary_name()}x", f"{fetch.TEMPORARY}elsewhere-1-x"}


# ---- what ranks tell each other


@pytest.mark.parametrize("text", ["ä" * 250, "\U0001f600" * 500, "x" * 5000, "ok"])
def test_what_ranks_tell_each_other_is_whole_json(text):
    import json

    told = json.loads(json_of({"why": text, "mtu": 1500, "address": ["10.0.0.1", 4]}, 1024))
    assert told["mtu"] == 1500 and text.startswith(told["why"]) and (told["why"] == text) == (len(text) < 100)


@pytest.mark.parametrize("read", [goal.read, load, network])
def test_a_sparse_text_is_refused_before_it_takes_memory(read, tmp_path):
    path = tmp_path / "sparse.toml"
    with open(path, "wb") as file:
        file.truncate(2**42)
    with pytest.raises(ConfigError, match=f"{path}: holds 4,398,046,511,104 bytes, and [0-9,]+ bytes of memory are"):
        read(str(path))
