"""Hosts whose links are full or cut, and hosts that are stopped: which of them `grsgd run` loses, and when."""

import os
import signal
import subprocess
import sys
import time

import pytest

from grsgd.job.hearing import FENCE_SECONDS, SILENT_SECONDS
from grsgd.mpi_environment import job_environment
from grsgd.testbed import links
from grsgd.testbed.hosts import Testbed, TestbedError

RANK = """
import socket, sys, threading, time
from grsgd.job.hearing import start_heart
start_heart()
server = socket.create_server(("", 5000))

def swallow(connection):
    while connection.recv(65536):
        pass

def serve():
    while True:
        threading.Thread(target=swallow, args=server.accept()[:1], daemon=True).start()

def fill():
    while True:
        try:
            with socket.create_connection((sys.argv[1], 5000), 60) as connection:
                while True:
                    connection.sendall(bytes(65536))
        except OSError:
            time.sleep(0.1)

for work in (serve, fill, fill, fill, fill):
    threading.Thread(target=work, daemon=True).start()
time.sleep(600)
"""
"""A rank with a heart that fills the link to another host, in both directions, by four connections."""
HOSTS = 2


@pytest.fixture
def testbed():
    try:
        with Testbed(hosts=HOSTS, rate="10mbit") as testbed:
            yield testbed
    except TestbedError as error:
        pytest.skip(str(error))


@pytest.fixture
def hearing(testbed):
    """The hearing of a job with a rank per host, whose hearts kill ranks that get no answers."""
    hearing = testbed.hearing()
    hearing.fences = True
    environment, ranks = job_environment() | hearing.variables(), []
    for number, host in enumerate(testbed.hosts):
        other = testbed.address(testbed.hosts[1 - number])
        command = testbed.enter(host, [sys.executable, "-c", RANK, other])
        ranks.append(subprocess.Popen(command, env=environment | {"OMPI_COMM_WORLD_RANK": str(number)}))
    hearing.ranks = ranks
    assert look_for(hearing, 30, until=lambda: len(hearing.hosts) == HOSTS) == []
    yield hearing
    for rank in ranks:
        rank.kill()
        rank.wait()


def look_for(hearing, seconds, until=lambda: False) -> list[str]:
    """Look for lost hosts for so long, or until ``until()``, or until hosts are lost, which are returned."""
    end, lost = time.monotonic() + seconds, []
    while not lost and not until() and time.monotonic() < end:
        time.sleep(0.05)
        lost = hearing.look()
    return lost


def live(hearing) -> list[bool]:
    return [rank.poll() is None for rank in hearing.ranks]


@pytest.mark.parametrize("seconds", [4, pytest.param(60, marks=pytest.mark.exhaustive)])
def test_a_host_is_lost_if_its_link_is_cut_but_not_if_it_is_full(seconds, testbed, hearing):
    before, began = testbed.counters(), time.monotonic()
    assert look_for(hearing, seconds) == []
    used = (testbed.counters() - before) / (time.monotonic() - began) / testbed.rate
    assert (used > 0.5).all() and live(hearing) == [True, True], used
    with testbed.cut(1):
        assert look_for(hearing, 1.5) == []
    assert look_for(hearing, 1.0) == [] and live(hearing) == [True, True]
    began = time.monotonic()
    with testbed.cut(1):
        assert look_for(hearing, SILENT_SECONDS + 1) == testbed.hosts[1:]
        assert SILENT_SECONDS - 0.5 < time.monotonic() - began < SILENT_SECONDS + 1
        hearing.ranks[1].wait(FENCE_SECONDS + 1 - SILENT_SECONDS)
    assert live(hearing) == [True, False], "the heart of the host that was cut off has killed its rank"


def test_a_host_is_lost_if_it_is_stopped_for_long(testbed, hearing):
    def tell_all(number):
        for pid in links.processes(testbed.hosts[1]):
            os.kill(pid, number)

    tell_all(signal.SIGSTOP)
    assert look_for(hearing, 2.0) == []
    tell_all(signal.SIGCONT)
    assert look_for(hearing, 1.0) == [] and live(hearing) == [True, True]
    tell_all(signal.SIGSTOP)
    assert look_for(hearing, SILENT_SECONDS + 1) == testbed.hosts[1:]
    tell_all(signal.SIGCONT)
    assert hearing.why(hearing.lost) == f"no sign of life of host {testbed.hosts[1]} (rank 1) for {SILENT_SECONDS:g} s"


def test_a_host_of_the_testbed_that_is_lost_says_nothing_and_its_processes_never_run_again(testbed, hearing):
    with testbed.lost(1):
        assert live(hearing) == [True, True], "stopped, and not ended"
        assert look_for(hearing, SILENT_SECONDS + 1) == testbed.hosts[1:]
        assert live(hearing) == [True, True], "a heart that is stopped kills no rank"
    hearing.ranks[1].wait(5)
    assert live(hearing) == [True, False] and links.processes(testbed.hosts[1]) == []
