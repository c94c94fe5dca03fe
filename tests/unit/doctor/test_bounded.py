"""Calls that may hang."""

import os
import time

import pytest

from grsgd.doctor.bounded import in_child


def test_the_result_and_the_error_of_a_call_in_another_process():
    assert in_child(lambda number: (number, os.getpid() != parent), 10, 3) == (3, True)
    with pytest.raises(RuntimeError, match="FileNotFoundError"):
        in_child(os.listdir, 10, "/no/such/folder")
    assert len(in_child(bytes, 10, 10**6)) == 10**6


parent = os.getpid()


def test_a_call_that_hangs_is_left_behind():
    begin = time.monotonic()
    with pytest.raises(TimeoutError, match="no answer within 0.2 s"):
        in_child(time.sleep, 0.2, 60)
    assert time.monotonic() - begin < 10


def test_a_process_that_ends_without_an_answer():
    with pytest.raises(RuntimeError, match="without an answer"):
        in_child(os._exit, 10, 3)
