"""How a script ends: with MPI_Finalize, or without, if its loop has outlived processes."""

import os

import pytest

from grsgd.job import words
from grsgd.own_loop import script_end
from grsgd.own_loop.script_end import ScriptEnd


@pytest.fixture
def done(monkeypatch):
    """A list of what is done at the end, in place of doing it."""
    done = []
    monkeypatch.setattr(script_end, "meet", lambda world, seconds, word: done.append((world, word)))
    monkeypatch.setattr(words, "leave", lambda word, code: done.append((word, code)))
    monkeypatch.setattr(script_end.os, "_exit", done.append)
    return done


def test_a_script_without_survival_ends_as_any_other(done):
    ScriptEnd().come(lambda *given: done.append(given), "all", os.getpid())
    assert done == [("all", os.getpid())]


def test_the_exit_code_of_the_script_is_kept(done, monkeypatch):
    monkeypatch.setattr("grsgd.job.exit_code._noted", [3])
    end = ScriptEnd()
    end.leave_out_finalize("all")
    end.leave_out_finalize("another")
    end.come(lambda *given: done.append(given), "all", os.getpid())
    assert done == [("all", "end"), ("ended", "3"), 3]


def test_processes_that_the_script_needs_no_more_hear_so_before_the_meeting(done):
    end = ScriptEnd()
    end.leave_out_finalize("all", lambda: done.append("released"))
    end.come(lambda *given: done.append(given), "all", os.getpid())
    assert done == ["released", ("all", "end"), ("ended", "0"), 0]


def test_a_forked_process_does_nothing(done):
    end = ScriptEnd()
    end.leave_out_finalize("all")
    end.come(lambda *given: done.append(given), "all", os.getpid() + 1)
    assert done == []


def test_files_that_the_script_has_left_open_are_written(done, tmp_path):
    log = open(tmp_path / "loss.csv", "w")  # noqa: SIM115, it stays open
    log.write("0.5\n")
    end = ScriptEnd()
    end.leave_out_finalize("all")
    end.come(lambda *given: done.append(given), "all", os.getpid())
    assert (tmp_path / "loss.csv").read_text() == "0.5\n"
    log.close()
