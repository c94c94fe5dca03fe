import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from grsgd.algorithms.push_sum import MIN_WEIGHT
from grsgd.testing.quadratic import STEPS, Job, M, Reference, random_speeds, straggler
from grsgd.testing.simulated import models_sent, network_of
from tests.support.seeded import seeded


class Gossip(Reference):
    """Replays the pushes and merges of a run."""

    def __init__(self, n):
        super().__init__(n)
        self.a = np.ones(n)
        self.sent = {}

    def send(self, rank, step):
        self.a[rank] /= 2
        self.sent[rank, step] = self.a[rank], self.X[rank].copy()

    def merge(self, rank, sender, step):
        b, y = self.sent.pop((sender, step))
        a = self.a[rank]
        self.X[rank] = (a * self.X[rank] + b * y) / (a + b)
        self.a[rank] = a + b

    def merge_oldest(self, rank, older, newer):
        (a, x), (b, y) = self.sent.pop(older), self.sent[newer]
        self.sent[newer] = a + b, (a * x + b * y) / (a + b)


def name(message):
    return message.sender, message.step


def job_of(n, *arguments, **options):
    job = Job("gosgd", n, *arguments, **options)
    for algorithm in job.algorithms:
        job.note(algorithm.mailbox, "send", lambda receiver, x, weight, step: step)
        job.note(algorithm, "merge", lambda message: message.sender, lambda message: message.step)
        job.note(algorithm.mailbox, "merge_oldest", lambda older, _: name(older), lambda _, newer: name(newer))
    return job


def weights_and_sum(job):
    own = [(algorithm.a, algorithm.x.array) for algorithm in job.algorithms]
    parts = own + [(a, x.copy()) for a, x in models_sent(job.ranks.fabric, job.algorithms)]
    return sum(a for a, _ in parts), sum(a * x for a, x in parts)


@pytest.mark.parametrize("capacity", [1, 3])
@pytest.mark.parametrize("p", [0.3, 1.0])
@pytest.mark.parametrize("n", [2, 3, 5])
def test_against_dense_reference(n, p, capacity):
    spec, random = network_of(eager_bytes=0), np.random.default_rng(n)
    seconds = random_speeds(n)
    job = job_of(n, lambda *key: 1e-3 * seconds(*key), spec, random, p=p, inbox_capacity=capacity)
    job.train()
    reference = Gossip(n).replay(job.log)
    assert len(job.log) > 2 * n * STEPS
    assert not reference.sent
    assert np.abs(job.X - reference.X).max() < 1e-12
    assert np.allclose([algorithm.a for algorithm in job.algorithms], reference.a, rtol=1e-13, atol=0)
    mean = reference.a @ reference.X / n
    job.average()
    assert (job.X == job.X[0]).all()
    assert np.abs(job.X - mean).max() < 1e-12


@seeded
@given(
    n=st.integers(1, 6),
    lengths=st.lists(st.integers(0, 12), min_size=6, max_size=6),
    p=st.sampled_from([0.0, 0.1, 0.5, 1.0]),
    capacity=st.integers(1, 3),
    eager_bytes=st.sampled_from([0, 65536]),
    seed=st.integers(0, 1000),
)
def test_weights_and_sums_at_every_moment(n, lengths, p, capacity, eager_bytes, seed):
    """Without gradients the weighted sum does not change either; the end finds everything received."""
    spec, random, seconds = network_of(eager_bytes=eager_bytes), np.random.default_rng(seed), random_speeds(seed)
    arguments = n, lambda *key: 1e-3 * seconds(*key), spec, random, 0.0
    job = Job("gosgd", *arguments, p=p, inbox_capacity=capacity)
    for algorithm in job.algorithms:
        algorithm.x.array[:] = random.standard_normal(len(algorithm.x.array))
    mean = job.X.mean(0)

    def check():
        weights, total = weights_and_sum(job)
        assert abs(weights - n) < 1e-12 * n
        assert np.abs(total / n - mean).max() < 1e-12
        assert all(len(algorithm.mailbox.waiting()) <= capacity for algorithm in job.algorithms)

    job.train(lengths[:n], check)
    check()
    assert job.nothing_is_left()
    assert min(algorithm.a for algorithm in job.algorithms) > 0
    assert job.sent() == job.messages() * (M + 8)
    job.average()
    assert (job.X == job.X[0]).all()
    assert np.abs(job.X - mean).max() < 1e-12


