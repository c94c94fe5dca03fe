"""Tensors without content keep their shapes, and cost nothing."""

import subprocess
import sys

import pytest
import torch

from grsgd.models.flat import Flat
from grsgd.models.shape_only_tensor import IN_PLACE, shape_only_tensor

META = torch.device("meta")


def test_they_are_made_where_a_replica_has_no_content():
    x = Flat.zeros(10, torch.float64, META)
    assert len(x.array) == x.tensor.numel() == 10 and x.tensor.is_meta and x.tensor.dtype == torch.float64
    assert x.like().tensor.numel() == 10


@pytest.mark.parametrize("name", IN_PLACE)
def test_arithmetic_in_place_returns_the_tensor(name):
    assert hasattr(torch.Tensor, name)
    x = shape_only_tensor(10, torch.float32)
    assert getattr(x, name)(x) is x
    part = x[2:5]
    assert getattr(part, name)(part) is part and part.shape == (3,)


def test_what_is_written_into_out_is_returned():
    x, y = shape_only_tensor(10, torch.float32), shape_only_tensor(10, torch.float32)
    assert torch.mul(x, 2, out=y) is y


def test_other_functions_give_what_torch_gives():
    x = shape_only_tensor(12, torch.float32)
    assert (x - x).shape == (12,) and (x - x).is_meta
    assert [len(part) for part in x.split([4, 8])] == [4, 8] and x.view(3, 4).shape == (3, 4)
    with pytest.raises(RuntimeError):
        x.view(5, 5)


def test_one_of_a_size_stands_for_all():
    x = shape_only_tensor(12, torch.float32)
    assert shape_only_tensor(12, torch.float32) is x and shape_only_tensor(12, torch.float64).dtype == torch.float64
    for part in (slice(3, 7), slice(4, None), slice(-2, None), slice(5, 2), slice(0, 100)):
        found = x[part]
        assert found.is_meta and found.shape == torch.zeros(12)[part].shape and found.dtype == torch.float32
    assert x[2].shape == () and x.view(3, 4)[1:].shape == (2, 4)
    assert x.view((12,)) is x and x.view((3, 4)).shape == (3, 4)
    assert x.view(torch.float64) is shape_only_tensor(6, torch.float64)
    with pytest.raises(RuntimeError):
        shape_only_tensor(5, torch.float32).view(torch.float64)
    with pytest.raises(RuntimeError):
        x.split([4, 9])


PROGRAM = """
import sys
from pathlib import Path

from grsgd.config import parse
from grsgd.simulator.network import network
from grsgd.simulator.run import simulate

names = {"algorithm": {"name": sys.argv[1]}, "data": {"name": "synthetic"}, "model": {"name": "mlp"}}
config = parse(names | {"train": {"steps": 2}})
simulate(config, 3, network(), Path("run.h5"), "constant:0.1", timing_only=True)
sys.exit("torch._dynamo" in sys.modules)
"""


@pytest.mark.parametrize("name", ["grsgd", "ring_allreduce", "parameter_server"])
def test_a_run_of_times_alone_does_not_import_the_compiler_of_torch(name, tmp_path):
    subprocess.run([sys.executable, "-c", PROGRAM, name], cwd=tmp_path, check=True, timeout=120)
