"""Counters of bytes and messages."""

import numpy as np

from grsgd.comm.traffic import Traffic


def test_nothing_at_first():
    traffic = Traffic(3)
    for counter in (traffic.sent, traffic.headers, traffic.messages):
        assert counter.dtype == np.int64
        np.testing.assert_array_equal(counter, [0, 0, 0])
    assert traffic.sent_once == 0


def test_messages_to_one_rank():
    traffic = Traffic(3)
    traffic.count((1,), 100)
    traffic.count((1,), 50, header=8)
    traffic.count((2,), 8, header=8)
    np.testing.assert_array_equal(traffic.sent, [0, 142, 0])
    np.testing.assert_array_equal(traffic.headers, [0, 8, 8])
    np.testing.assert_array_equal(traffic.messages, [0, 2, 0])
    assert traffic.sent_once == traffic.sent.sum() == 142
    assert traffic.rows().tolist() == [[1, 142, 8, 2], [2, 0, 8, 0]] and Traffic(3).rows().shape == (0, 4)


def test_a_multicast_counts_once_and_per_receiver():
    traffic = Traffic(4)
    traffic.count((rank for rank in (1, 2, 3)), 100, header=4)
    np.testing.assert_array_equal(traffic.sent, [0, 96, 96, 96])
    np.testing.assert_array_equal(traffic.headers, [0, 4, 4, 4])
    np.testing.assert_array_equal(traffic.messages, [0, 1, 1, 1])
    assert traffic.sent_once == 96


def test_more_than_32_bits():
    traffic = Traffic(2)
    for _ in range(3):
        traffic.count((1,), 2**31 - 1)
    assert traffic.sent[1] == traffic.sent_once == 3 * (2**31 - 1)


def test_counting_goes_on_from_a_state():
    traffic, restored = Traffic(4), Traffic(4)
    traffic.count((1, 3), 100, header=4)
    restored.restore(traffic.state(range(traffic.size)))
    for each in (traffic, restored):
        each.count_messages(3, 2, 50)
    for name in ("sent", "headers", "messages"):
        np.testing.assert_array_equal(getattr(traffic, name), getattr(restored, name))
    assert traffic.sent.tolist() == [0, 96, 0, 146] and traffic.messages.tolist() == [0, 1, 0, 3]
    assert restored.sent_once == traffic.sent_once == 146
