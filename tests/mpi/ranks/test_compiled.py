"""Runs whose model, loss and backward pass torch compiles, on the ranks of an MPI job."""

import shutil

import numpy as np
import pytest

from grsgd import load_run
from grsgd.config import parse
from grsgd.job.run import run

CONFIG = {
    "model": {"name": "mlp", "hidden": [20]},
    "data": {"name": "synthetic", "samples": 120, "shape": [1, 4, 4], "classes": 3, "batch_size": 6},
    "optimizer": {"lr": 0.1, "momentum": 0.9, "clip_value": 0.5},
    "train": {"steps": 12, "snapshots": 3},
    "comm": {"timeout": 300.0},
}


@pytest.mark.exhaustive
@pytest.mark.ranks(2)
@pytest.mark.skipif(shutil.which("g++") is None, reason="torch needs a C++ compiler")
@pytest.mark.parametrize("algorithm", [{"name": "ring_allreduce", "buckets": 2}, {"name": "cssgd", "r": 2}], ids=str)
def test_replicas_stay_equal_bit_for_bit(algorithm, world, tmp_path_factory):
    """Compiled runs keep all replicas equal, and learn as runs without compilation do."""
    folder = world.bcast(tmp_path_factory.mktemp("compiled"))
    curves = []
    for compiled in (False, True):
        out = folder / f"{compiled}.h5"
        content = CONFIG | {"algorithm": algorithm, "gradient": {"compile": compiled, "micro_batch": 4}}
        assert run(world, parse(content), out).reason == "steps"
        world.Barrier()
        curves.append(load_run(out).curve)
    assert (curves[1]["consensus_distance"] == 0).all()
    np.testing.assert_allclose(curves[1]["train_loss"], curves[0]["train_loss"], rtol=1e-3)
