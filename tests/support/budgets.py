"""How many seconds of a processor the tests of each folder take, beside a budget that fails no test."""

import os
from collections import Counter
from pathlib import PurePath

import pytest

BUDGETS = {
    "tests/unit": 400,
    "tests/integration": 80,
    "tests/mpi": 540,
    "tests/faults": 115,
    "tests/tables": 50,
    "tests/testbed": 45,
}
"""Seconds of a processor that the tests of `make test` took when they were measured last; budgets may only fall."""


class Budgets:
    """Adds up what tests, and the programs that they have started, use of a processor, and prints it in the end."""

    def __init__(self):
        self.before = used()
        self.processor, self.clock = Counter(), Counter()

    def pytest_runtest_logstart(self):
        self.before = used()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self):
        report = yield
        before, self.before = self.before, used()
        report.processor_seconds = self.before - before  # travels with the report from a process of pytest-xdist
        return report

    def pytest_runtest_logreport(self, report):
        for folder in folders(report.location[0]):
            self.processor[folder] += getattr(report, "processor_seconds", 0.0)  # none of a test that has crashed
            self.clock[folder] += report.duration

    def pytest_terminal_summary(self, terminalreporter):
        terminalreporter.section("seconds of a processor, beside their budget")
        for folder in sorted(self.processor):
            terminalreporter.line(line(folder, self.processor[folder], self.clock[folder]))


def used() -> float:
    """Return the seconds of a processor that this process has used, and those that it has started and that ended."""
    return sum(os.times()[:4])


def folders(file: str) -> list[str]:
    """Return the folders that a file of tests is in, but for the outermost."""
    return [folder.as_posix() for folder in list(PurePath(file).parents)[-3::-1]]


def line(folder: str, processor: float, clock: float) -> str:
    of_budget = f" of {BUDGETS[folder]} s" if folder in BUDGETS else " s"
    return f"{folder}: {processor:.0f}{of_budget}, {clock:.0f} s by the clock"
