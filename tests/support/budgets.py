"""Pytest plugin that prints the processor time of the tests of each folder, next to a budget that fails no test."""

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
"""Processor seconds of the tests of `make test` at the last measurement, by folder. These budgets may only become
smaller."""


class Budgets:
    """A plugin that adds up the processor time of tests and of the programs that tests start, and prints the sums at
    the end."""

    def __init__(self):
        self.before = used()
        self.processor, self.clock = Counter(), Counter()

    def pytest_runtest_logstart(self):
        self.before = used()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self):
        report = yield
        before, self.before = self.before, used()
        report.processor_seconds = self.before - before  # pytest-xdist sends the attribute on
        return report

    def pytest_runtest_logreport(self, report):
        for folder in folders(report.location[0]):
            self.processor[folder] += getattr(report, "processor_seconds", 0.0)  # missing after a crash
            self.clock[folder] += report.duration

    def pytest_terminal_summary(self, terminalreporter):
        terminalreporter.section("processor seconds, with their budget")
        for folder in sorted(self.processor):
            terminalreporter.line(line(folder, self.processor[folder], self.clock[folder]))


def used() -> float:
    """Return the processor seconds that this process and its ended child processes have used."""
    return sum(os.times()[:4])


def folders(file: str) -> list[str]:
    """Return the folders that contain the test file ``file``, except the outermost folder."""
    return [folder.as_posix() for folder in list(PurePath(file).parents)[-3::-1]]


def line(folder: str, processor: float, clock: float) -> str:
    of_budget = f" of {BUDGETS[folder]} s" if folder in BUDGETS else " s"
    return f"{folder}: {processor:.0f}{of_budget}, {clock:.0f} s by the clock"
