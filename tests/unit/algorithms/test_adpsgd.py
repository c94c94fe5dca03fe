import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from grsgd.testing.quadratic import STEPS, Job, M, Reference, random_speeds, straggler
from grsgd.testing.simulated import network_of
from tests.support.seeded import seeded


class Exchanges(Reference):
    """Replays the exchanges of a run."""

    def __init__(self, n, rule):
        super().__init__(n)
        self.rule = rule
        self.written = {}

    def write(self, rank, partner):
        """An active rank has one exchange at a time; a passive one may have answered another before it is merged."""
        self.written[rank, partner if rank % 2 == 0 else None] = self.X[rank].copy()

    def merge(self, rank, partner):
        mine, theirs = ((rank, partner), (partner, None)) if rank % 2 == 0 else ((rank, None), (partner, rank))
        x, y, s = self.X[rank], self.written[theirs], self.written[mine]
        self.X[rank] = (x + y) / 2 if self.rule == "average" else x + (y - s) / 2


def job_of(n, *arguments, **options):
    job = Job("adpsgd", n, *arguments, **options)
    for algorithm in job.algorithms:
        for method in ("write", "merge"):
            job.note(algorithm, method, lambda one=algorithm: one.theirs.sender)
    return job


@pytest.mark.parametrize("graph", ["ring", "full"])
@pytest.mark.parametrize("merge", ["average", "delta"])
@pytest.mark.parametrize("n", [2, 3, 4, 5])
def test_against_dense_reference(n, merge, graph):
    seconds = random_speeds(n)
    random = np.random.default_rng(n)
    job = job_of(n, lambda *key: 2e-3 * seconds(*key), random=random, merge=merge, topology=graph).train()
    reference = Exchanges(n, merge).replay(job.log)
    merges = [event for event in job.log if event[0] == "merge"]
    assert len(merges) >= 10
    assert np.abs(job.X - reference.X).max() < 1e-12
    if merge == "delta":
        assert np.abs(job.X.mean(0) - Reference(n).X[0] - reference.learnt.mean(0)).max() < 1e-12
    mean = reference.X.mean(0)
    job.average()
    assert (job.X == job.X[0]).all()
    assert np.abs(job.X - mean).max() < 1e-12


def test_the_papers_rule_lets_the_mean_drift():
    """The reason for the other one: steps taken during an exchange."""
    job = job_of(2, spec=network_of(latency="1.2 s")).train()
    reference = Exchanges(2, "average").replay(job.log)
    assert np.abs(job.X.mean(0) - Reference(2).X[0] - reference.learnt.mean(0)).max() > 1e-3


@seeded
@given(
    n=st.integers(1, 6),
    lengths=st.lists(st.integers(0, 12), min_size=6, max_size=6),
    period=st.integers(1, 4),
    merge=st.sampled_from(["average", "delta"]),
    graph=st.sampled_from(["ring", "full"]),
    eager_bytes=st.sampled_from([0, 65536]),
    seed=st.integers(0, 1000),
)
def test_without_gradient_the_mean_stays(n, lengths, period, merge, graph, eager_bytes, seed):
    """At the end of any run, whoever was fast or had more to do; and the end finds everything received."""
    spec, random, seconds = network_of(eager_bytes=eager_bytes), np.random.default_rng(seed), random_speeds(seed)
    options = dict(period=period, merge=merge, topology=graph)
    job = job_of(n, lambda *key: 2e-3 * seconds(*key), spec, random, 0.0, **options)
    for algorithm in job.algorithms:
        algorithm.x.array[:] = random.standard_normal(len(algorithm.x.array))
    mean = job.X.mean(0)
    job.train(lengths[:n])
    assert np.abs(job.X.mean(0) - mean).max() < 1e-12
    assert job.nothing_is_left()
    for algorithm, steps in zip(job.algorithms, lengths, strict=False):
        rank, exchanges = algorithm.comm.rank, algorithm.exchanges
        assert exchanges == sum(algorithm.staleness.values())
        if rank % 2:
            assert exchanges <= steps // period
    active = sum(algorithm.exchanges for algorithm in job.algorithms[1::2])
    assert active == sum(algorithm.exchanges for algorithm in job.algorithms[::2])
    assert job.sent() == 2 * M * active
    assert job.messages() == 2 * active
    sent = np.array([comm.traffic.sent for comm in job.ranks.comms])
    assert (sent == sent.T).all()
    apart = np.abs(np.subtract.outer(np.arange(n), np.arange(n)))
    assert not sent[apart % 2 == 0].any()
    if graph == "ring":
        assert not sent[(apart != 1) & (apart != n - 1)].any()
    job.average()
    assert (job.X == job.X[0]).all()


@pytest.mark.parametrize("merge", ["average", "delta"])
@pytest.mark.parametrize("slow", [0, 1])
def test_one_straggler_slows_nobody_down(slow, merge):
    """Neither an active nor a passive one: it gossips in its background."""
    lengths = [10 if rank == slow else 40 for rank in range(4)]
    spec = network_of(latency="0.2 s")
    job = Job("adpsgd", 4, straggler(4, slow), spec, merge=merge).train(lengths, drain=False)
    assert [ends[-1] for ends in job.ends] == [40.0] * 4
    assert [driver.wait_seconds for driver in job.ranks.drivers] == [0] * 4
    others = [algorithm.exchanges for algorithm in job.algorithms if algorithm.comm.rank not in (slow, slow ^ 1)]
    assert min(others) >= 20


def test_period():
    job = job_of(2, spec=network_of(latency="0.1 s"), period=5).train(STEPS + 1)
    assert [algorithm.exchanges for algorithm in job.algorithms] == [STEPS // 5] * 2


def test_consensus():
    job = Job("adpsgd", 5, spec=network_of(latency="0.01 s"), rate=0.0, topology="full")
    for rank, algorithm in enumerate(job.algorithms):
        algorithm.x.array[:] = rank
    job.train(200)
    assert np.abs(job.X - 2).max() < 1e-6
