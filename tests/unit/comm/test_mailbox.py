"""Model messages between neighbours, and GRSGD on top of them, in simulated time with random latencies."""

from collections import Counter
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from grsgd.algorithms.context import RankContext
from grsgd.algorithms.grsgd import GRSGD
from grsgd.comm.communicator import ANY_RANK, Communicator
from grsgd.comm.mailbox import HEADER, Mailbox, ModelMessage
from grsgd.models.flat import Flat
from grsgd.models.replica import Replica
from grsgd.testing.simulated import Ranks, models_sent, models_under_way
from tests.support.seeded import seeded

SIZE = 5


# ---- messages and the mailbox alone


def flat(values, dtype=torch.float64) -> Flat:
    flat = Flat.zeros(len(values), dtype, torch.device("cpu"))
    flat.array[:] = values
    return flat


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_message(dtype):
    message = ModelMessage(flat([0, 0, 0], dtype))
    message.step, message.weight = 7, 0.375
    message.x.array[:] = [1, 2, 3]
    assert (message.step, message.weight) == (7, 0.375)
    assert message.x.tensor.tolist() == [1, 2, 3]
    assert message.x.tensor.dtype == dtype and message.x.array.dtype == str(dtype).removeprefix("torch.")
    assert message.buffer.nbytes == HEADER + 8 + message.x.array.nbytes
    assert np.shares_memory(message.x.array, message.buffer)
    copy = ModelMessage(flat([0, 0, 0], dtype))
    copy.buffer[:] = message.buffer  # what a message does: all of a message is in its buffer
    assert (copy.step, copy.weight, copy.x.array.tolist()) == (7, 0.375, [1, 2, 3])


def add_weights(older, newer):
    newer.x.array[:] += older.x.array
    newer.weight += older.weight


def pair(capacity=1, backpressure=False):
    """A mailbox of rank 0 that writes to rank 1, rank 1's that reads, and the two ranks."""
    ranks = Ranks(2)
    x = flat([0, 0])
    sender = Mailbox(ranks.comms[0], x, [1], [], capacity, add_weights, backpressure=backpressure)
    reader = Mailbox(ranks.comms[1], x, [], [0], capacity, add_weights, backpressure=backpressure)
    activity = ranks.drivers[1].start(reader.receive_loop(0))
    return SimpleNamespace(ranks=ranks, sender=sender, reader=reader, deliver=ranks.settle, activity=activity)


def contents(mailbox):
    return [(message.step, message.weight, message.x.array.tolist()) for message in mailbox.pop_received()]


def made_messages(buffers):
    """The messages of `SendBuffers`, as they are made; each once."""
    messages, take = {}, buffers._take_spare

    def noted():
        message = take()
        messages[id(message)] = message
        return message

    buffers._take_spare = noted
    return messages


def test_a_message_arrives_once():
    job = pair()
    assert job.sender.ready(1)
    job.sender.send(1, flat([1.0, 2.0]), 0.5, 3)
    assert contents(job.reader) == []
    job.deliver()
    assert contents(job.reader) == [(3, 0.5, [1.0, 2.0])]
    assert contents(job.reader) == []


def test_a_message_is_a_copy():
    job = pair()
    x = flat([1.0, 2.0])
    job.sender.send(1, x, 1.0, 0)
    x.array[:] = 9
    job.deliver()
    assert contents(job.reader) == [(0, 1.0, [1.0, 2.0])]


def test_ready_when_the_last_message_is_taken_up():
    job = pair()
    job.sender.send(1, flat([1, 1]), 1.0, 0)
    assert not job.sender.ready(1)
    (message,) = job.ranks.fabric.under_way
    assert message.synchronous  # or the library would store messages for a rank that sleeps
    job.deliver()
    assert job.sender.ready(1)


