"""Compression, checkpoints and options that a run chooses, on a GPU that two ranks share; and what GPUs do not have."""

import numpy as np
import pytest
import torch

from grsgd.algorithms import ALGORITHMS
from grsgd.runs.run_file import load_run
from tests.gpu.on_ranks import on_ranks, same_curves
from tests.gpu.train_options import CHOSEN, COMPRESSED, IN_HOST_MEMORY, REFUSED, RESUMED

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    """The run files of all, on the GPU and on the CPU."""
    folder = tmp_path_factory.mktemp("options")
    for device in ("cpu", "cuda"):
        on_ranks(2, "train_options.py", device, folder)
    return folder


@pytest.mark.parametrize("name", COMPRESSED)
def test_compressed(folder, name):
    on_cpu, on_gpu = (load_run(folder / f"{device}-{name}.h5") for device in ("cpu", "cuda"))
    assert on_gpu.attributes["device"] == "cuda"
    same_curves(on_cpu, on_gpu)
    assert on_gpu.curve["consensus_distance"].max() == 0, "not identical bit for bit"
    assert (on_gpu.traffic["sent"] == on_cpu.traffic["sent"]).all()


@pytest.mark.parametrize("name", IN_HOST_MEMORY)
def test_arrays_in_host_memory(folder, name):
    on_cpu, on_gpu = (load_run(folder / f"{device}-{name}.h5") for device in ("cpu", "cuda"))
    assert on_gpu.attributes["device"] == "cuda"
    same_curves(on_cpu, on_gpu)
    assert (on_gpu.traffic["sent"] == on_cpu.traffic["sent"]).all()


@pytest.mark.parametrize("name", RESUMED)
def test_a_run_goes_on_from_its_checkpoint(folder, name):
    whole, resumed = (load_run(folder / f"cuda-{name}{part}.h5") for part in ("", ", resumed"))
    assert resumed.attributes["device"] == "cuda" and 0 < resumed.attributes["resumed"] < whole.curve["samples"][-1]
    assert resumed.curve["samples"][-1] == whole.curve["samples"][-1]
    if ALGORITHMS[RESUMED[name][0]].traits.synchronous:
        expected, found = (
            torch.load(folder / f"cuda-{name}{part}.pt", weights_only=True) for part in ("", ", resumed")
        )
        assert all(torch.equal(found[key], expected[key]) for key in expected)
        for what in whole.curve.keys() - {"time"}:
            np.testing.assert_array_equal(resumed.curve[what], whole.curve[what])


@pytest.mark.parametrize("name", CHOSEN)
def test_what_a_run_chooses_works(folder, name):
    on_cpu, on_gpu = (load_run(folder / f"{device}-{name}.h5") for device in ("cpu", "cuda"))
    assert on_gpu.attributes["device"] == "cuda"
    same_curves(on_cpu, on_gpu, rtol=1e-3)  # of other options, maybe, which sum in another order


@pytest.mark.parametrize("name", REFUSED)
def test_what_gpus_do_not_have_is_refused(folder, name):
    assert "memory of" in (folder / f"{name}.refused").read_text()
    assert not (folder / f"cuda-{name}.h5").exists()
