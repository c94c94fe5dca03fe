"""Runs that an experiment keeps, found by all that decides what is in them: another run has another file.

A run that is there is not made again. The name of its file ends with a digest of all it depends on:
configuration, ranks, code outside of this package, network, computing, hosts. So a run that was made otherwise is never
taken for it, under whatever name.
"""

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


@functools.cache
def code() -> str:
    """Return a digest of the code that makes runs: all modules of grsgd and coding, committed or not."""
    found = hashlib.sha256()
    for package in (grsgd, coding):
        folder = Path(package.__file__).parent
        for file in sorted(folder.rglob("*.py")):
            found.update(f"{file.relative_to(folder.parent)}\n".encode() + file.read_bytes())
    return found.hexdigest()


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
