"""Snapshots: what is restored is what was taken, from memory and from disk."""

import errno
import os

import numpy as np
import pytest
import torch
from torch import nn

from grsgd.models.replica import Replica
from grsgd.training import snapshots as module
from grsgd.training.snapshots import Moment, Snapshots, common_marks


def make(dtype=torch.float32, buffers=True):
    layers = [nn.Linear(3, 4), nn.BatchNorm1d(4)] if buffers else [nn.Linear(3, 4)]
    return Replica(nn.Sequential(*layers), dtype)


def fill(replica, value):
    for flat in (replica.params, replica.buffers):
        flat.array[:] = value + np.arange(flat.array.size) / 7


def check(replica, value):
    for flat in (replica.params, replica.buffers):
        expected = (value + np.arange(flat.array.size) / 7).astype(flat.array.dtype)
        np.testing.assert_array_equal(flat.array, expected)


def model_of(replica):
    return replica.params.tensor, replica.buffers.tensor


def moment(k):
    return Moment(time=float(k), step=k, samples=16 * k, train_loss=1.0 / (k + 1))


@pytest.mark.parametrize("memory", [None, 0, 100, 300])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("buffers", [True, False])
def test_restore(monkeypatch, memory, dtype, buffers):
    if memory is not None:
        monkeypatch.setattr(module, "MEMORY", memory)
    replica = make(dtype, buffers)
    snapshots = Snapshots(replica)
    assert len(snapshots) == 0
    for k in range(6):
        fill(replica, k)
        snapshots.take(moment(k), model_of(snapshots.replica))
    assert len(snapshots) == 6
    assert snapshots.moments == [moment(k) for k in range(6)]
    for k in (5, 0, 3, 3, 1):
        snapshots.restore(k)
        check(replica, k)


@pytest.mark.parametrize("memory, on_disk", [(10**9, False), (200, True)])
def test_many_go_to_disk(monkeypatch, memory, on_disk):
    monkeypatch.setattr(module, "MEMORY", memory)
    replica = make()
    snapshots = Snapshots(replica)
    for k in range(5):
        snapshots.take(moment(k), model_of(snapshots.replica))
    assert snapshots._file._rolled is on_disk


def test_taking_goes_on_after_a_restore():
    replica = make()
    snapshots = Snapshots(replica)
    for k in (0, 1):
        fill(replica, k)
        snapshots.take(moment(k), model_of(snapshots.replica))
    snapshots.restore(0)
    fill(replica, 2)
    snapshots.take(moment(2), model_of(snapshots.replica))
    for k in (1, 2, 0):
        snapshots.restore(k)
        check(replica, k)


def test_a_snapshot_does_not_follow_the_model():
    replica = make()
    snapshots = Snapshots(replica)
    fill(replica, 1)
    snapshots.take(moment(0), model_of(snapshots.replica))
    fill(replica, 2)
    snapshots.restore(0)
    check(replica, 1)


def test_restore_keeps_the_memory_of_the_model():
    replica = make()
    address = replica.params.array.ctypes.data
    snapshots = Snapshots(replica)
    snapshots.take(moment(0), model_of(snapshots.replica))
    snapshots.restore(0)
    assert replica.params.array.ctypes.data == next(replica.model.parameters()).data_ptr() == address


def test_one_snapshot_for_several_marks():
    replica = Replica(torch.nn.Linear(2, 1))
    snapshots = Snapshots(replica)
    for value, marks in ((1.0, 1), (2.0, 3), (3.0, 1)):
        replica.params.tensor.fill_(value)
        snapshots.take(Moment(value, 1, 1, 0.0), model_of(snapshots.replica), marks)
    assert [moment.time for moment in snapshots.moments] == [1, 2, 2, 2, 3]
    for mark, value in enumerate((1, 2, 2, 2, 3)):
        snapshots.restore(mark)
        assert (replica.params.tensor == value).all()


def test_common_marks():
    assert common_marks([[0, 1, 1, 2, 3], [0, 1, 2, 2]]) == [0, 1, 2, 3]
    assert common_marks([[0, 0, 0, 1], [0, 0, 0, 1]]) == [0, 3]
    assert common_marks([]) == []
    assert common_marks([[0, 1, 1, 2], [0, 1, 1, 2]], first=2) == [2, 3]  # without those before, the first one counts


def test_a_full_disk_costs_snapshots_and_not_the_run(monkeypatch):
    """The third copy does not fit; what follows does again."""
    monkeypatch.setattr(module, "MEMORY", 0)
    replica = make()
    snapshots = Snapshots(replica)
    write = snapshots._file.write
    for k in range(5):
        if k == 2:

            def full(data):
                write(bytes(8))
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

            monkeypatch.setattr(snapshots._file, "write", full)
        fill(replica, k)
        snapshots.take(moment(k), model_of(snapshots.replica), marks=2 if k == 2 else 1)
        monkeypatch.setattr(snapshots._file, "write", write)
    (warning,) = snapshots.warnings()
    assert warning.startswith("2 of 6 snapshots were not kept: ") and warning.endswith("No space left on device")
    assert len(snapshots) == 6
    assert common_marks([snapshots.numbers, [0, 1, 2, 3, 4, 5]]) == [0, 1, 4, 5]
    for mark, value in ((4, 3), (5, 4), (0, 0)):
        snapshots.restore(mark)
        check(replica, value)
