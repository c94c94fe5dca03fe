"""The table of the busiest cables, of files as they are written and of files of strangers."""

import numpy as np
import pytest

from grsgd import load_run
from grsgd.runs.cables import SHOWN, busiest_cables, cables_of
from grsgd.runs.numbers import UNKNOWN
from grsgd.runs.report import report
from grsgd.runs.run_file import save_run
from tests.support.runs import fake_run


def with_cables(count=3, **replaced):
    run = fake_run(clock="virtual", virtual_seconds=40.0)
    cables = {
        "from": np.array([f"rank {i}" for i in range(count)]),
        "to": np.array(["leaf|0"] * count),
        "bandwidth": np.full(count, 1024.0),
        "bytes": 4096 * (1 + np.arange(count)),
    }
    run.extra["traffic"] = {"cables": cables | replaced}
    return run


def test_the_busiest_come_first(tmp_path):
    """12 KiB at 1 KiB/s are 12 of 40 s."""
    save_run(tmp_path / "run.h5", with_cables())
    text = report([tmp_path / "run.h5"])
    assert text.endswith(
        "The busiest of 3 cables, each direction for itself:\n\n"
        "| from   | to      |     bytes |   busy [%] |\n"
        "|:-------|:--------|----------:|-----------:|\n"
        "| rank 2 | leaf\\|0 | 12.00 KiB |       30.0 |\n"
        "| rank 1 | leaf\\|0 |  8.00 KiB |       20.0 |\n"
        "| rank 0 | leaf\\|0 |  4.00 KiB |       10.0 |"
    )
    assert "rank 2" in report([tmp_path / "run.h5"], form="text").split("The busiest of 3 cables")[1]
    save_run(tmp_path / "other.h5", with_cables(count=2))
    assert "busiest" not in report([tmp_path / "run.h5", tmp_path / "other.h5"])


def test_busy_is_not_what_carries_most_but_what_is_full():
    _, columns = busiest_cables(with_cables(bandwidth=np.array([100.0, 1e6, 1e9])))
    assert columns[0].cells == ["rank 0", "rank 1", "rank 2"]


def test_of_many_some_are_shown():
    heading, columns = busiest_cables(with_cables(100))
    assert heading.startswith("The busiest of 100") and {len(column.cells) for column in columns} == {SHOWN}


def test_what_has_no_bandwidth_or_no_limit_is_not_known_or_never_busy():
    def busy(bandwidth):
        return busiest_cables(with_cables(1, bandwidth=np.array([bandwidth])))[1][-1].cells[0]

    assert (busy(np.inf), busy(0.0), busy(np.nan)) == ("0.0", UNKNOWN, UNKNOWN)


@pytest.mark.parametrize(
    "replaced",
    [
        {"bytes": np.array([1, 2])},
        {"bytes": np.ones((3, 1), np.int64)},
        {"bytes": np.ones(3)},
        {"from": np.arange(3)},
        {"to": {"text": np.arange(3)}},
        {"bandwidth": np.array(["much"] * 3)},
    ],
)
def test_a_group_of_that_name_may_hold_anything(replaced, tmp_path):
    save_run(tmp_path / "run.h5", with_cables(**replaced))
    assert cables_of(load_run(tmp_path / "run.h5")) is None
    assert "busiest" not in report([tmp_path / "run.h5"])


def test_no_group_no_table():
    run = fake_run()
    assert busiest_cables(run) is None
    run.extra["traffic"] = {"cables": np.arange(3)}
    assert busiest_cables(run) is None
    assert busiest_cables(with_cables(0)) is None
