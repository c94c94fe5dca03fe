"""Silent processes are ended by others on their host."""

import signal

from grsgd.job.silence import Silence
from tests.support.members import Members


class Host:
    """Processes on hosts, that look at what they hear whenever time passes; `killed`: who has ended whom."""

    def __init__(self, places, spares=0, seconds=2.0):
        self.job, self.killed = Members(len(places) - spares, spares), []
        for member in self.job.members:
            member.clock = lambda: self.now
        self.now = 0.0
        processes = [(place, 100 + number) for number, place in enumerate(places)]
        pairs = zip(self.job.fabric.communicators(), self.job.members, strict=True)
        self.watching = [
            Silence(comm, member, processes, seconds, lambda pid, number: self.killed.append((pid, number)))
            for comm, member in pairs
        ]

    def pass_seconds(self, seconds, stopped=()):
        for _ in range(round(10 * seconds)):
            self.now += 0.1
            for process, one in enumerate(self.watching):
                if process not in stopped:
                    one.look()
            self.job.settle()


def test_a_process_that_stands_still_is_ended_by_those_of_its_host_alone(capsys):
    job = Host("aaab")
    job.pass_seconds(5)
    assert not job.killed
    job.pass_seconds(1.9, stopped={1})
    assert not job.killed
    job.pass_seconds(1, stopped={1})
    assert job.killed == [(101, signal.SIGKILL)]
    assert capsys.readouterr().err == "\ngrsgd: rank 1 has given no sign of life for 2 s: its process is killed\n"
    job.pass_seconds(5, stopped={1, 3})
    assert len(job.killed) == 1  # nobody of its host is left to end process 3
    job.pass_seconds(5, stopped={0, 1})
    assert job.killed[1:] == [(100, signal.SIGKILL), (101, signal.SIGKILL)]  # by process 2, the lowest that is left


def test_one_that_has_stood_still_itself_ends_nobody():
    job = Host("aaa")
    job.pass_seconds(1)
    job.pass_seconds(1.5, stopped={0})
    job.pass_seconds(5)
    assert not job.killed
    job.pass_seconds(0.5)
    job.now += 60  # the whole host
    job.pass_seconds(3)
    assert not job.killed


def test_one_that_has_died_is_not_ended_again():
    job = Host("aaa")
    job.pass_seconds(1)
    job.job.fabric.kill(2)
    job.pass_seconds(5, stopped={2})
    assert not job.killed


def test_spares_are_named_so(capsys):
    job = Host("aaa", spares=1)
    job.pass_seconds(1)
    job.pass_seconds(3, stopped={2})
    said = capsys.readouterr().err
    assert said == "\ngrsgd: process 2, a spare, has given no sign of life for 2 s: its process is killed\n"


def test_after_training_nobody_is_ended():
    job = Host("aa")
    job.pass_seconds(1)
    job.watching[0].is_over = True
    job.pass_seconds(5, stopped={1})
    assert not job.killed
