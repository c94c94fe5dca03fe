"""Storms of lost hosts: the table of jobs, configurations, and the thread that takes hosts away."""

import time
from contextlib import contextmanager

import pytest

from experiments.survival import hosts
from grsgd.config import load

JOB = hosts.Job("diloco", "10mbit", 2, 60.0, 4.0, 0, 3, 0, 250.0, 200.0, "4.5 7 6", 0.9, 0.92, 0.995, "", "abc")


def test_a_table_of_jobs_is_read_as_it_was_written(tmp_path):
    path = tmp_path / "jobs.csv"
    assert hosts.read(path) == []
    jobs = [JOB, JOB._replace(exit_code=124, back="", said="a line, with a comma")]
    hosts.write(path, jobs)
    assert hosts.read(path) == jobs


def test_goodput_is_of_the_jobs_that_ended_as_they_should():
    jobs = [JOB, JOB._replace(seconds=400.0), JOB._replace(exit_code=1, seconds=1.0), JOB._replace(rate="1gbit")]
    *_, slow, fast = hosts.table(jobs).splitlines()
    assert slow == "| `diloco` | 10mbit | 8 | 60 s | 9 | 1 | 65.0 % (50.0) | 6.0 (7.0) | 99.5 % | 90.0 %, 92.0 % |"
    assert fast == "| `diloco` | 1gbit | 8 | 60 s | 3 | 0 | 80.0 % (80.0) | 6.0 (7.0) | 99.5 % | 90.0 %, 92.0 % |"
    often = JOB._replace(slots=1, every=30.0)
    assert hosts.table([JOB, often]).endswith(hosts.table([often]).splitlines()[-1])
    assert "| `diloco` | 10mbit | 4 | 30 s | 3 |" in hosts.table([JOB, often])
    assert "| 1 | nan % (nan) | nan (nan) |" in hosts.table([JOB._replace(exit_code=1)])


@pytest.mark.parametrize("algorithm", hosts.ALGORITHMS)
def test_every_algorithm_has_a_configuration_for_the_ranks(algorithm, tmp_path):
    path = tmp_path / "run.toml"
    path.write_text(hosts.config_of(algorithm, 120, 4))
    config = load(path)
    config.check_ranks(4)
    assert config.train.steps == 120


class FakeTestbed:
    """A testbed that notes which hosts are lost; two of its hosts have processes."""

    hosts = ["tb0-0", "tb0-1", "tb0-2"]

    def __init__(self):
        self.taken = []
        self.at_once = 0
        self.most = 0

    @contextmanager
    def lost(self, index):
        self.taken.append(self.hosts[index])
        self.at_once += 1
        self.most = max(self.most, self.at_once)
        yield
        self.at_once -= 1


def test_a_storm_takes_hosts_with_ranks_and_gives_every_host_back(monkeypatch, tmp_path):
    """The states in the memory of lost hosts are gone."""
    testbed = FakeTestbed()
    for host in testbed.hosts:
        (tmp_path / f"grsgd-job-{host}" / "samples-8").mkdir(parents=True)
    monkeypatch.setattr(hosts.links, "processes", lambda host: [] if host == "tb0-2" else [1])
    with hosts.Storm(testbed, every=0.1, back=0.05, seed=0, memory=tmp_path) as storm:
        deadline = time.monotonic() + 10
        while storm.losses < 3 and time.monotonic() < deadline:
            time.sleep(0.02)
    assert len(testbed.taken) == storm.losses >= 3 and {*testbed.taken} == {"tb0-0", "tb0-1"}
    assert [path.name for path in tmp_path.iterdir()] == ["grsgd-job-tb0-2"]
    assert testbed.at_once == 0
