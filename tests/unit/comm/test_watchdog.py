"""What takes too long ends its process with one line, whether or not other threads can run."""

import os
import subprocess
import sys
import threading

import pytest

from grsgd.comm import watchdog
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
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, env=environment)


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
sys.modules["mpi4py.MPI"] = types.SimpleNamespace(
    Is_initialized=lambda: True, Finalize=lambda: ctypes.PyDLL(None).sleep(60)
)
launch.end_alike(SetupError("shard(): no samples", is_printed=False))
"""


def test_an_error_of_all_ranks_that_one_has_alone():
    environment = os.environ | {"PMIX_RANK": "3"}
    done = subprocess.run([sys.executable, "-c", ALONE], capture_output=True, text=True, timeout=120, env=environment)
    (line,) = done.stderr.strip().splitlines()
    assert line == "grsgd: rank 3: shard(): no samples (other ranks go on without this error)" and done.returncode != 0


class Ended(BaseException):
    """The end of a process, in a test."""


def test_a_time_limit_ends_the_process_after_a_line(monkeypatch):
    said, ended = [], threading.Event()
    monkeypatch.setattr(watchdog, "rank", lambda: 3)
    monkeypatch.setattr(watchdog.time, "sleep", said.append)
    monkeypatch.setattr(watchdog.os, "write", lambda _, line: said.append(line.decode()))
    monkeypatch.setattr(watchdog.os, "_exit", lambda code: (said.append(code), ended.set()))
    with watchdog.within(0.0, "making a communicator"):
        assert ended.wait(30)
    line = "\ngrsgd: rank 3: making a communicator: not done after 0 s: another rank has not joined, has stopped "
    assert said == [pytest.approx(0.15), f"{line}or has died\n", watchdog.PASSING_ON_SECONDS, 1]
    monkeypatch.setattr(watchdog, "rank", lambda: None)
    watchdog.say("no rank")
    assert said[4:] == ["\ngrsgd: no rank\n", watchdog.PASSING_ON_SECONDS]


@pytest.mark.parametrize(
    "answers, lines", [([True], []), ([False, True], ["late"]), ([False, False], ["late", "kill"])]
)
def test_a_forked_process_kills_one_that_goes_on_after_its_time(answers, lines, monkeypatch):
    """``answers``: whether the other end of the pipe is closed in time, at each look."""
    done, closed, waits = [], [], []

    def end(code):
        done.append(code)
        raise Ended

    def select(reading, _, __, seconds):
        waits.append(seconds)
        return (reading if answers[len(waits) - 1] else [], [], [])

    monkeypatch.setattr(watchdog.os, "pipe", lambda: (100, 101))
    monkeypatch.setattr(watchdog.os, "close", closed.append)
    monkeypatch.setattr(watchdog.os, "fork", lambda: 0)
    monkeypatch.setattr(watchdog.os, "kill", lambda pid, number: done.append("kill"))
    monkeypatch.setattr(watchdog.os, "_exit", end)
    monkeypatch.setattr(watchdog.select, "select", select)
    monkeypatch.setattr(watchdog, "say", done.append)
    with pytest.raises(Ended), watchdog.stopped_within(5.0, "late"):
        pytest.fail("this is the forked process")
    assert done == [*lines, 0] and closed == [101]
    assert waits == [5.0, 2 * watchdog.EXIT_SECONDS][: len(answers)]
