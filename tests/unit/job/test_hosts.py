"""Hosts of a job: what is read, placed and asked."""

import sys
import time

import pytest

from grsgd.errors import UsageError
from grsgd.job import hosts
from grsgd.job.hearing import Hearing
from grsgd.job.hosts import Host, answering, is_same, options, placed, read, slots
from grsgd.training import memory_folder


def test_hosts_are_read_with_their_slots():
    assert read("a:4,b", 7) == [Host("a", 4), Host("b", 4)]
    assert read("a", 3) == [Host("a", 3)]
    for wrong in ("", "a,,b", "a:0", "a,b,a", "a:x", "a:1:2", "a b"):
        with pytest.raises(UsageError, match="--hosts"):
            read(wrong, 2)


@pytest.mark.parametrize(
    "ranks, expected", [(1, "a:1"), (2, "a:2"), (3, "a:2 b:1"), (5, "a:2 b:2 c:1"), (9, "a:2 b:2 c:2")]
)
def test_ranks_are_placed_on_the_first_hosts(ranks, expected):
    assert " ".join(map(str, placed([Host(name, 2) for name in "abc"], ranks))) == expected
    assert placed([], ranks) == [] and slots([]) == 0


def test_options_of_launchers():
    two = [Host("a", 2), Host("b", 1)]
    assert options("srun", two) == ["--nodes=2", "--nodelist=a,b"]
    assert options("MPICH", two) == ["-hosts", "a:2,b:1"]
    assert options("Open MPI", two) == ["--host", "a:2,b:1", "--map-by", "slot:OVERSUBSCRIBE"]


@pytest.fixture
def use_agent(tmp_path, monkeypatch):
    """Return a function that makes a shell script the agent; its arguments are a host and a program."""

    def use(script: str):
        for name in ("SLURM_JOB_ID", *hosts.AGENTS):
            monkeypatch.delenv(name, raising=False)
        agent = tmp_path / "agent"
        agent.write_text(f"#!/bin/sh\n{script}\n")
        agent.chmod(0o755)
        monkeypatch.setenv(hosts.AGENTS[0], str(agent))

    return use


def test_hosts_that_answer_in_time(use_agent, monkeypatch):
    """The agent starts the program for host a, refuses host b, and never returns for host c."""
    use_agent('case $1 in a) exec sh -c "$2";; b) exit 1;; *) exec sleep 60;; esac')
    monkeypatch.setattr(hosts, "Hearing", lambda names: Hearing(["127.0.0.1"]))
    asked, began = [Host(name, 2) for name in "abc"], time.monotonic()
    assert answering(asked, "bc", 30.0) == asked[:1] and time.monotonic() - began < 30, "b and c are not awaited"
    assert answering(asked[1:], "bc", 0.2) == [] == answering([])


def test_folders_are_removed_on_the_hosts_that_answer_in_time(use_agent, tmp_path, monkeypatch):
    """The agent starts the program for host a, and never returns for host b."""
    use_agent('case $1 in a) exec sh -c "$2";; *) exec sleep 60;; esac')
    base = tmp_path / "in memory"
    for job in ("5f3a", "77aa"):
        (memory_folder.path_of(base, job, "a") / "samples-12").mkdir(parents=True)
    began = time.monotonic()
    hosts.run_on(["b", "a"], memory_folder.removal(base, "5f3a"), 10.0)
    assert [path.name.split("-")[2] for path in base.iterdir()] == ["77aa"] and time.monotonic() - began < 30
    monkeypatch.setenv(hosts.AGENTS[0], str(tmp_path / "none"))
    hosts.run_on(["a"], ["true"], 1.0)


def test_hosts_whose_datagrams_do_not_arrive(use_agent):
    """The agent's process ends without an error for host a, and with an error for host b."""
    use_agent("test $1 = a")
    asked = [Host(name, 2) for name in "ab"]
    assert answering(asked, "b", 30.0, silently=True) == asked[:1] and answering(asked, seconds=0.3) == []


def test_names_of_one_host():
    assert is_same("a", "a.cluster") and is_same("a.cluster", "a") and is_same("10.0.0.1", "10.0.0.1")
    assert not is_same("a", "ab") and not is_same("a.x", "a.y") and not is_same("10.0.0.1", "10.0.0.11")


def test_agents(monkeypatch):
    for name in ("SLURM_JOB_ID", *hosts.AGENTS):
        monkeypatch.delenv(name, raising=False)
    assert hosts.agent("a")[0] == "ssh" and hosts.program_for([sys.executable, "a b"])[0].endswith(" 'a b'")
    monkeypatch.setenv("SLURM_JOB_ID", "1")
    assert hosts.agent("a")[:2] == ["srun", "--nodelist=a"] and hosts.program_for(["x", "y"]) == ["x", "y"]