def test_a_rank_that_has_ended_is_sent_nothing_more():
    """It takes no step in which it could merge a message."""
    ranks = Ranks(2)
    x = flat([0, 0])
    one, other = (Mailbox(ranks.comms[i], x, [1 - i], [1 - i], 2, add_weights) for i in range(2))
    ranks.drivers[0].start(one.receive_loop(1))
    assert one.ready(1)
    ranks.drivers[1].start(other.close())
    ranks.settle()
    assert not one.ready(1) and other.ready(0)


@pytest.mark.parametrize("capacity", [1, 2, 3])
def test_a_full_inbox_merges_the_two_oldest(capacity):
    job = pair(capacity)
    for k in range(capacity + 2):
        job.sender.send(1, flat([10.0**k, 0.0]), 1.0, k)
        job.deliver()
    messages = contents(job.reader)
    assert len(messages) == capacity
    assert messages[0] == (2, 3.0, [111.0, 0.0])  # messages 0, 1 and 2 in one, as old as the newest
    assert [step for step, _, _ in messages] == list(range(2, capacity + 2))
    assert sum(weight for _, weight, _ in messages) == capacity + 2


def test_buffers_are_used_again():
    job = pair(capacity=2)
    buffers = set()
    for k in range(20):
        job.sender.send(1, flat([k, k]), 1.0, k)
        job.deliver()
        for message in job.reader.pop_received():
            buffers.add(id(message.buffer))
    assert len(buffers) <= 2


def test_buffers_of_messages_that_were_merged_are_used_again():
    job = pair(capacity=1)
    messages = made_messages(job.reader)
    for k in range(20):
        job.sender.send(1, flat([k, k]), 1.0, k)
        job.deliver()
    assert len(messages) <= 3, "one waits, one comes in, one is put into the other"


@pytest.mark.parametrize("later", [1, 2, 3])
def test_buffers_are_used_again_for_other_receivers(later):
    """Whichever is delivered first, and none before."""
    ranks = Ranks(4)
    x = flat([0, 0])
    sender = Mailbox(ranks.comms[0], x, [1, 2, 3], [], 2, add_weights)
    readers = {j: Mailbox(ranks.comms[j], x, [], [0], 100, add_weights) for j in (1, 2, 3)}
    messages = made_messages(sender)

    def post(j, k):
        assert sender.ready(j)
        sender.send(j, flat([j, k]), 1.0, k)

    for k, j in enumerate((1, 2, 3)):
        post(j, k)  # none is delivered: three messages are needed
    ranks.settle()
    prompt = [j for j in (1, 2, 3) if j != later]
    for j in prompt:
        ranks.drivers[j].start(readers[j].receive_loop(0))
    ranks.settle()
    for k in range(3, 20):
        post(prompt[k % 2], k)
        ranks.settle()
    assert not sender.ready(later) and len(messages) == 3
    ranks.drivers[later].start(readers[later].receive_loop(0))
    ranks.settle()
    assert [contents(readers[j])[0] for j in (1, 2, 3)] == [(k, 1.0, [k + 1.0, k]) for k in range(3)]
    assert sender.ready(later)


def test_one_message_is_enough_where_each_is_taken_up_before_the_next():
    ranks = Ranks(5)
    sender = Mailbox(ranks.comms[0], flat([0, 0]), [1, 2, 3, 4], [], 2, add_weights)
    messages = made_messages(sender)
    for j in (1, 2, 3, 4):
        ranks.drivers[j].start(Mailbox(ranks.comms[j], flat([0, 0]), [], [0], 2, add_weights).receive_loop(0))
    for k, j in enumerate((1, 2, 3, 4)):
        sender.send(j, flat([j, k]), 1.0, k)
        ranks.settle()
    ranks.drivers[0].start(sender.close())
    ranks.settle()
    assert len(messages) == 1


def test_a_message_is_valid_until_the_next_one():
    """Whatever comes in while it is being merged."""
    job = pair(capacity=3)
    job.sender.send(1, flat([0, 0]), 1.0, 0)
    job.deliver()
    messages = job.reader.pop_received()
    message = next(messages)
    for k in (1, 2, 3):
        job.sender.send(1, flat([k, k]), 1.0, k)
        job.deliver()
        assert (message.step, message.x.array.tolist()) == (0, [0.0, 0.0])
    assert [(message.step, message.x.array[0]) for message in messages] == [(1, 1.0), (2, 2.0), (3, 3.0)]


