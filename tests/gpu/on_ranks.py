"""Programs of this folder on several ranks, and what they are compared by."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np

from grsgd.mpi_environment import find_mpiexec, job_environment

HERE, ROOT = Path(__file__).parent, Path(__file__).parents[2]


def on_ranks(ranks: int, *words):
    """Run a program of this folder under mpiexec; it must succeed."""
    command = [find_mpiexec(), "-n", ranks, sys.executable, HERE / words[0], *words[1:]]
    done = subprocess.run(
        [str(word) for word in command],
        cwd=ROOT,
        env=job_environment() | {"PYTHONPATH": f"{ROOT}:{os.environ.get('PYTHONPATH', '')}"},
        capture_output=True,
        text=True,
        timeout=400,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def same_curves(on_cpu, on_gpu, but: str | None = None, rtol: float = 1e-6):
    """``but``: what is not compared."""
    for what in {"train_loss", "test_accuracy", "consensus_distance"} - {but}:
        expected, found = on_cpu.curve[what], on_gpu.curve[what]
        np.testing.assert_allclose(found, expected, rtol=rtol, atol=1e-9, err_msg=what)
