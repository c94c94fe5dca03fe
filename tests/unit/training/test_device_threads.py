"""How many threads torch computes with."""

import os
import subprocess
import sys

import pytest
import torch

from grsgd.training.device import use_threads


@pytest.mark.exhaustive
@pytest.mark.parametrize("said, threads", [("", 1), ("1", 1), ("2", 2), ("2,1", 2)])
def test_threads(said, threads):
    """As many as OMP_NUM_THREADS says, of which torch takes no more than there are cores."""
    program = "import torch; from grsgd.training import device; device.use_threads(); print(torch.get_num_threads())"
    environment = os.environ | {"OMP_NUM_THREADS": said}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=60)
    assert int(done.stdout) in (threads, min(threads, os.cpu_count())), done.stderr


@pytest.mark.parametrize("said, threads", [(None, 1), ("", 1), ("2", 2), ("2,1", 2)])
def test_one_thread_unless_more_are_asked_for(said, threads, monkeypatch):
    """torch is there already, with two."""
    if said is None:
        monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    else:
        monkeypatch.setenv("OMP_NUM_THREADS", said)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        use_threads()
        assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(before)
