"""Files of checkpoints, and what a rank reads again when it goes on."""

import itertools
import os
from collections import deque
from types import SimpleNamespace

import h5py
import numpy as np
import pytest
import torch

from grsgd.data.shards import index_stream
from grsgd.errors import ConfigError, RunFileError
from grsgd.models.replica import Replica
from grsgd.training.checkpoint_file import PLACE, Header, read, read_header, write
from grsgd.training.checkpoint_folder import file_of, name_of
from grsgd.training.checkpoints import Checkpoints, Every
from grsgd.training.rank_state import (
    digests_of_frozen,
    restore_optimizer,
    restore_outside,
    state_of_optimizer,
    state_outside,
)
from grsgd.training.run_content import RunContent
from tests.support.exhaustive import exhaustive_unless
from tests.support.fuzz import damaged

HEADER = Header("5f3a", 720, 2, 1)

STATE = {
    "model": {"parameters": np.arange(5, dtype=np.float32), "buffers": np.zeros(0), "others": {"0": np.array(7)}},
    "optimizer": {"remembered": {}, "groups": {"0": {"lr": 0.1, "betas": [0.9, 0.99], "params": [0, 1]}}},
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


@pytest.fixture
def path(tmp_path):
    """The file of a checkpoint."""
    write(tmp_path / "rank.ckpt", HEADER, STATE, "seed = 1")
    return tmp_path / "rank.ckpt"


def test_a_state_is_read_as_it_was_written(path):
    header, state, config = read(path)
    assert (header, config) == (HEADER, "seed = 1") and same(STATE, state) and read_header(path) == HEADER


@pytest.mark.parametrize("first", exhaustive_unless([0], range(0, 7_500, 250)))
def test_whatever_is_damaged_is_refused_in_one_line(path, first):
    content = path.read_bytes()
    for seed in range(first, first + 250):
        path.write_bytes(damaged(content, seed))
        with pytest.raises(RunFileError, match=f"^{path}: [^\n]+$"):
            read(path)


def test_what_is_no_file_of_this_format_is_refused_in_one_line(path, tmp_path):
    assert read(path)[0] == HEADER
    with h5py.File(path, "w") as older:
        older.attrs["ranks"] = 2
    with pytest.raises(RunFileError, match=f"^{path}: not a checkpoint of format 2, or a damaged one$"):
        read(path)
    path.write_bytes(b'{"kind": "checkpoint of grsgd", "format": 3, "id": "1", "samples": 1, "ranks": 1, "rank": 0}')
    with pytest.raises(RunFileError, match="of format 3, but this version reads format 2$"):
        read(path)
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(RunFileError, match="rank.ckpt: not a file$"):
        read(path)
    with pytest.raises(RunFileError, match="none.h5: No such file or directory$"):
        read(tmp_path / "none.h5")


@pytest.mark.parametrize("group", [{"kinds": {"weights"}}, {"call": print}, {"by": {1: 2}}])
def test_what_fits_into_no_file_is_named(tmp_path, group):
    (name,) = group
    with pytest.raises(TypeError, match=f"/optimizer/groups/0.*{name}"):
        write(tmp_path / "rank.ckpt", HEADER, {"optimizer": {"groups": {"0": group}}}, "")


def test_a_value_that_looks_like_the_place_of_an_array_is_an_error_and_no_array(tmp_path):
    write(tmp_path / "rank.ckpt", HEADER, {"a": PLACE, "b": np.zeros(2)}, "")
    with pytest.raises(RunFileError, match="^[^\n]*cannot be read: "):
        read(tmp_path / "rank.ckpt")


def test_an_optimizer_that_no_file_can_hold_is_refused_before_training():
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=torch.tensor(0.1))
    trainer = SimpleNamespace(
        optimizer=SimpleNamespace(optimizer=optimizer),
        config=SimpleNamespace(optimizer=SimpleNamespace(name="mine.py:Opt")),
        replica=frozen_first(),
        snapshots=SimpleNamespace(share=int),
    )
    content = object.__new__(RunContent)
    content.attach(trainer)
    optimizer.param_groups[0]["kinds"] = {"weights"}
    with pytest.raises(ConfigError, match="^--checkpoint: optimizer mine.py:Opt: /optimizer/groups/0/kinds: .* set "):
        content.attach(trainer)


def test_numbers_of_an_optimizer_that_are_tensors_come_back(path):
    def optimizer():
        return torch.optim.AdamW([torch.ones(2, requires_grad=True)], lr=torch.tensor(0.1), weight_decay=0.5)

    one, other = optimizer(), optimizer()
    one.param_groups[0]["params"][0].grad = torch.ones(2)
    one.step()
    one.param_groups[0]["lr"].fill_(0.25)
    write(path, HEADER, state_of_optimizer(one), "")
    restore_optimizer(other, read(path)[1])
    assert torch.is_tensor(other.param_groups[0]["lr"]) and other.param_groups[0]["lr"] == 0.25
    (before,), (after,) = one.state.values(), other.state.values()
    assert all(torch.equal(before[name], after[name]) for name in before)


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


