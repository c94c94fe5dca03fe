"""A few faults of the campaign (``make campaign``), one of each kind."""

import pytest

from tests.faults.campaign import KINDS, carry_out, draw

QUICK = ("two are killed, one while the other is replaced", "the disk is full")


@pytest.mark.parametrize(
    "number",
    [
        pytest.param(number, id=name, marks=[] if name in QUICK else pytest.mark.exhaustive)
        for number, name in enumerate(KINDS)
    ],
)
def test_a_fault(number):
    carry_out(draw(number, seed=1))
