"""Examinations that end before MPI starts, and processes that MPI does not connect."""

import os
import subprocess
import sys
import threading
import time
from contextlib import nullcontext
from types import SimpleNamespace

import pytest

from grsgd.doctor import examination, mpi_library
from grsgd.doctor.examination import Examination
from grsgd.doctor.findings import in_text
from tests.support.launcher import without_launcher


@pytest.mark.parametrize("rank", ["0", "1"])
def test_a_rank_that_cannot_load_mpi_says_so(rank, tmp_path, monkeypatch, capsys):
    waits, handled = [], []

    def load():
        raise RuntimeError("cannot load MPI library\nlibmpi.so.40: cannot open")

    monkeypatch.setattr(mpi_library, "load", load)
    monkeypatch.setattr(examination, "rank", lambda: rank)
    monkeypatch.setattr(examination.time, "sleep", waits.append)
    monkeypatch.setattr(examination.signal, "signal", lambda number, handler: handled.append(number))
    assert Examination(tmp_path, in_text).run() == 1
    shown, line = capsys.readouterr()
    if rank == "0":
        assert waits == handled == [] and "! MPI, library: not loaded: cannot load" in shown and not line
    else:
        assert waits == [examination.OTHERS_WAIT_SECONDS] and shown == ""
        assert handled == [examination.signal.SIGTERM]
        assert line.startswith("grsgd: rank 1: library: not loaded: cannot load MPI library; libmpi.so.40: cannot open")
        assert "LD_LIBRARY_PATH" in line


@pytest.mark.parametrize(
    "doing, is_silent",
    [(examination.LOADING, False), (examination.SENDING_GPU_MEMORY, False), ("comparing clocks", True)],
)
def test_slow_imports_are_not_blamed_on_a_firewall(doing, is_silent, tmp_path, monkeypatch, capsys):
    ended = threading.Event()
    monkeypatch.setattr(examination.os, "_exit", lambda code: ended.set())
    slow = Examination(tmp_path, in_text, 0.1)
    slow.speaks, slow.doing = True, doing
    with slow.watched():
        assert ended.wait(20)
    shown = capsys.readouterr().out
    assert f"! examination, time: not done within 0.1 s: {doing}" in shown
    assert ("firewall" in shown) == is_silent and ("load slowly" in shown) != is_silent


@pytest.mark.parametrize("loading, is_silent", [(0.5, True), (9.0, False)])
def test_a_rank_that_was_slow_itself_expects_slow_ranks(loading, is_silent, tmp_path, monkeypatch):
    said = []
    monkeypatch.setattr(examination, "stopped_within", lambda seconds, what: said.append(what) or nullcontext())
    mpi = SimpleNamespace(Init_thread=lambda level: level, THREAD_MULTIPLE=3, COMM_WORLD=SimpleNamespace(size=1))
    waiting = Examination(tmp_path, in_text)
    waiting.speaks = True
    waiting.start(mpi, loading)
    assert "other ranks of the job have not come" in said[0] and ("firewall" in said[0]) == is_silent


WAITS_FOR_THE_OTHER = """
import sys, time
from pathlib import Path
from types import SimpleNamespace
from grsgd.cli import main
from grsgd.doctor import examination

def sleep(seconds):
    assert seconds == examination.FIRST_SPEAKS_SECONDS
    Path(sys.argv[1]).touch()
    while Path(sys.argv[1]).exists():
        time.sleep(0.05)

examination.LOAD_SECONDS = examination.START_SECONDS = 60.0
examination.time = SimpleNamespace(**vars(time) | {"sleep": sleep})
sys.exit(main(["doctor", "--output", sys.argv[2]]))
"""
"""Program of a process whose pause at its end lasts until the file that it makes is removed."""


def test_of_unconnected_processes_only_the_first_fails_and_it_ends_last(tmp_path):
    pause, folder = tmp_path / "pause", tmp_path / "folder"
    folder.mkdir()
    jobs = [
        subprocess.Popen(
            [sys.executable, *how, folder],
            env=without_launcher(os.environ) | {"SLURM_STEP_NUM_TASKS": "2", "SLURM_PROCID": str(number)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for number, how in enumerate((["-c", WAITS_FOR_THE_OTHER, pause], ["-m", "grsgd", "doctor", "--output"]))
    ]
    silent, _ = jobs[1].communicate(timeout=60)
    deadline = time.monotonic() + 60
    while not pause.exists() and jobs[0].poll() is None and time.monotonic() < deadline:
        time.sleep(0.05)
    assert pause.exists() and jobs[0].poll() is None, "srun would have killed the second process"
    pause.unlink()
    text, _ = jobs[0].communicate(timeout=60)
    assert (jobs[1].returncode, silent) == (0, "") and jobs[0].returncode == 1
    assert "! launcher, ranks: srun started 2 tasks" in text