def test_close_ends_the_collector():
    job = pair()
    job.sender.send(1, flat([1, 1]), 1.0, 4)
    closing = job.ranks.drivers[0].start(job.sender.close())
    assert not job.activity.Test()
    job.deliver()
    assert closing.Test() and job.activity.Test()
    assert contents(job.reader) == [(4, 1.0, [1.0, 1.0])]


@pytest.mark.parametrize("capacity", [1, 2, 3])
def test_a_full_inbox_holds_the_next_message_up(capacity):
    job = pair(capacity, backpressure=True)
    for k in range(capacity + 1):
        assert job.sender.ready(1)
        job.sender.send(1, flat([k, k]), 1.0, k)
        job.deliver()
    assert not job.sender.ready(1)
    messages = []
    job.ranks.at_once(1, lambda: messages.extend(contents(job.reader)))
    assert [step for step, _, _ in messages] == list(range(capacity))
    job.deliver()
    assert job.sender.ready(1)
    assert [step for step, _, _ in contents(job.reader)] == [capacity]


@pytest.mark.parametrize("source", [0, ANY_RANK])
def test_one_collector_a_source_or_one_for_all(source):
    ranks = Ranks(3, random=np.random.default_rng(0))
    x = flat([0, 0])
    senders = [Mailbox(comm, x, [2], [], 2, add_weights) for comm in ranks.comms[:2]]
    reader = Mailbox(ranks.comms[2], x, [], [0, 1], 4, add_weights)
    activities = [ranks.drivers[2].start(reader.receive_loop(each)) for each in ([0, 1] if source == 0 else [source])]
    for rank, sender in enumerate(senders):
        sender.send(2, flat([rank, rank]), 0.5, 3)
    ranks.settle()
    assert sorted(message.x.array[0] for message in reader.pop_received()) == [0, 1]
    for rank, sender in enumerate(senders):
        assert not all(activity.Test() for activity in activities)
        ranks.drivers[rank].start(sender.close())
        ranks.settle()
    assert all(activity.Test() for activity in activities)


def test_messages_are_counted_without_their_headers():
    job = pair()
    job.sender.send(1, flat([1, 1]), 1.0, 0)
    traffic = job.sender.comm.traffic
    assert (traffic.sent[1], traffic.headers[1], traffic.messages[1]) == (16 + 8, HEADER, 1)


# ---- GRSGD


class Model(torch.nn.Module):
    def __init__(self, values):
        super().__init__()
        self.x = torch.nn.Parameter(torch.tensor(values, dtype=torch.float64))


