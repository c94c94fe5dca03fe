"""The reason of a run's end, of the reasons of its ranks."""

import pytest

from grsgd.runs.ending import joint_reason


@pytest.mark.parametrize(
    "reasons, stopped",
    [
        (["steps", "steps"], "steps"),
        (["steps", "interrupted", "steps"], "interrupted"),
        (["seconds", "non-finite loss"], "non-finite loss"),
    ],
)
def test_an_early_end_of_any_rank_is_that_of_the_run(reasons, stopped):
    assert joint_reason(reasons) == stopped
