"""Files of checkpoints, and what a rank reads again when it goes on."""

import itertools

import numpy as np
import pytest

from grsgd.data.shards import index_stream
from grsgd.errors import ConfigError, RunFileError
from grsgd.training.checkpoints import Every, read, samples_of, write

STATE = {
    "model": {"parameters": np.arange(5, dtype=np.float32), "buffers": np.zeros(0), "others": {"0": np.array(7)}},
    "optimizer": {"remembered": {}, "groups": [{"lr": 0.1, "betas": [0.9, 0.99], "params": [0, 1]}]},
    "streams": {"algorithm": {"state": {"state": 2**127 + 1}}, "torch": np.arange(3, dtype=np.uint8)},
    "losses": {},
    "staleness": [[0, 3]],
    "weight": float("inf"),
}


def same(one, other) -> bool:
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[name], other[name]) for name in one)
    if isinstance(one, np.ndarray):
        return one.dtype == other.dtype and one.shape == other.shape and bool((one == other).all())
    return one == other


def test_a_state_is_read_as_it_was_written(tmp_path):
    write(tmp_path / "rank.h5", STATE, {"ranks": 2, "config": "seed = 1"})
    state, attributes = read(tmp_path / "rank.h5")
    assert same(STATE, state) and attributes == {"ranks": 2, "config": "seed = 1"}


@pytest.mark.parametrize("content", [b"", b"no HDF5", None])
def test_a_damaged_file_is_named(tmp_path, content):
    path = tmp_path / "rank.h5"
    if content is None:
        write(path, {"model": {}}, {"config": ""})
        content = path.read_bytes()[:-200]
    path.write_bytes(content)
    with pytest.raises(RunFileError, match=f"^{path}: not a checkpoint, or a damaged one: [^\n]*$"):
        read(path)


def test_checkpoints_of_a_rank_are_found(tmp_path):
    for name in (
        "samples-000000000004/rank-0001.h5",
        "samples-000000000012/rank-0001.h5",
        "samples-000000000008/rank-0000.h5",
        "samples-x/rank-0001.h5",
    ):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).touch()
    assert samples_of(tmp_path, 1) == {4, 12} and samples_of(tmp_path, 0) == {8}
    assert samples_of(tmp_path / "none", 0) == set()


@pytest.mark.parametrize(("text", "expected"), [("100", Every(steps=100)), ("0.5s", Every(seconds=0.5))])
def test_how_often(text, expected):
    assert Every.read(text) == expected


@pytest.mark.parametrize("text", ["0", "-1", "0s", "ten", "1m", "", "nans"])
def test_how_often_it_cannot_be(text):
    with pytest.raises(ConfigError, match="^--every .*: expected steps, as in 100, or seconds, as in 60s$"):
        Every.read(text)


@pytest.mark.parametrize(("samples", "batch"), [(10, 3), (7, 7), (5, 12), (1, 1)])
@pytest.mark.parametrize("first", [0, 1, 4, 23])
def test_batches_from_any_number_on_are_those_of_the_whole_stream(samples, batch, first):
    indices = np.arange(100, 100 + samples)
    whole = itertools.islice(index_stream(indices, batch, seed=3, rank=1), first, first + 9)
    later = itertools.islice(index_stream(indices, batch, seed=3, rank=1, first=first), 9)
    for expected, found in zip(whole, later, strict=True):
        np.testing.assert_array_equal(found, expected)
