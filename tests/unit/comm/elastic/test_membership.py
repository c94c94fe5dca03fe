"""Which process holds which rank, after deaths, on simulated ranks."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from grsgd.comm.communicator import Communicator, LostRank, until_over
from grsgd.comm.mailbox import Mailbox
from grsgd.models.flat import Flat
from tests.support.members import Members
from tests.support.seeded import seeded


@seeded
@given(st.data(), st.integers(2, 6), st.integers(0, 5), st.integers(0, 2**32 - 1))
def test_all_agree_in_the_end_on_who_holds_which_rank(data, n, spares, seed):
    """Whatever order word of deaths and of takeovers comes in."""
    job = Members(n, spares, np.random.default_rng(seed))
    victims = data.draw(st.permutations(range(n + spares)))[: data.draw(st.integers(0, n + spares - 1))]
    for victim in victims:
        for _ in range(data.draw(st.integers(0, 4))):
            job.event()
        job.fabric.kill(victim, float(job.network.random.exponential(1e-3)))
    job.settle()
    living = job.living()
    holders = [member.holders for member in living]
    assert all(found == holders[0] for found in holders)
    held = [holder for holder in holders[0] if holder is not None]
    assert len(held) == len(set(held)) and set(held) <= {member.process for member in living}
    left = {member.process for member in living} - set(held)
    assert len(held) == n or not left or not held  # without a model nothing can go on
    assert all(member.dead == set(victims) for member in living)


def test_a_message_to_a_rank_goes_to_whoever_holds_it():
    job = Members(2, 1)
    job.fabric.kill(1)
    job.settle()
    got = np.zeros(1)
    receiving, sending = job.ends[2].Irecv(got, 0, 0), job.ends[0].Isend(np.ones(1), 1, 0)
    job.settle()
    assert receiving.Test() and sending.Test() and got[0] == 1 and job.ends[2].rank == 1
    job.fabric.kill(2)
    job.settle()
    assert job.ends[0].lost == (1,)
    with pytest.raises(LostRank):
        job.ends[0].Isend(np.ones(1), 1, 0).Test()


def test_what_a_process_has_left_that_holds_no_rank_is_not_received_from_any():
    job = Members(3, 1)
    job.ends[1].Isend(np.full(1, 1.0), 0, 0)
    job.settle()
    job.fabric.kill(1)
    job.settle()
    got = np.zeros(1)
    receiving = job.ends[0].Irecv(got, -1, 0)
    job.settle()
    assert not receiving.Test()
    job.ends[3].Isend(np.full(1, 3.0), 0, 0)
    job.settle()
    assert receiving.Test() and got[0] == 3


def test_a_wait_for_several_messages_outlives_one_that_fails():
    job = Members(3, 0)
    got = np.zeros(1)

    def both():
        yield from until_over([Lost(), arriving])

    class Lost:
        def Test(self):
            raise LostRank("gone")

    arriving = job.comms[0].Irecv(got, 2, 9)
    activity = job.drivers[0].start(both())
    job.comms[2].Isend(np.full(1, 5.0), 0, 9)
    job.settle()
    assert activity.complete and got[0] == 5


def test_a_message_may_come_before_word_of_the_takeover():
    job = Members(2, 1)
    got = np.zeros(1)
    receiving = job.ends[0].Irecv(got, -1, 0)
    job.ends[2].Isend(np.full(1, 2.0), 0, 0)
    job.settle()
    assert not receiving.Test()
    job.fabric.kill(1)
    job.settle()
    assert receiving.Test() and got[0] == 2


def test_word_of_an_earlier_takeover_that_comes_late_changes_nothing():
    """Spare 2 has taken rank 1, and died; spare 3 has taken it then; this process hears of that first."""
    job = Members(2, 2)
    member = job.members[0]
    member._hold(1, 3)
    member._hold(1, 2)
    assert member.holders == [0, 3] and [death.process for death in member.deaths] == [1]


def mailbox_of(job, returned=lambda message: None) -> Mailbox:
    """That of rank 0, to and from rank 1."""
    x = Flat.zeros(4, torch.float64, torch.device("cpu"))
    return Mailbox(Communicator(job.ends[0]), x, [1], [1], 2, None, returned)


def test_a_message_to_a_process_that_dies_comes_back_once():
    job, returned = Members(2, 0), []
    mailbox = mailbox_of(job, lambda message: returned.append(message.weight))
    mailbox.send(1, mailbox._x, 0.25, 3)
    job.settle()
    assert not mailbox.ready(1) and returned == []
    job.fabric.kill(1)
    job.settle()
    assert not mailbox.ready(1) and mailbox.take_buffer() and returned == [0.25]


def test_a_message_comes_back_from_a_process_that_dies_while_this_rank_closes():
    job, returned = Members(2, 0), []
    mailbox = mailbox_of(job, lambda message: returned.append(message.weight))
    mailbox.send(1, mailbox._x, 0.25, 3)
    closing = job.drivers[0].start(mailbox.close())
    job.settle()
    assert not closing.complete and returned == [], "the message is under way"
    job.fabric.kill(1)
    job.settle()
    assert closing.complete and returned == [0.25]


def test_a_rank_that_had_ended_is_sent_to_again_when_another_process_holds_it():
    job = Members(2, 1)
    mailbox = mailbox_of(job)
    job.drivers[0].start(mailbox.receive_loop(1))
    ending = np.zeros(2, np.int32)
    ending[:] = Mailbox.END_OF_STREAM, 1
    job.ends[1].Isend(ending.view(np.uint8), 0, 0)
    job.settle()
    assert not mailbox.ready(1)
    job.fabric.kill(1)
    job.settle()
    mailbox.changed(1, [1], [1])
    assert job.members[0].holders == [0, 2] and mailbox.ready(1)
