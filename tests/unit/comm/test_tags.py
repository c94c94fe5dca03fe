"""Tags of messages that may be under way at once on one communicator differ."""

import pytest

from grsgd.comm import tags

NAMES = [name for name in vars(tags) if name.isupper()]


@pytest.mark.parametrize("algorithm", ["ADPSGD", "EASGD", "GOSSIP", "SERVER"])
def test_those_of_an_algorithm(algorithm):
    own = [getattr(tags, name) for name in NAMES if name.startswith(f"{algorithm}_")]
    assert len(own) >= 2 and len(set(own)) == len(own)


def test_those_outside_the_counted_traffic():
    own = [tags.ARRAYS, tags.PROGRESS_REPORT, tags.PROGRESS_TOTAL, tags.LASGD_ROUND]
    assert len(set(own)) == len(own)


def test_all_are_listed_and_small():
    """Every MPI library allows tags up to 32767; the upper half belongs to the GPU transports."""
    assert all(0 <= getattr(tags, name) < 2**14 for name in NAMES)
    assert tags.RESCUE_AFTER_SIGNAL != tags.RESCUE_AFTER_FAILURE
