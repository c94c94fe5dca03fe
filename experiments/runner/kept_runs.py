"""Runs that an experiment keeps, found by all that decides what is in them: another run has another file.

A run that is there is not made again. The name of its file ends with a digest of all it depends on:
configuration, ranks, code outside of this package, network, computing, hosts. So a run that was made otherwise is never
taken for it, under whatever name.
"""

import ast
import functools
import hashlib
from pathlib import Path
from typing import NamedTuple

import coding
import grsgd
from grsgd.config import Config
from grsgd.config.sources import digest
from grsgd.runs.finished import finished_run
from grsgd.runs.run_file import Run
from grsgd.simulate.network import network
from grsgd.simulate.run import simulate

MAKE_NO_RUNS = ("cli",)
"""Folders of grsgd whose modules nothing in a run depends on."""


@functools.cache
def code() -> str:
    """Return a digest of the code that makes runs: all modules of grsgd and coding, committed or not, but for their
    comments and docstrings."""
    found = hashlib.sha256()
    for package in (grsgd, coding):
        folder = Path(package.__file__).parent
        for file in sorted(folder.rglob("*.py")):
            if file.relative_to(folder).parts[0] not in MAKE_NO_RUNS:
                found.update(f"{file.relative_to(folder.parent)}\n{statements(file.read_bytes())}\n".encode())
    return found.hexdigest()


def statements(source: bytes) -> str:
    """Return what a module says to Python: without its docstrings, comments and layout."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(body := getattr(node, "body", None), list):
            node.body = [one for one in body if not is_text(one)]
    return ast.dump(tree)


def is_text(statement: ast.stmt) -> bool:
    """Return whether a statement is a text alone, as docstrings are."""
    return isinstance(statement, ast.Expr) and isinstance(getattr(statement.value, "value", None), str)


def run_file(folder: Path, name: str, config: Config, ranks: int, *where: str) -> Path:
    """Return where an experiment keeps a run that today's code makes; the parameters as of `digest`."""
    return folder / f"{name}-{digest(config, ranks, *where, code())}.h5"


class Simulation(NamedTuple):
    """A run in simulated time. name: begins the name of its file; network, compute: as for ``grsgd simulate``."""

    name: str
    config: Config
    ranks: int
    network: str
    compute: str
    timing_only: bool = False

    def path(self, folder: Path) -> Path:
        """Return the run's file."""
        joined = network(self.network).model_dump_json(exclude={"name"})
        timing = f"timing only: {self.timing_only}"
        return run_file(folder, self.name, self.config, self.ranks, joined, self.compute, timing)

    def kept(self, folder: Path) -> Run | None:
        """Return the run if it is there."""
        return finished_run(self.path(folder))

    def make(self, folder: Path) -> str:
        """Make the run file; returns why the run ended."""
        joined = network(self.network)
        path = self.path(folder)
        return simulate(self.config, self.ranks, joined, path, self.compute, timing_only=self.timing_only)
