"""Separation of the jobs of different test processes, and options to run a part of ``make test-all`` in limited
time."""

import gc
import os
import random
import shutil
import tempfile
import time
from collections import Counter
from pathlib import Path

import pytest

from tests.support.budgets import Budgets

LONG = tuple(f"tests/{name}.py" for name in ("mpi/test_on_ranks", "tables/test_tables", "testbed/test_slurm"))
"""The files that take longest; they begin first, so that none of them runs alone at the end."""


def pytest_addoption(parser):
    group = parser.getgroup("time")
    group.addoption("--shuffle", metavar="SEED", help="run the files, and the tests of each, in an order of this seed")
    group.addoption("--minutes", type=float, help="begin no test after this time; name the files that were run")


def pytest_configure(config):
    if "GRSGD_TEST_RANKS" not in os.environ:  # with this variable, this process is a rank
        keep_jobs_apart(config)
        config.pluginmanager.register(Budgets())
    if minutes := config.getoption("minutes"):
        config.pluginmanager.register(TimeLimit(minutes))


def keep_jobs_apart(config):
    """Give the jobs of this test process a folder of their own for shared memory and for the files of launchers.

    Open MPI names the shared memory of a job by 16 bits, so one of two jobs at once may take the other's messages.
    """
    folder = tempfile.TemporaryDirectory(prefix="grsgd-tests-", dir=next(filter(Path.is_dir, [Path("/dev/shm")]), None))
    config.add_cleanup(folder.cleanup)
    os.environ["OMPI_MCA_btl_sm_backing_directory"] = os.environ["PRTE_MCA_prte_tmpdir_base"] = folder.name
    config.pluginmanager.register(Leftovers(Path(folder.name)))


class Leftovers:
    """Removal, after each test, of folders that killed launchers have left.

    Open MPI's launcher does not start if a launcher with the same process id has left a folder.
    """

    def __init__(self, folder: Path):
        self.folder = folder

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_teardown(self):
        for left in self.folder.glob("ompi.*"):
            if not Path("/proc", left.suffix[1:]).exists():
                shutil.rmtree(left, ignore_errors=True)


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """Switch off garbage collection while tests are collected: their objects stay, and it would take a third of the
    time."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config, items):
    """Keep the tests of a file together, because they share objects that take long to set up."""
    if seed := config.getoption("shuffle"):
        order = random.Random(seed)
        files = {item.path: order.random() for item in items}
        items.sort(key=lambda item: (files[item.path], order.random()))
    else:
        items.sort(key=lambda item: not item.nodeid.startswith(LONG))


class TimeLimit:
    """A time limit: skips tests after it, in every process that runs tests, and lists the tests that were run."""

    def __init__(self, minutes: float):
        self.end = time.monotonic() + 60 * minutes
        self.reason = f"not begun within {minutes:g} minutes"
        self.all, self.run = Counter(), Counter()

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self):
        if time.monotonic() > self.end:
            pytest.skip(self.reason)

    def pytest_runtest_logreport(self, report):
        if report.when == "setup":
            self.all[report.location[0]] += 1
            self.run[report.location[0]] += not (report.skipped and self.reason in str(report.longrepr))

    def pytest_terminal_summary(self, terminalreporter):
        terminalreporter.section("tests run before the time was over")
        for file, tests in self.run.items():
            terminalreporter.line(f"{file}: {tests} of {self.all[file]}")