def test_after_a_signal_all_ranks_are_asked_for_a_checkpoint():
    asked = []
    checkpoints = SimpleNamespace(meeting=SimpleNamespace(ask=asked.append), _for_folder=deque())
    assert Checkpoints.asks_for_checkpoint(checkpoints, "SIGTERM") and asked == ["SIGTERM"]
    assert Checkpoints.asks_for_checkpoint(checkpoints, "") and asked == ["SIGTERM", ""]


class Alone(Checkpoints):
    """Checkpoints of rank 0 of an asynchronous algorithm, in the folder and in memory; it notes which are taken."""

    def __init__(self, every: int, every_in_memory: int):
        self.every, self.in_lockstep, self._step, self._time = Every(steps=every), False, 0, 0.0
        self._for_folder, self.asked, self.taken = deque(), 0, []
        self.comm = SimpleNamespace(rank=0, size=1)
        self.memory = SimpleNamespace(step=0, every=every_in_memory, watch=lambda: None, agree=self.agree)
        self.trainer = SimpleNamespace(recovery=SimpleNamespace(position=0))
        self.meeting = SimpleNamespace(ask=self.ask, watch=lambda step: None)

    def ask(self, reason=""):
        self.asked += 1

    def agree(self, in_folder):
        self.taken.append((self.trainer.recovery.position, in_folder))
        return False, False, False  # nothing is written
        yield

    def train(self, steps: int):
        for _ in range(steps):
            self.trainer.recovery.position += 1
            self.watch()  # after the step
            self.watch()  # before the next step
            if self.asked:
                self.asked = 0
                assert not list(self._take(""))


def test_a_checkpoint_in_memory_takes_the_place_of_none_in_the_folder():
    """Both are due at steps 4 and 8: the folder gets its checkpoints."""
    alone = Alone(every=4, every_in_memory=2)
    alone.train(9)
    assert alone.taken == [(2, False), (4, True), (6, False), (8, True)]
    alone.asks_for_checkpoint("")
    alone.train(1)
    assert alone.taken[4:] == [(10, True)], "after SIGUSR2 a checkpoint in memory was due, too"


def test_a_run_that_goes_on_from_memory_keeps_the_checkpoint_on_disk_until_the_second_new_one(tmp_path):
    """The checkpoint in memory is of sample 40; the folder has a whole one of sample 20, and parts of an older one."""

    def there():
        return {path.name for path in tmp_path.iterdir() if path.name.startswith("samples-")}

    def save(samples: int):
        for path in (tmp_path / name_of(samples) / file_of(0), tmp_path / "curve-5f" / "rank-0000.bin"):
            path.parent.mkdir(exist_ok=True)
            path.touch()

    alone = Alone(every=1, every_in_memory=1)
    alone.folder, alone._was_for_memory = tmp_path, False
    alone._curve = SimpleNamespace(name="curve-5f")
    alone.writer = SimpleNamespace(has_begun=True, written=lambda: iter(()), problem="")
    save(10)
    save(20)
    alone.go_on_from_checkpoint(tmp_path, 40, [(name_of(20), "curve-5f")], None)
    left = []
    for alone._at in (60, 80):
        save(alone._at)
        list(alone.written())
        left.append(there())
    assert left == [{name_of(20), name_of(60)}, {name_of(60), name_of(80)}]
    assert (tmp_path / "curve-5f").exists()


def frozen_first():
    torch.manual_seed(0)
    layers = torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 2)
    layers[0].requires_grad_(False)
    return Replica(torch.nn.Sequential(*layers))


def test_a_frozen_base_is_kept_only_if_it_has_changed():
    replica = frozen_first()
    begin = digests_of_frozen(replica)
    replica.model[1].num_batches_tracked.fill_(7)
    same = state_outside(replica, begin)
    assert len(begin) == 2 and same["others"].keys() == {"2"} and same["digests"].keys() == {"0", "1"}
    replica.model[0].weight.data.zero_()
    changed, whole = state_outside(replica, begin), state_outside(replica, None)
    assert changed["others"].keys() == {"0", "2"} and changed["digests"].keys() == {"1"}
    assert whole["others"].keys() == {"0", "1", "2"} and whole["digests"] == {}

    later = frozen_first()
    restore_outside(later, same)
    assert later.model[1].num_batches_tracked == 7 and later.model[0].weight.any()
    restore_outside(later, changed)
    assert not later.model[0].weight.any()
    restore_outside(later, {"others": whole["others"]})  # a checkpoint of an old version
    with pytest.raises(ValueError, match="^frozen parameter 0 has changed since the checkpoint was taken$"):
        restore_outside(later, same)
