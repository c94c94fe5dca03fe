"""NCCL as CuPy calls it: a sum of one rank, and with two GPUs a run of two ranks."""

import time

import pytest
import torch

from grsgd.comm.gpu.memory import Memory
from grsgd.comm.gpu.nccl import CupyNccl
from grsgd.models.flat import Flat
from grsgd.runs.run_file import load_run
from tests.gpu.on_ranks import on_ranks, same_curves

pytestmark = pytest.mark.gpu


@pytest.fixture
def library(gpu):
    """CuPy's NCCL; tests are skipped, with the reason, without it."""
    found = CupyNccl()
    try:
        found.gpu()
    except Exception as error:
        pytest.skip(f"CuPy finds no NCCL: {error}")
    yield found
    found.abort()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64, torch.uint8])
def test_one_rank_sums_alone(library, gpu, dtype):
    identifier = library.identifier()
    assert identifier.shape == (128,)
    link = library.join(1, identifier, 0)
    flat = Flat.zeros(2**20 + 3, dtype, gpu)
    flat.tensor.copy_(torch.arange(2**20 + 3, device=gpu) % 100)
    expected = flat.tensor.clone()
    done = link.call("sum", flat.array, flat.array.nbytes, Memory().record_event())
    deadline = time.monotonic() + 60
    while not done.done:
        link.check()
        assert time.monotonic() < deadline
    assert torch.equal(flat.tensor, expected)
    link.abort()
    link.abort()


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs: NCCL refuses two ranks on one GPU")
def test_a_run_of_every_algorithm(library, tmp_path):
    on_ranks(2, "train_all.py", "cpu", tmp_path, "auto")
    on_ranks(2, "train_all.py", "cuda", tmp_path, "nccl")
    skipped = tmp_path / "nccl.skipped"
    assert not skipped.exists(), skipped.read_text()
    for on_cpu in tmp_path.glob("auto-*.h5"):
        of_cpu, of_gpu = load_run(on_cpu), load_run(tmp_path / on_cpu.name.replace("auto", "nccl", 1))
        assert of_gpu.attributes["transfer"] == "nccl"
        if of_cpu.curve["consensus_distance"].max() == 0:
            same_curves(of_cpu, of_gpu, but="train_loss")


@pytest.mark.skipif(torch.cuda.device_count() != 1, reason="with two GPUs no rank shares a GPU")
def test_two_ranks_on_one_gpu_are_refused(library, tmp_path):
    on_ranks(2, "train_all.py", "cuda", tmp_path, "nccl")
    assert "share a GPU" in (tmp_path / "nccl.skipped").read_text()
