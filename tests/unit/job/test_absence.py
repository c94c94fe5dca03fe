"""Search for hosts that die during the launch; no host is asked here."""

import pytest

from grsgd.job import absence
from grsgd.job.absence import AGAIN_SECONDS, LAUNCH_SECONDS, Absence, is_here
from grsgd.job.hosts import Host

HOSTS = [Host(name, 2) for name in "abc"]


@pytest.fixture
def search(monkeypatch):
    """Look every second, for 200 s, with answers of hosts in each round, or None if no host can be asked; return (time,
    lost host) of each loss, and the times of the rounds."""

    def search(answers, heard="", has_answered=False, hosts=HOSTS):
        now, rounds, lost, asked = [0.0], [], [], hosts

        def answering(hosts, silently):
            assert hosts == asked and silently
            rounds.append(now[0])
            answer = answers[min(len(rounds), len(answers)) - 1]
            if answer is None:
                raise FileNotFoundError("ssh")
            return [host for host in hosts if host.name in answer]

        monkeypatch.setattr(absence.places, "answering", answering)
        monkeypatch.setattr(absence, "is_here", lambda name: name == "a")
        found = Absence(hosts, has_answered, clock=lambda: now[0])
        while now[0] < 200:
            lost += [(now[0], name) for name in found.look(heard)]
            now[0] += 1.0
        return lost, rounds

    return search


def test_a_host_that_dies_during_the_launch_is_lost(search):
    again = LAUNCH_SECONDS + AGAIN_SECONDS
    lost, rounds = search(["ac"])
    assert lost[0] == (again, "b") and rounds[:2] == [LAUNCH_SECONDS, again]
    assert search(["c"], heard=["c.cluster"])[0][0] == (again, "b")
    assert search([""], has_answered=True)[0][:2] == [(again, "b"), (again, "c")], "this machine lives"


def test_hosts_that_answer_are_not_lost(search):
    """Also if no heart can be heard, and if a host misses one round."""
    assert search(["bc"]) == ([], [LAUNCH_SECONDS * number for number in (1, 2, 3)])
    assert search(["b", "bc", "b", "bc", "b", "bc"], has_answered=True)[0] == []


def test_no_host_is_lost_if_none_can_be_asked(search):
    """Also if the hosts can be asked only at first, as with a key that becomes invalid."""
    assert search([""])[0] == search([None], has_answered=True)[0] == search(["bc", ""], has_answered=True)[0] == []


def test_hosts_that_were_heard_are_not_asked(search):
    """Also if their names are others."""
    for heard in (["b", "c.cluster"], ["node1", "node2", "node3"]):
        assert search([""], heard, has_answered=True) == ([], [])


def test_a_single_host_is_asked_before_the_launch(search, capsys):
    """It is lost if it dies after its answer. If it has never answered, it is not lost, but named. This machine is not
    asked."""
    again = LAUNCH_SECONDS + AGAIN_SECONDS
    lost, rounds = search(["b", ""], hosts=HOSTS[1:2])
    assert lost[0] == (again, "b") and rounds[:3] == [0, LAUNCH_SECONDS, again]
    assert search([None], hosts=HOSTS[1:2])[0] == [] and not capsys.readouterr().err
    assert search([""], hosts=HOSTS[1:2])[0] == []
    assert "host b does not answer: its loss during the launch would not be noticed" in capsys.readouterr().err
    assert search(["b"], hosts=HOSTS[1:2])[0] == []
    assert search(["a", ""], hosts=HOSTS[:1]) == ([], [])


def test_this_machine(monkeypatch):
    monkeypatch.setattr("socket.gethostname", lambda: "head.cluster")
    assert is_here("127.0.0.1") and is_here("head") and not is_here("no.such.host.invalid")
