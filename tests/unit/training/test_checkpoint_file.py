"""Files of checkpoints: their arrays, and several threads of one process that read them."""

import gc
import time
from concurrent.futures import ThreadPoolExecutor
from io import BytesIO

import numpy as np
import pytest

from grsgd.training.checkpoint_file import CHUNK, Header, read, write

RANKS = 4


@pytest.mark.parametrize(
    "array",
    [
        np.zeros(0, np.float32),
        np.array(7),
        np.arange(12.0).reshape(3, 4).T,
        np.arange(12, dtype=np.uint16)[::2],
        np.arange(CHUNK // 4 + 3, dtype=np.float64),
        np.array([True, False]),
    ],
    ids=lambda array: f"{array.dtype}{array.shape}",
)
def test_arrays_are_written_as_numpy_writes_them(array, tmp_path):
    path, saved = tmp_path / "rank-0000.ckpt", BytesIO()
    write(path, Header("id", 1, 1, 0), {"one": array}, "")
    np.save(saved, np.array(array, order="C"))
    assert path.read_bytes().endswith(saved.getvalue())
    found = read(path)[1]["one"]
    assert found.dtype == array.dtype and found.shape == array.shape and np.array_equal(found, array)


class GivesWay:
    """An object in a circle: whoever collects it lets other threads run."""

    def __init__(self):
        self.circle = self

    def __del__(self):
        time.sleep(1e-4)


@pytest.fixture
def frequent_collection():
    """Collect garbage in the middle of nearly everything, the parsing of a header among it."""
    before = gc.get_threshold()
    gc.set_threshold(11, 1, 1)
    yield
    gc.set_threshold(*before)


@pytest.mark.usefixtures("frequent_collection")
def test_ranks_that_are_threads_read_at_the_same_time(tmp_path):
    path, arrays = tmp_path / "rank-0000.ckpt", {str(number): np.full(3, number) for number in range(50)}
    write(path, Header("id", 1, 1, 0), arrays, "")

    def read_often(rank: int):
        for _ in range(15):
            garbage = [GivesWay() for _ in range(3)]
            del garbage
            state = read(path)[1]
            assert all(np.array_equal(state[name], array) for name, array in arrays.items())

    with ThreadPoolExecutor(RANKS) as pool:
        assert list(pool.map(read_often, range(RANKS))) == [None] * RANKS