class MailboxJob:
    """n ranks of GRSGD whose steps happen in random order, and whose messages take random times."""

    def __init__(self, n, seed=0, rate=0.0, momentum=0.0, replication=1, **options):
        self.random = np.random.default_rng((1, seed))
        self.simulated = Ranks(n, random=np.random.default_rng(seed))
        self.env, self.settle = self.simulated.env, self.simulated.settle
        self.initial = self.random.standard_normal((n, SIZE))
        self.speeds = self.random.uniform(0.2, 1.0, n)
        self.ranks = []
        for comm, driver, x in zip(self.simulated.comms, self.simulated.drivers, self.initial, strict=True):
            replica = Replica(Model(x))
            optimizer = torch.optim.SGD(replica.model.parameters(), lr=rate, momentum=momentum)
            options_ = GRSGD.Options(**options)
            context = RankContext(comm, Communicator(comm.backend.dup()), driver, seed=seed, replication=replication)
            self.ranks.append(GRSGD(options_, replica, optimizer, context))
        for rank in self.ranks:
            rank.start()
            rank.begin()

    def event(self):
        """A step of a random rank, the faster the likelier, or something in the network."""
        if self.random.random() < 0.2 or not self.simulated.event():
            self.step(self.ranks[self.random.choice(len(self.ranks), p=self.speeds / self.speeds.sum())])

    def step(self, rank, gradient=None):
        """One step; returns the weight that the rank had when it took its gradient."""
        weights = []

        def compute():
            weights.append(rank.a)
            rank.replica.zero_gradients()
            if gradient is not None:
                rank.replica.grads.tensor.copy_(torch.from_numpy(gradient))

        self.simulated.at_once(rank.comm.rank, rank.before_backward, compute, rank.step)
        return weights[0]

    def messages(self):
        return models_sent(self.simulated.fabric, self.ranks)

    def weights(self):
        return sum(rank.a for rank in self.ranks) + sum(weight for weight, _ in self.messages())

    def weighted(self):
        return sum(rank.a * rank.x.array for rank in self.ranks) + sum(weight * x for weight, x in self.messages())

    def models(self):
        return np.array([rank.x.array for rank in self.ranks])

    def check(self):
        assert abs(self.weights() - len(self.ranks)) < 1e-12
        pairs = Counter((sending.source, sending.dest) for sending in models_under_way(self.simulated.fabric))
        assert max(pairs.values(), default=0) <= 1

    def drain(self, after=lambda: None):
        self.simulated.finish([rank.drain() for rank in self.ranks], after=after)

    def average(self):
        self.simulated.finish([rank.average() for rank in self.ranks])


jobs = dict(
    n=st.integers(2, 6),
    seed=st.integers(0, 2**32),
    policy=st.sampled_from(["successor", "alternate", "random"]),
    H=st.integers(1, 3),
    inbox_capacity=st.integers(1, 3),
)


@seeded
@given(**jobs)
def test_no_weight_is_ever_lost(n, seed, **options):
    job = MailboxJob(n, seed, rate=0.1, **options)
    for _ in range(400):
        job.event()
        job.check()
    job.drain(after=job.check)
    assert list(job.messages()) == []
    assert abs(sum(rank.a for rank in job.ranks) - n) < 1e-12
    assert all(rank.a > 0 for rank in job.ranks)


@seeded
@given(**jobs)
def test_the_weighted_sum_of_models_stays(n, seed, **options):
    """With learning rate 0, whatever is late, one-sided or merged early."""
    job = MailboxJob(n, seed, **options)
    total = job.initial.sum(0)
    for _ in range(300):
        job.event()
        np.testing.assert_allclose(job.weighted(), total, rtol=0, atol=1e-12)
    job.drain(after=lambda: np.testing.assert_allclose(job.weighted(), total, rtol=0, atol=1e-12))
    np.testing.assert_allclose(sum(rank.a * rank.x.array for rank in job.ranks), total, rtol=0, atol=1e-12)
    job.average()
    np.testing.assert_allclose(job.models(), np.tile(total / n, (n, 1)), rtol=0, atol=1e-12)


@seeded
@given(**jobs)
def test_only_gradients_change_the_weighted_sum(n, seed, **options):
    """Each plain SGD step of rank i moves the sum by -rate * a_i * g_i."""
    rate = 0.1
    job = MailboxJob(n, seed, rate=rate, **options)
    total = job.initial.sum(0)
    random = np.random.default_rng(seed)
    for _ in range(100):
        rank = job.ranks[random.integers(n)]
        gradient = random.standard_normal(SIZE)
        weight = job.step(rank, gradient)
        total -= rate * weight * gradient
        np.testing.assert_allclose(job.weighted(), total, rtol=0, atol=1e-12)
        for _ in range(random.integers(6)):
            job.simulated.event()


@settings(seeded, max_examples=8)
@given(**jobs)
def test_all_models_agree_in_the_end(n, seed, **options):
    job = MailboxJob(n, seed, **options)
    spread = np.ptp(job.models(), axis=0).max()
    for _ in range(40):
        for _ in range(500):
            job.event()
        if np.ptp(job.models(), axis=0).max() < 1e-6 * spread:
            break
    np.testing.assert_allclose(job.models(), np.tile(job.initial.mean(0), (n, 1)), rtol=0, atol=1e-5 * spread)


