"""How many threads torch computes with."""

import os
import subprocess
import sys

import pytest


@pytest.mark.parametrize("said, threads", [("", 1), ("1", 1), ("2", 2), ("2,1", 2)])
def test_threads(said, threads):
    """As many as OMP_NUM_THREADS says, of which torch takes no more than there are cores."""
    program = "import torch, grsgd.train; grsgd.train.use_threads(); print(torch.get_num_threads())"
    environment = os.environ | {"OMP_NUM_THREADS": said}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=60)
    assert int(done.stdout) in (threads, min(threads, os.cpu_count())), done.stderr
