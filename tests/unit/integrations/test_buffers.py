"""Tests of `grsgd.integrations.buffers`."""

import pytest
import torch

from grsgd.integrations import buffers

KINDS = [torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.complex64]


def through(thing):
    """Return the object as another rank would receive it."""
    sent, tensors = buffers.outline(thing)
    found, places = buffers.empty(sent)
    for tensor, place in zip(tensors, places, strict=True):
        for piece, into in zip(buffers.pieces(buffers.on_host(tensor)), buffers.pieces(place), strict=True):
            into[:] = piece
    return found


@pytest.mark.parametrize("dtype", KINDS)
def test_tensors_of_an_object_arrive(dtype, monkeypatch):
    monkeypatch.setattr(buffers, "PIECE_BYTES", 24)
    wide = (torch.arange(40) % 3).to(dtype).view(5, 8)
    thing = {"a": [wide, wide[:, 2], wide.T], "b": (torch.tensor(1).to(dtype), torch.empty(0, 3).to(dtype)), "c": "t"}
    found = through(thing)
    assert found["c"] == "t"
    for before, after in zip((*thing["a"], *thing["b"]), (*found["a"], *found["b"]), strict=True):
        assert after.dtype == dtype and after.shape == before.shape and torch.equal(after, before)


def test_an_outline_has_no_contents_of_tensors():
    sent, tensors = buffers.outline({"model": torch.zeros(100_000), "steps": 3})
    assert len(sent) < 1000 and len(tensors) == 1


def test_other_kinds_of_tensors_are_pickled():
    sparse = torch.eye(3).to_sparse()
    parameter = torch.nn.Parameter(torch.ones(2))
    found = through([sparse, parameter])
    assert torch.equal(found[0].to_dense(), torch.eye(3)) and found[1].requires_grad