def test_bytes():
    """M + 8 bytes a push; with p = 1 and fast messages a push each step."""
    job = job_of(4, spec=network_of(latency="0.1 s"), p=1.0, inbox_capacity=3).train()
    pushes = sum(what == "send" for what, *_ in job.log)
    assert pushes == job.messages() == 4 * STEPS
    assert job.sent() == pushes * (M + 8)
    assert job.headers() == pushes * 8 + 4 * 3 * 8  # and each rank's last word to each other one
    merged_early = sum(what == "merge_oldest" for what, *_ in job.log)  # more came to a rank in a step than it may hold
    assert sum(sum(algorithm.staleness.values()) for algorithm in job.algorithms) == pushes - merged_early


def test_pushes_to_all_others_with_the_given_probability():
    job = Job("gosgd", 4, spec=network_of(latency="0.1 s"), p=0.25).train(400)
    sent = np.array([comm.traffic.messages for comm in job.ranks.comms])
    assert (np.diag(sent) == 0).all()
    expected = 0.25 * 400 / 3
    assert np.abs(sent[~np.eye(4, dtype=bool)] - expected).max() < 4 * np.sqrt(expected)


def test_one_straggler_slows_nobody_down():
    job = Job("gosgd", 4, straggler(4), network_of(latency="0.3 s"), p=1.0).train([10, 40, 40, 40], drain=False)
    for rank, ends in enumerate(job.ends):
        assert ends[-1] == 40.0, f"rank {rank}"
    assert [driver.wait_seconds for driver in job.ranks.drivers] == [0] * 4


def test_a_rank_that_ends_while_another_pauses():
    """Rank 1 has ended and waits for rank 2 to take up its message; rank 0 trains on and sends it all it has."""

    def seconds(rank, step):
        return 1e5 if rank == 2 else 1.0

    job = Job("gosgd", 3, seconds, p=1.0, inbox_capacity=1)
    smallest, messages_kept = [], []

    def check():
        smallest.append(min(algorithm.a for algorithm in job.algorithms))
        messages_kept.append(len(job.algorithms[1].mailbox.waiting()))

    job.train([3000, 20, 1], check)
    assert 0 < min(smallest) <= MIN_WEIGHT, "the case is not the one that is meant"
    assert max(messages_kept) == 1, "memory must be bounded"
    assert abs(weights_and_sum(job)[0] - 3) < 1e-12
    assert job.nothing_is_left()
    job.average()
    assert np.isfinite(job.X).all()


@pytest.mark.parametrize("capacity", [1, 3])
def test_a_rank_that_pauses_does_not_take_in_more_than_its_inbox_holds(capacity):
    """The others keep their weight meanwhile."""
    job = Job("gosgd", 2, straggler(1000, 1), p=1.0, inbox_capacity=capacity).train([200, 1], drain=False)
    assert job.algorithms[0].comm.traffic.messages.sum() == capacity + 1  # the last one is not delivered


def test_the_final_average_leaves_the_model_alone_until_it_is_there():
    """A run that is stopped then is evaluated as it is."""
    job = Job("gosgd", 3, random_speeds(3), network_of(latency="0.3 s"), p=0.5).train()
    before = job.X
    averages = [algorithm.average() for algorithm in job.algorithms]
    begin = job.ranks.env.now
    for driver, average in zip(job.ranks.drivers, averages, strict=True):
        driver.start(average)
    for now in (0.1, 0.4, 0.7, 1.0, 1.3, 1.6):  # the sum of the weights, then the models
        job.ranks.env.run(until=begin + now)
        assert (job.X == before).all()
    job.ranks.settle()
    assert (job.X == job.X[0]).all() and (job.X != before).any()
