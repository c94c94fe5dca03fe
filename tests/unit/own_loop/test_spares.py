"""Spares of a script: who waits, who takes a rank, and what a process is that has taken one."""

from types import SimpleNamespace

import pytest

from grsgd.errors import SetupError
from grsgd.own_loop import spares
from grsgd.own_loop.spares import Late, ScriptJob, spares_of, stand_by


def test_without_the_launchers_word_there_are_no_spares(monkeypatch):
    monkeypatch.delenv("GRSGD_SPARES", raising=False)
    spares.of_script.cache_clear()
    assert spares.of_script() is None


@pytest.mark.parametrize(
    "text, survives, words",
    [
        ("5", True, "--spares 5: must be from 0 to 4, because two of 6 processes must train"),
        ("-1", True, "--spares -1: must be from 0 to 4"),
        ("2", False, "--spares 2: needs an MPI that survives deaths: Open MPI 5's mpiexec --with-ft ulfm"),
    ],
)
def test_refusals(text, survives, words, monkeypatch):
    monkeypatch.setenv("GRSGD_SPARES", text)
    monkeypatch.setattr(spares, "fault_tolerant", lambda: survives)
    with pytest.raises(SetupError, match=words):
        spares_of(SimpleNamespace(size=6, rank=0))


def test_as_many_spares_as_the_launcher_says(monkeypatch):
    monkeypatch.setenv("GRSGD_SPARES", "4")
    monkeypatch.setattr(spares, "fault_tolerant", lambda: True)
    assert spares_of(SimpleNamespace(size=6, rank=0)) == 4


def test_a_process_that_has_taken_a_rank_calls_alone_with_the_number_of_the_rank():
    alone = SimpleNamespace(allgather=lambda value: [value], rank=0, size=1)
    late = Late(alone, 3, 5)
    assert (late.rank, late.size, late.allgather("x")) == (3, 5, ["x"])
    assert ScriptJob(None, late, 0).is_late and not ScriptJob(None, alone, 0).is_late


def test_a_spare_waits_for_a_rank_without_a_process():
    answers = iter([False, False, True])
    membership = SimpleNamespace(is_wanted=lambda: next(answers), is_over=False, is_next=True, vacant=(2, 4))
    assert stand_by(SimpleNamespace(membership=membership)) == 2


def test_a_spare_that_is_not_needed_ends_when_the_ranks_have_ended(monkeypatch):
    ended = []
    monkeypatch.setattr(spares, "end_unused", lambda lives: ended.append(lives) or exit())
    lives = SimpleNamespace(membership=SimpleNamespace(is_wanted=lambda: False, is_over=True, is_next=True))
    with pytest.raises(SystemExit):
        stand_by(lives)
    assert ended == [lives]


def test_it_meets_the_ranks_until_they_end(monkeypatch):
    meetings, done = iter([True, True, False]), []
    monkeypatch.setattr(spares, "meet", lambda world, seconds: next(meetings))
    monkeypatch.setattr(spares.words, "leave", done.append)
    monkeypatch.setattr(spares.os, "_exit", done.append)
    spares.end_unused(SimpleNamespace(world="all"))
    assert done == ["ended", 0] and next(meetings, None) is None


@pytest.mark.parametrize("is_late", [False, True])
def test_without_a_surviving_loop_the_end_of_the_script_ends_the_spares_wait(is_late, capsys):
    told = []
    membership = SimpleNamespace(
        take_over=lambda rank: told.append(("rank", rank)), finish=lambda to_all: told.append(("finished", to_all))
    )
    mpi = Late(SimpleNamespace(), 0, 2) if is_late else SimpleNamespace(rank=0)
    job = ScriptJob(SimpleNamespace(membership=membership), mpi, 0)
    job.release_spares()
    assert told == [("rank", 0)] * is_late + [("finished", False)]
    assert capsys.readouterr().err == "grsgd: spares were given, but grsgd.surviving() was not called\n"
    job.is_used = True
    job.release_spares()
    assert told[-1:] == told[is_late:] and not capsys.readouterr().err
