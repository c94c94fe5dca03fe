"""Losses of hosts that the ranks of a restarted job know."""

import time

import grsgd
from grsgd.job import words
from grsgd.job.restarts import Loss, attributes, job_id, losses, variables
from grsgd.mpi_environment import JOB, RESTARTS


def test_ranks_know_the_losses_and_say_where_they_go_on(monkeypatch):
    monkeypatch.delenv(RESTARTS, raising=False)
    with words.asked_for() as asked:
        assert grsgd.restarts() == 0 and attributes(7, 3) == {} and asked.gone_on() == ""
        known = [Loss(0.0, "host a (rank 0)", "went on"), Loss(time.time() - 2, "host b (ranks 1, 3)")]
        monkeypatch.setenv(RESTARTS, variables(known)[RESTARTS])
        assert losses() == known and grsgd.restarts() == 2
        found = attributes(7, 3)
        sequel = asked.gone_on()
    assert 1.9 < found["restart_seconds"] < 60
    assert sequel == f"went on after {found['restart_seconds']:.1f} s, from step 7, on 3 ranks"
    assert found["restarts"][0] == "host a (rank 0) at 1970-01-01T00:00:00+00:00: went on"
    assert found["restarts"][1].startswith("host b (ranks 1, 3) at 2") and found["restarts"][1].endswith(sequel)


def test_the_id_of_a_job_is_the_same_after_a_restart(monkeypatch):
    monkeypatch.delenv(JOB, raising=False)
    assert job_id() == ""
    for name, value in variables([Loss(0.0, "host a")], "5f3a").items():
        monkeypatch.setenv(name, value)
    assert job_id() == "5f3a"
    monkeypatch.setenv(JOB, "../other")
    assert job_id() == "", "the id is part of a path"


def test_a_clock_that_is_behind_gives_no_time_below_zero(monkeypatch):
    monkeypatch.setenv(RESTARTS, variables([Loss(time.time() + 9, "host a")])[RESTARTS])
    assert attributes(0, 1)["restart_seconds"] == 0.0
