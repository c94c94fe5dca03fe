"""Small messages of named numbers."""

from typing import Annotated, NamedTuple

import numpy as np
import pytest

from grsgd.algorithms.parameter_server.messages import Answer, Push, Word
from grsgd.comm import records
from grsgd.comm.elastic.group import KnownProcesses
from grsgd.comm.elastic.meeting import MeetingCall


class Mixed(NamedTuple):
    """Three kinds of fields."""

    count: records.Int32
    text: Annotated[bytes, "S6"]
    total: records.Int64


@pytest.mark.parametrize(
    "record, nbytes",
    [
        (Push(Word.RESTS, 7), 8),
        (Push(Word.GOES_ON, 2**31 - 1), 8),
        (Answer(True, 2**62), 16),
        (MeetingCall(3, b"asked"), 256),
        (Mixed(-1, b"text", -(2**62)), 18),
    ],
)
def test_a_record_is_what_was_packed(record, nbytes):
    message = records.pack(record)
    assert message.dtype == np.uint8 and message.shape == records.empty(type(record)).shape == (nbytes,)
    assert records.unpack(type(record), message) == record


def test_a_text_that_is_too_long_is_cut_off():
    assert records.unpack(Mixed, records.pack(Mixed(0, b"1234567", 0))).text == b"123456"


def test_a_number_that_does_not_fit_is_refused():
    with pytest.raises(OverflowError):
        records.pack(Push(Word.GOES_ON, 2**31))


def test_a_process_learns_what_another_one_knows():
    known = KnownProcesses(2, 5, np.array([0.0, 1.0, -1.0]), np.array([0.0, 1.0, 0.0]), np.array([7.0, 8.0]))
    message = known.pack()
    assert message.dtype == np.float64 and message.shape == (2 + 3 + 3 + 2,)
    told = KnownProcesses.unpack(message, 3)
    assert told[:2] == (2, 5) and all(isinstance(number, int) for number in told[:2])
    for before, after in zip(known[2:], told[2:], strict=True):
        np.testing.assert_array_equal(before, after)
