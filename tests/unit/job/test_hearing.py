"""Hearts of ranks, and the process that hears which host was lost."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from grsgd.job import hearing as hearings
from grsgd.job.hearing import FENCE_SECONDS, HEART, SILENT_SECONDS, Hearing, heard_by, own_addresses
from grsgd.job.heart import BEATS, BYE, CUT, HERE, TOLD, Heart, addresses_of
from grsgd.mpi_environment import HEARTS


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock(monkeypatch):
    """The time of the hearing, which passes while the hearing sleeps."""
    clock = Clock()

    def sleep(seconds):
        clock.now += seconds

    monkeypatch.setattr(hearings.time, "sleep", sleep)
    return clock


@pytest.fixture
def hearing(clock):
    return Hearing(["127.0.0.1"], clock=clock)


@pytest.fixture
def say(hearing, monkeypatch):
    """Let the heart of a rank on a host say a word, and the hearing look for it."""

    def say(rank, host, word):
        monkeypatch.setattr("socket.gethostname", lambda: host)
        heart = Heart(*hearing.arguments, str(rank))
        heart.say(word)
        lost = hearing.look()
        heart.hear()
        assert heart.seen is not None, "an answer comes back"
        return lost

    return say


def pass_time(clock, hearing, seconds):
    lost = []
    for _ in range(round(seconds / 0.5)):
        clock.now += 0.5
        lost += hearing.look()
    return lost


def test_a_silent_host_is_lost(hearing, say, clock):
    for rank, host in enumerate("abab"):
        say(rank, host, BEATS)
    assert pass_time(clock, hearing, SILENT_SECONDS - 0.5) == []
    assert say(0, "a", BEATS) == []
    assert pass_time(clock, hearing, 1.0) == ["b"]
    assert hearing.why(["b"]) == "no sign of life of host b (ranks 1, 3) for 4 s"
    assert pass_time(clock, hearing, 1.0) == [], "a loss is noticed once"
    say(0, "a", TOLD)
    now = clock.now
    assert hearing.conclude() == ["b"] and hearing.in_words(["b"]) == "host b (ranks 1, 3)"
    assert clock.now == now, "the lost host is not waited for"


def test_a_host_whose_ranks_have_ended_is_not_lost(hearing, say, clock):
    say(0, "a", BYE)
    assert pass_time(clock, hearing, 2 * SILENT_SECONDS) == [] == hearing.conclude()


def test_a_host_that_gets_no_answers_is_lost(hearing, say, clock):
    """Also if another heart of the host has said a last word, and if the launcher has ended before."""
    assert FENCE_SECONDS > SILENT_SECONDS, "otherwise a link that comes back between the two costs a host its ranks"
    for rank, host in enumerate("abb"):
        say(rank, host, BEATS)
    assert say(1, "b", CUT) == ["b"] and hearing.why(["b"]) == "no answers arrive at host b (ranks 1, 2)"
    say(0, "a", TOLD)
    say(2, "b", TOLD)
    assert hearing.conclude() == ["b"]


def test_nothing_is_lost_while_this_process_is_stopped(hearing, say, clock):
    say(0, "a", BEATS)
    clock.now += 100
    assert hearing.look() == []
    assert pass_time(clock, hearing, SILENT_SECONDS + 1) == ["a"]


def test_a_killed_host_has_said_no_last_word(hearing, say, clock):
    """The launcher ends before the host counts as silent."""
    for rank, host in enumerate("abab"):
        say(rank, host, BEATS)
    say(0, "a", TOLD)
    began = clock.now
    assert hearing.conclude() == ["b"] and clock.now - began > hearings.LAST_WORDS_SECONDS
    assert hearing.lost_at > 0 and hearing.has_said(1) and not hearing.has_said(2)


def test_no_host_is_named_if_all_ranks_are_killed(hearing, say):
    for rank, host in enumerate("ab"):
        say(rank, host, BEATS)
    assert hearing.conclude() == []


def test_a_host_is_lost_before_it_was_heard(clock):
    """The search for such hosts is told which hosts were heard, and ends with the launcher."""
    told = []
    hearing = Hearing(["127.0.0.1"], clock=clock, absent=lambda heard: told.append([*heard]) or ["b"])
    assert hearing.look() == ["b"] and hearing.look() == [] and told == [[], []]
    assert hearing.why(["b"]) == "no sign of life of host b since the launch" and hearing.lost_at > 0
    assert hearing.conclude() == ["b"] and len(told) == 2 and hearing.in_words(["b"]) == "host b"


def test_datagrams_of_others_are_no_signs_of_life(hearing):
    places = hearing.arguments[1]
    for key, rank in (("0123", "0"), (hearing.key, "x"), (hearing.key, "")):
        Heart(key, places, rank).say(HERE)
    assert hearing.look() == [] and not hearing.hosts


def test_a_heart_lives_as_long_as_its_rank(monkeypatch):
    """The heart of a real process, which is killed: the heart has the time for a last word."""
    hearing = Hearing(["127.0.0.1"])
    program = "from grsgd.job import words; import time; words.begin(); time.sleep(60)"
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "3")
    with heard_by(hearing):
        rank = subprocess.Popen([sys.executable, "-c", program], env=os.environ)
    assert HEARTS not in os.environ
    deadline = time.monotonic() + 30
    while not hearing.hosts and time.monotonic() < deadline:
        time.sleep(0.02)
        hearing.look()
    ((host, ranks),) = hearing.hosts.items()
    assert ranks == {3: False}
    children = Path(f"/proc/{rank.pid}/task/{rank.pid}/children").read_text().split()
    arguments = [Path(f"/proc/{child}/cmdline").read_text() for child in children]
    assert any("heart.py" in each for each in arguments) and not any(hearing.key in each for each in arguments)
    rank.kill()
    rank.wait()
    while not hearing.hosts[host][3] and time.monotonic() < deadline:
        time.sleep(0.02)
        hearing.look()
    assert hearing.hosts[host][3]


def test_a_heart_without_answers_kills_its_rank():
    """So that no rank goes on after the job has begun again without its host."""
    hearing = Hearing(["127.0.0.1"])
    rank = subprocess.Popen([sys.executable, "-c", UNANSWERED, HEART, *hearing.arguments])
    assert rank.wait(30) == -signal.SIGKILL
    assert hearing.conclude() == [*hearing.hosts] != []


UNANSWERED = """
import os, runpy, sys, time
rank = os.getpid()
if not os.fork():
    heart = runpy.run_path(sys.argv[1])["Heart"](*sys.argv[2:], "0", 0.1, rank)
    heart.seen = time.monotonic()
    heart.beat()
    os._exit(0)
time.sleep(60)
"""


def test_places_that_nobody_knows_are_left_out():
    assert addresses_of("no.such.host.invalid:1,127.0.0.1:2") == [("127.0.0.1", 2)]
    assert own_addresses(["127.0.0.1", "no.such.host.invalid"]) == ["127.0.0.1"] and own_addresses([])