@seeded
@given(**jobs)
def test_the_final_model_is_the_weighted_mean(n, seed, **options):
    """Also where gradients have moved the models apart."""
    job = MailboxJob(n, seed, rate=0.1, momentum=0.9, **options)
    random = np.random.default_rng(seed)
    for _ in range(100):
        job.step(job.ranks[random.integers(n)], random.standard_normal(SIZE))
        job.event()
    job.drain()
    expected = sum(rank.a * rank.x.array for rank in job.ranks) / n
    job.average()
    assert all(rank.a == 1 for rank in job.ranks)
    models = job.models()
    np.testing.assert_allclose(models[0], expected, rtol=0, atol=1e-12)
    assert (models == models[0]).all()


@seeded
@given(**jobs)
def test_every_message_is_merged_into_the_model_or_a_newer_one(n, seed, **options):
    job = MailboxJob(n, seed, **options)
    counts = Counter()

    def counting(function, what):
        def counted(*args):
            counts[what] += 1
            return function(*args)

        return counted

    for rank in job.ranks:
        rank.mailbox.send = counting(rank.mailbox.send, "sent")
        rank.mailbox.merge_oldest = counting(rank.mailbox.merge_oldest, "merged early")
    for _ in range(300):
        job.event()
    job.drain()
    merged = sum(sum(rank.staleness.values()) for rank in job.ranks)
    assert counts["sent"] == merged + counts["merged early"]


@seeded
@given(**jobs)
def test_bytes_are_messages_times_model_and_weight(n, seed, **options):
    job = MailboxJob(n, seed, **options)
    for _ in range(300):
        job.event()
    for rank in job.ranks:
        traffic = rank.comm.traffic
        np.testing.assert_array_equal(traffic.sent, traffic.messages * (rank.replica.nbytes + 8))
        np.testing.assert_array_equal(traffic.headers, traffic.messages * HEADER)


def test_a_rank_that_sleeps_holds_up_no_other():
    job = MailboxJob(4, policy="alternate")
    asleep = job.ranks[2]
    for _ in range(200):
        for rank in job.ranks:
            if rank is not asleep:
                job.step(rank)
        for _ in range(12):
            job.simulated.event()
        job.check()
    assert [rank.k for rank in job.ranks] == [200, 200, 0, 200]
    job.drain(after=job.check)
    assert abs(sum(rank.a for rank in job.ranks) - 4) < 1e-12


def gifts_to_a_rank_that_pauses(steps=2000, **options):
    """The weight that is left to the others when one rank receives but takes no step."""
    job = MailboxJob(3, policy="random", **options)
    for _ in range(steps):
        for rank in job.ranks[:2]:
            job.step(rank)
        job.settle()
    job.check()
    left = min(rank.a for rank in job.ranks[:2])
    job.drain(after=job.check)
    assert abs(sum(rank.a for rank in job.ranks) - 3) < 1e-12
    return left


def test_a_rank_that_pauses_does_not_drain_the_others():
    assert gifts_to_a_rank_that_pauses() > 0.01
    assert gifts_to_a_rank_that_pauses(inbox_full="merge") < 1e-10  # what `hold` is for; and no division by zero


def test_plain_averages_move_the_mean():
    """merge = "average" keeps no weights: with one-sided deliveries the mean of the models drifts."""
    job = MailboxJob(6, merge="average")
    mean, spread = job.initial.mean(0), job.initial.std(0)
    for _ in range(4000):
        job.event()
    job.drain()
    job.average()
    assert all(rank.a == 1 for rank in job.ranks)
    assert np.abs((job.models()[0] - mean) / spread).max() > 0.02


def test_plain_averages_have_equal_shares():
    job = MailboxJob(2, merge="average", policy="successor")
    a, b = job.ranks
    x, y = a.x.array.copy(), b.x.array.copy()
    job.step(a)
    job.settle()
    job.step(b)
    np.testing.assert_allclose(b.x.array, (x + y) / 2, rtol=1e-15)
    assert (a.a, b.a) == (1.0, 1.0)


