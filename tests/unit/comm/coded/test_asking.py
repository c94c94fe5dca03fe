"""Whom a rank asks for what it lacks of a packet, and when."""

from itertools import permutations

from grsgd.comm.coded.asking import SLOW_ROUNDS, Asking, SlowRanks


def test_the_sender_first_and_last_where_it_was_slow():
    slow = SlowRanks()
    assert slow.order(4, [1, 2, 3], 0, 7) == [4, 1, 2, 3]
    slow.note(4, 7)
    for number in range(7, 7 + SLOW_ROUNDS):
        assert slow.order(4, [1, 2, 3], 0, number) == [1, 2, 3, 4]
        assert slow.order(2, [1, 3], 0, number) == [2, 1, 3], "it alone"
    assert slow.order(4, [1, 2, 3], 0, 7 + SLOW_ROUNDS) == [4, 1, 2, 3], "it may have been busy with something else"
    assert slow.order(4, [], 5, 7) == [4]


def test_others_take_turns():
    """Whatever the number of the rank that asks, each of the others is the first as often."""
    slow = SlowRanks()
    firsts = [slow.order(9, [1, 2, 3], first, 0)[1] for first in range(12)]
    assert [firsts.count(rank) for rank in (1, 2, 3)] == [4, 4, 4]
    assert {tuple(slow.order(9, [1, 2, 3], first, 0)[1:]) for first in range(3)} < set(permutations([1, 2, 3]))


def test_each_is_asked_once_when_the_one_before_has_had_its_time():
    now = 10.0
    asking = Asking([5, 6, 7], 0.5, lambda: now, lambda rank: False)
    found = []
    for step in range(400):
        now = 10 + step / 100
        rank = asking.next()
        if rank is not None:
            found.append((rank, now))
    assert [rank for rank, _ in found] == asking.asked == [5, 6, 7]
    assert [round(when - 10, 2) for _, when in found] == [0.0, 0.5, 1.0]


def test_who_has_nothing_is_not_waited_for():
    now = 0.0
    asking = Asking([5, 6, 7], 0.5, lambda: now, lambda rank: False)
    assert (asking.next(), asking.next()) == (5, None)
    asking.has_answered(5)
    assert (asking.next(), asking.next()) == (6, None)
    asking.has_answered(5)
    assert asking.next() is None, "6 has not answered yet"
    asking.has_answered(6)
    assert (asking.next(), asking.next()) == (7, None)
    asking.has_answered(7)
    assert asking.next() is None and asking.asked == [5, 6, 7]


def test_who_has_left_is_neither_asked_nor_waited_for():
    gone = set()
    asking = Asking([5, 6, 7, 8], 0.5, lambda: 0.0, lambda rank: rank in gone)
    gone.add(6)
    assert (asking.next(), asking.next()) == (5, None)
    gone.add(5)
    assert (asking.next(), asking.next()) == (7, None)
    gone.add(8)
    asking.has_answered(7)
    assert asking.next() is None and asking.asked == [5, 7]
