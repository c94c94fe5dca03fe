"""Options of continuous integration, which runs as much of ``make test-all`` as it has time for."""

import random
import time
from collections import Counter

import pytest


def pytest_addoption(parser):
    group = parser.getgroup("time")
    group.addoption("--shuffle", metavar="SEED", help="run the files, and the tests of each, in an order of this seed")
    group.addoption("--minutes", type=float, help="begin no test after so many minutes; name the files that were run")


def pytest_configure(config):
    if minutes := config.getoption("minutes"):
        config.pluginmanager.register(TimeLimit(minutes))


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config, items):
    """Files stay together, for their tests share what takes long to set up."""
    if seed := config.getoption("shuffle"):
        order = random.Random(seed)
        files = {item.path: order.random() for item in items}
        items.sort(key=lambda item: (files[item.path], order.random()))


class TimeLimit:
    def __init__(self, minutes: float):
        self.minutes, self.end = minutes, time.monotonic() + 60 * minutes
        self.all, self.run = Counter(), Counter()

    def pytest_collection_finish(self, session):
        self.all.update(item.location[0] for item in session.items)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item):
        if time.monotonic() > self.end:
            pytest.skip(f"not begun within {self.minutes:g} minutes")
        self.run[item.location[0]] += 1

    def pytest_terminal_summary(self, terminalreporter):
        terminalreporter.section(f"what was run within {self.minutes:g} minutes")
        for file, tests in self.run.items():
            terminalreporter.line(f"{file}: {tests} of {self.all[file]}")
