"""However a program of the experiments ends, what it has started ends with it."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from grsgd.job.ending import exit_on_signals

ROOT = Path(__file__).parents[3]
SECONDS = 60
SIDE_BY_SIDE = r"""
import os, time
from pathlib import Path
from experiments.runner.parallel import make_in_parallel
from grsgd.job.ending import exit_on_signals

def make(cell, folder):
    os.write(1, b"begun\n")
    time.sleep(60)
    os.write(1, b"over\n")

exit_on_signals()
list(make_in_parallel(make, [1, 2, 3, 4], Path("."), 2))
"""
AT_ONCE = SIDE_BY_SIDE.replace(
    "exit_on_signals()\n",
    """exit_on_signals()
from concurrent.futures import ProcessPoolExecutor
submit = ProcessPoolExecutor.submit

def submit_and_wait(*arguments):
    future = submit(*arguments)
    time.sleep(60)
    return future

ProcessPoolExecutor.submit = submit_and_wait
""",
)
"""Ended while the processes are there already, but not all items are handed out."""
JOB = """
import sys
from pathlib import Path
from experiments.runner.batch import started

program = "import time; print('begun', flush=True); time.sleep(60); print('over')"
with started([sys.executable, "-c", program], None, []) as job:
    job.wait()
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="prctl is Linux's")
@pytest.mark.parametrize(
    ("number", "script", "children"),
    [
        (signal.SIGTERM, SIDE_BY_SIDE, 2),
        pytest.param(signal.SIGHUP, SIDE_BY_SIDE, 2, marks=pytest.mark.exhaustive),
        pytest.param(signal.SIGINT, SIDE_BY_SIDE, 2, marks=pytest.mark.exhaustive),
        pytest.param(signal.SIGKILL, SIDE_BY_SIDE, 2, marks=pytest.mark.exhaustive),
        (signal.SIGTERM, AT_ONCE, 1),
        (signal.SIGKILL, JOB, 1),
    ],
)
def test_what_was_started_ends_too(number, script, children):
    """The pipe is at its end when nobody is left who could write into it."""
    program = subprocess.Popen(
        [sys.executable, "-c", script],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        preexec_fn=lambda: [signal.signal(each, signal.SIG_DFL) for each in (signal.SIGINT, signal.SIGHUP)],
    )
    for _ in range(children):
        assert program.stdout.readline() == "begun\n"
    os.kill(program.pid, number)
    assert program.stdout.read() == "", "something new has begun, or what had begun has gone on to its end"
    assert program.wait(SECONDS) != 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_signals_leave_by_an_exception(number):
    """But for one that somebody else has taken, or that is ignored."""
    before = signal.signal(number, signal.SIG_DFL)
    replaced = {}
    try:
        replaced = exit_on_signals()
        assert replaced[number] == signal.SIG_DFL and number not in exit_on_signals()
        with pytest.raises(SystemExit) as left:
            signal.raise_signal(number)
        assert left.value.code == 128 + number
    finally:
        for other, handler in (replaced | {number: before}).items():
            signal.signal(other, handler)


ORPHAN = """
import subprocess, sys, time
from grsgd.job.ending import adopt_orphans, kill_orphans, own_children

adopt_orphans()
subprocess.run(["sh", "-c", "(sleep 60; :) & exit"])  # an agent with a child of its own
assert own_children()
kill_orphans()
assert not own_children()
"""


@pytest.mark.skipif(not Path("/proc/thread-self/children").exists(), reason="the kernel lists no children")
def test_orphans_of_a_launcher_keep_no_pipe_open():
    done = subprocess.run([sys.executable, "-c", ORPHAN], cwd=ROOT, stdout=subprocess.PIPE, timeout=SECONDS, check=True)
    assert done.stdout == b""
