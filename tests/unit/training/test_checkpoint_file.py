"""Files of checkpoints that several threads of one process read."""

import gc
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from grsgd.training.checkpoint_file import Header, read, write

RANKS = 4


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
