"""Runs chosen tests in a process of their own: with a mutant in place of a module, or noting which lines they reach.

The process is forked off one that has imported the large packages, but nothing of the project. A mutant is put in place
by the import hook, never written to the folder. Tests that start another Python see the code as it is there.
"""

import importlib.abc
import importlib.util
import json
import os
import resource
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path

from tests.mutants.changes import ROOT, Mutant

UNIT = "tests/unit", "tests/integration"
"""Folders of the tests that need no MPI."""
MEMORY_BYTES = 6 * 2**30
SECONDS_FOR_IMPORTS = 120
SECONDS_FOR_A_TEST = 20
"""So much, and ten times what it takes, is what a test may take; a mutant that makes it take longer is killed."""


class Chosen:
    """The plugin of pytest that runs the chosen tests in their order, each within its time, and notes what they did."""

    def __init__(self, seconds: dict[str, float] | None = None):
        self.chosen = seconds
        self.running: str | None = None
        self.seconds: dict[str, float] = {}
        self.failed: list[str] = []

    def pytest_collection_modifyitems(self, items):
        if self.chosen is not None:
            found = {item.nodeid: item for item in items}
            items[:] = [found[test] for test in self.chosen if test in found]

    def pytest_runtest_logstart(self, nodeid):
        self.running = nodeid
        # Without a handler the signal ends the process, whatever it is doing.
        signal.alarm(int(SECONDS_FOR_A_TEST + 10 * (self.chosen or {}).get(nodeid, 60)))

    def pytest_runtest_logreport(self, report):
        self.seconds[report.nodeid] = self.seconds.get(report.nodeid, 0.0) + report.duration
        if report.failed:
            self.failed.append(report.nodeid)
        if report.skipped:
            self.seconds.pop(report.nodeid)


class Hook(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds one module: that of the mutant."""

    def __init__(self, mutant: Mutant):
        self.path = ROOT / mutant.path
        self.name = mutant.path.removesuffix(".py").replace("/", ".").removesuffix(".__init__")
        # Else numba would take what it has compiled of the code as it is.
        self.text = mutant.text.replace("cache=True", "cache=False")

    def find_spec(self, name, path, target=None):
        if name != self.name:
            return None
        return importlib.util.spec_from_file_location(name, self.path, loader=self)

    def exec_module(self, module):
        exec(compile(self.text, self.path, "exec"), module.__dict__)


class Child:
    """A process in which ``work()`` is done; what that returns, and what it printed, are files."""

    def __init__(self, work: Callable[[], object]):
        self._folder = tempfile.TemporaryDirectory(prefix="mutant-")
        self.pid = os.fork()
        if self.pid == 0:
            status = 1
            try:
                os.setsid()
                signal.signal(signal.SIGTERM, signal.SIG_DFL)
                os.chdir(ROOT)
                output = os.open(f"{self._folder.name}/output", os.O_WRONLY | os.O_CREAT)
                os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
                os.dup2(output, 1)
                os.dup2(output, 2)
                os.environ["TMPDIR"] = tempfile.tempdir = self._folder.name
                resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_BYTES, MEMORY_BYTES))
                signal.alarm(SECONDS_FOR_IMPORTS)
                Path(self._folder.name, "result").write_text(json.dumps(work()))
                status = 0
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stdout.flush()
                os._exit(status)

    def end(self, status: int) -> tuple[object, str]:
        """What it returned, or why there is nothing, and what it printed; after it has ended with that status."""
        try:
            os.killpg(self.pid, signal.SIGKILL)  # what it has started
        except ProcessLookupError:
            pass
        output = Path(self._folder.name, "output").read_text(errors="replace")
        code = os.waitstatus_to_exitcode(status)
        if code == 0:
            result = json.loads(Path(self._folder.name, "result").read_text())
        elif code == -signal.SIGALRM:
            result = "takes too long"
        else:
            result = f"ends with {signal.Signals(-code).name if code < 0 else code}"
        self._folder.cleanup()
        return result, output


def in_children(works, processes: int, done: Callable):
    """Do each of ``works``, pairs of a key and a function, in a process; then ``done(key, result, output)``."""
    running: dict[int, tuple[object, Child]] = {}
    waiting = iter(works)
    try:
        while True:
            while len(running) < processes and (work := next(waiting, None)) is not None:
                child = Child(work[1])
                running[child.pid] = work[0], child
            if not running:
                return
            pid, status = os.wait()
            if pid in running:
                key, child = running.pop(pid)
                done(key, *child.end(status))
    finally:
        for _, child in running.values():
            os.killpg(child.pid, signal.SIGKILL)


def import_packages():
    """Import what every child needs and is no part of the project."""
    for name in ("torch", "torch.optim", "numpy", "numba", "h5py", "pytest", "hypothesis", "pydantic", "simpy", "PIL"):
        importlib.import_module(name)
    importlib.import_module("matplotlib.figure")


def run_tests(paths: list[str], plugin: Chosen, *options: str) -> int:
    import pytest
    from hypothesis import Phase, settings

    # The same examples each time, kept nowhere; that one fails is enough, the smallest is not wanted.
    phases = [Phase.explicit, Phase.generate]
    settings.register_profile("mutants", derandomize=True, database=None, phases=phases, deadline=None)
    settings.load_profile("mutants")
    without = ["-pno:cacheprovider", "-pno:xdist", "-pno:hypothesispytest"]
    quiet = ["-q", "--disable-warnings", "--tb=short", "--no-header"]
    return int(pytest.main([*without, *quiet, *options, *paths], plugins=[plugin]))


def killer(mutant: Mutant, tests: dict[str, float]) -> str | None:
    """What tells the mutant from the code: the first test that fails, or why none could be run; None if all pass.

    Called in a process of its own. ``tests``: the seconds that each takes, in the order in which they are run.
    """
    sys.meta_path.insert(0, Hook(mutant))
    plugin = Chosen(tests)
    paths = list(dict.fromkeys(test.partition("::")[0] for test in tests))
    code = run_tests(paths, plugin, "-x")
    if plugin.failed:
        return plugin.failed[0]
    if code == 0 and plugin.seconds:
        return None
    return f"pytest ends with {code}"


def reached(path: str, code: list[str]) -> dict:
    """Which lines of the files ``code`` each test of a file reaches, and how long it takes.

    Called in a process of its own. Compiled functions run as Python, so that their lines are seen, too.
    """
    import numba
    from coverage import Coverage

    numba.config.DISABLE_JIT = True
    coverage = Coverage(data_file=None, config_file=False, include=[str(ROOT / file) for file in code])

    class Recorder(Chosen):
        def pytest_runtest_logstart(self, nodeid):
            super().pytest_runtest_logstart(nodeid)
            coverage.switch_context(nodeid)

    plugin = Recorder()
    coverage.start()
    status = run_tests([path], plugin)
    coverage.stop()
    data = coverage.get_data()
    lines = {
        file: {
            line: [test for test in tests if test in plugin.seconds and test not in plugin.failed]
            for line, tests in data.contexts_by_lineno(str(ROOT / file)).items()
        }
        for file in code
    }
    seconds = {test: time for test, time in plugin.seconds.items() if test not in plugin.failed}
    return {"seconds": seconds, "failed": plugin.failed, "lines": lines, "status": status}
