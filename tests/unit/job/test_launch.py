"""Errors that end a job, and processes that are forked from a rank."""

import os
import sys
import threading
from types import SimpleNamespace

import pytest

from grsgd.comm.communicator import LostRank
from grsgd.job import launch
from grsgd.own_loop import distributed_optimizer


@pytest.fixture
def rank(monkeypatch):
    """The end of a communicator of which nothing but the number of the rank is needed, and what `abort` was given."""
    aborted = []
    monkeypatch.setattr(launch, "abort", lambda mpi, failed_here=True, code=1: aborted.append(failed_here))
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    monkeypatch.setattr(threading, "excepthook", threading.excepthook)
    return SimpleNamespace(rank=0, size=2), aborted


def test_a_forked_process_is_no_rank(rank, monkeypatch, capsys):
    """What it raises, and that it exits, concerns nobody else."""
    mpi, aborted = rank
    process = os.getpid()
    backend = SimpleNamespace(mpi=mpi)
    unfinished = SimpleNamespace(
        _uncounted_comm=SimpleNamespace(backend=backend),
        _process=process,
        end_is_told=False,
        end_call="optimizer.finish()",
    )
    launch.abort_on_error(mpi)
    monkeypatch.setattr(os, "getpid", lambda: process + 1)
    distributed_optimizer.DistributedOptimizer._check_finished(unfinished)
    sys.excepthook(ValueError, ValueError("in the child"), None)
    assert not aborted and "grsgd" not in (said := capsys.readouterr().err) and "in the child" in said
    monkeypatch.setattr(os, "getpid", lambda: process)
    distributed_optimizer.DistributedOptimizer._check_finished(unfinished)
    assert len(aborted) == 1 and "without optimizer.finish()" in capsys.readouterr().err


@pytest.mark.parametrize(
    "error, failed_here",
    [
        (ValueError("boom"), True),
        (LostRank("rank 1 lost"), False),
        (KeyboardInterrupt("terminated (SIGTERM)"), False),
    ],
)
def test_errors_that_say_all_have_no_traceback(error, failed_here, rank, capsys):
    mpi, aborted = rank
    launch.abort_on_error(mpi)
    sys.excepthook(type(error), error, None)
    said = capsys.readouterr().err
    assert aborted == [failed_here] and said.count(str(error)) == 1
    lines = [" failed:", "ValueError: boom"] if failed_here else [f": {error}"]
    assert said == "\n".join(["", f"grsgd: rank 0 of 2{lines[0]}", *lines[1:], ""])
