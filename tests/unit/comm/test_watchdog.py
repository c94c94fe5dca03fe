"""What takes too long ends its process with one line, whether or not other threads can run."""

import os
import subprocess
import sys

import pytest

from grsgd.errors import SetupError
from grsgd.job import launch

PROGRAM = """
import time, sys
from grsgd.comm.watchdog import within, stopped_within
with within(60, "being quick"), stopped_within(60, "being quick"):
    pass
with {context}({seconds}, "making multicast groups"):
    {block}
print("done")
"""
BLOCKED = "import ctypes; ctypes.PyDLL(None).sleep(60)"
"""With all threads of Python, as MPI_Init does."""


def run(context, block, seconds="0.1"):
    program = PROGRAM.format(context=context, block=block, seconds=seconds)
    environment = os.environ | {"PMIX_RANK": "3"}
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=30, env=environment)


@pytest.mark.parametrize("context, block", [("within", "time.sleep(60)"), ("stopped_within", BLOCKED)])
def test_too_long(context, block):
    done = run(context, block)
    (line,) = done.stderr.strip().splitlines()
    assert line.startswith("grsgd: rank 3: making multicast groups") and done.returncode != 0 and not done.stdout


@pytest.mark.parametrize("context", ["within", "stopped_within"])
def test_in_time(context):
    done = run(context, "pass", "float('inf')" if context == "within" else "30")
    assert done.returncode == 0 and done.stdout == "done\n" and not done.stderr


@pytest.mark.parametrize("text", ["soon", "0", "-1", "nan", "inf"])
def test_time_for_the_start_of_mpi(text, monkeypatch):
    monkeypatch.setenv("GRSGD_START_SECONDS", text)
    with pytest.raises(SetupError, match=f"GRSGD_START_SECONDS = {text}"):
        launch.start_seconds()
    monkeypatch.setenv("GRSGD_START_SECONDS", "2.5")
    assert launch.start_seconds() == 2.5


ALONE = """
import ctypes, sys, types
from grsgd.errors import SetupError
from grsgd.job import launch
launch.ALIKE_SECONDS = 0.1
sys.modules["mpi4py.MPI"] = types.SimpleNamespace(Finalize=lambda: ctypes.PyDLL(None).sleep(60))
launch.end_alike(SetupError("shard(): no samples", is_printed=False))
"""


def test_an_error_of_all_ranks_that_one_has_alone():
    environment = os.environ | {"PMIX_RANK": "3"}
    done = subprocess.run([sys.executable, "-c", ALONE], capture_output=True, text=True, timeout=30, env=environment)
    (line,) = done.stderr.strip().splitlines()
    assert line == "grsgd: rank 3: shard(): no samples (other ranks go on without this error)" and done.returncode != 0
