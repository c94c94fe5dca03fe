"""The table of jobs in which processes die: it grows in pieces, and a part of a page is made of it."""

import sys

import pytest

from experiments.survival import own_loops
from experiments.survival.own_loops import Job, Outcome, read


@pytest.fixture
def runs(monkeypatch):
    """Jobs without processes: the list of their arguments; a job with deaths takes a quarter longer than without."""
    made = []

    def run(script, algorithm, spares, die, seconds=float("nan")):
        made.append((algorithm, spares, bool(die)))
        return Outcome(0, "", [1.002 if die else 1.0], 2.5 if die else 2.0)

    monkeypatch.setattr(own_loops, "run", run)
    monkeypatch.setattr(own_loops, "commit", lambda: "abc")
    return made


def call(monkeypatch, *arguments):
    monkeypatch.setattr(sys, "argv", ["own_loops", "--script", "gpt", *map(str, arguments)])
    return own_loops.main()


def test_a_table_goes_on_where_it_ended(runs, monkeypatch, tmp_path, capsys):
    out = tmp_path / "jobs.csv"
    assert call(monkeypatch, "--jobs", 3, "--out", out) == 0
    assert [died for _, _, died in runs] == [False, True, False, True, False, True]
    first = read(out)
    runs.clear()
    assert call(monkeypatch, "--jobs", 10, "--out", out) == 0
    assert read(out)[:3] == first and [job.job for job in read(out)] == list(range(10))
    assert sum(died for _, _, died in runs) == 7
    assert [each for each in runs if not each[2]].count(("ring_allreduce", 0, False)) == 0, "the table has this loss"
    runs.clear()
    monkeypatch.setattr(own_loops, "commit", lambda: "other")
    assert call(monkeypatch, "--jobs", 11, "--out", out) == 0
    assert len(runs) == 2 and read(out)[-1].commit == "other" and read(out)[0].commit == "abc"
    assert "11 of 11 jobs as they should be" in capsys.readouterr().out


@pytest.mark.parametrize("code, losses", [(1, [1.0]), (0, [1.02]), (0, [])])
def test_a_wrong_job_is_named(runs, code, losses, monkeypatch, capsys):
    found = Outcome(code, "why", losses, 2.0)
    calm = own_loops.run
    monkeypatch.setattr(own_loops, "run", lambda *each: found if each[3] else calm(*each))
    assert call(monkeypatch, "--jobs", 1) == 1
    printed = capsys.readouterr().out
    assert ": WRONG\nwhy" in printed and "0 of 1 jobs" in printed


def test_jobs_whose_results_differ_are_compared_with_the_range_of_several(runs, monkeypatch, tmp_path):
    out = tmp_path / "jobs.csv"
    assert call(monkeypatch, "--first", 4, "--jobs", 2, "--out", out) == 0
    assert [each for each in runs if not each[2]] == [("grsgd", spares, False) for spares in (0, 2) for _ in range(5)]
    assert [job.losses_without_deaths for job in read(out)] == ["1 1 1 1 1"] * 2
    assert own_loops.outside(1.5, "1.4 1.6") < 0
    assert own_loops.outside(1.386, "1.6 1.4") == pytest.approx(0.01)
    assert own_loops.outside(1.632, "1.4 1.6") == pytest.approx(0.02)
    job = Job(4, "grsgd", 0, "", 0, 1, "1", "1 nan", "1", "1", "abc")
    assert not own_loops.is_right("gpt", job), "a job without deaths has failed"
