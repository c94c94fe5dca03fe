"""The seconds that tests take, by folder, beside budgets."""

from types import SimpleNamespace

from tests.support import budgets
from tests.support.launcher import ROOT

MAX_SECONDS = 1230
"""Of all budgets together; with a shorter run it falls."""


def test_budgets_are_of_folders_that_are_there_and_do_not_grow():
    assert all((ROOT / folder).is_dir() for folder in budgets.BUDGETS)
    assert sum(budgets.BUDGETS.values()) <= MAX_SECONDS


def test_a_test_counts_for_every_folder_that_it_is_in():
    found, lines = budgets.Budgets(), []
    for file, seconds in (("tests/unit/comm/test_x.py", 2.0), ("tests/unit/test_y.py", 1.0)):
        found.pytest_runtest_logreport(
            SimpleNamespace(location=(file, 1, "test"), duration=2 * seconds, processor_seconds=seconds)
        )
    found.pytest_terminal_summary(SimpleNamespace(section=lambda title: None, line=lines.append))
    assert lines == ["tests/unit: 3 of 400 s, 6 s by the clock", "tests/unit/comm: 2 s, 4 s by the clock"]