def test_push_sum_merges_by_weight():
    job = MailboxJob(2, policy="successor")
    a, b = job.ranks
    x, y = a.x.array.copy(), b.x.array.copy()
    job.step(a)
    assert a.a == 0.5
    job.settle()
    b.before_backward()
    assert b.a == 1.5
    np.testing.assert_allclose(b.x.array, (y + 0.5 * x) / 1.5, rtol=1e-14)


def test_staleness_is_counted_in_steps():
    job = MailboxJob(2, policy="successor")
    a, b = job.ranks
    job.step(a)  # its message is of step 1
    for _ in range(4):
        job.step(b)
    job.settle()
    b.before_backward()
    assert b.staleness == {3: 1}


# ---- where pushes go, and when


def pushes(n=4, steps=6, deliver=True, **options):
    """Where rank 1 pushes to, step by step (None: nowhere), its neighbours taking every message up at once."""
    job = MailboxJob(n, inbox_full="merge", **options)
    rank = job.ranks[1]
    targets = []
    for _ in range(steps):
        before = rank.comm.traffic.messages.copy()
        job.step(rank)
        where = np.flatnonzero(rank.comm.traffic.messages - before)
        targets.append(int(where[0]) if len(where) else None)
        if deliver:
            job.settle()
    return targets


def test_policies():
    assert pushes(policy="successor") == [2] * 6
    assert pushes(policy="alternate") == [2, 0, 2, 0, 2, 0]
    random = pushes(policy="random", steps=60)
    assert set(random) == {0, 2}
    assert 15 < random.count(0) < 45
    assert pushes(policy="random", steps=60) == random  # the same seed, the same partners


def test_H_local_steps_between_pushes():
    assert pushes(policy="alternate", H=2) == [None, 2, None, 0, None, 2]
    assert pushes(policy="successor", H=3) == [None, None, 2, None, None, 2]


def test_H_is_the_replication_of_the_data_by_default():
    assert pushes(policy="successor", replication=2) == [None, 2] * 3
    assert pushes(policy="successor", replication=2, H=1) == [2] * 6


def test_a_push_is_skipped_while_the_last_message_is_under_way():
    assert pushes(policy="successor", deliver=False) == [2] + [None] * 5
    assert pushes(policy="alternate", deliver=False) == [2, 0] + [None] * 4


@pytest.mark.parametrize("policy", ["successor", "alternate", "random"])
def test_two_ranks_are_both_neighbours_of_each_other(policy):
    assert pushes(n=2, policy=policy) == [0] * 6


# ---- one rank


@pytest.mark.parametrize("policy", ["successor", "alternate", "random"])
@pytest.mark.parametrize("merge", ["push-sum", "average"])
def test_one_rank_is_plain_sgd(policy, merge):
    job = MailboxJob(1, rate=0.1, momentum=0.9, policy=policy, merge=merge)
    (rank,) = job.ranks
    plain = Model(job.initial[0])
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.1, momentum=0.9)
    for _ in range(10):
        gradient = job.random.standard_normal(SIZE)
        job.step(rank, gradient)
        plain.x.grad = torch.from_numpy(gradient)
        optimizer.step()
    job.drain()
    job.average()
    np.testing.assert_array_equal(rank.x.array, plain.x.detach().numpy())
    assert rank.comm.traffic.messages.sum() == rank.uncounted_comm.traffic.messages.sum() == 0
    assert (rank.a, len(rank.staleness)) == (1.0, 0)


def test_a_lost_message_is_noticed():
    job = MailboxJob(2, policy="successor")
    job.step(job.ranks[0])
    job.settle()
    list(job.ranks[1].mailbox.pop_received())
    with pytest.raises(RuntimeError, match=r"the weights of all ranks sum to 1\.5 instead of 2: a message was lost"):
        job.average()
