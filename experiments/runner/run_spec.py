"""A run: a configuration, a number of ranks, and where its time comes from."""

import functools
import json
import shlex
import tomllib
from pathlib import Path
from typing import NamedTuple

from experiments import papers
from grsgd import config
from grsgd.config import Config
from grsgd.config.sources import digest
from grsgd.runs.settings import flattened

MEASURED, SIMULATED, TIMING_ONLY, UNIT_STEPS = "clock", "simulated", "times", "steps"
"""Sources of time: the clock, on a testbed or a cluster; simulated time, with gradients; the same without, times alone;
and steps of a second each, for trainings whose times mean nothing."""
LATENCY = "50us"


class Link(NamedTuple):
    """The network between the ranks. multicast: one copy on the way out reaches all receivers; a shared medium always
    has it. nominal: simulated with the rate as it is said, where others have the rate that a testbed's links were
    measured to have. latency: of links that are simulated and were not measured."""

    rate: str
    medium: str = "switch"
    multicast: bool = False
    nominal: bool = False
    latency: str = LATENCY

    def __str__(self):
        return f"{self.rate} {self.medium}" + (", true multicast" if self.multicast or self.medium == "shared" else "")


class RunSpec(NamedTuple):
    """One run. config: ``paper/name`` or ``experiment/name``, as for ``papers.toml``; overrides: ``key=value``s, as for
    ``--set``; slow_hosts: pairs of a rank and the factor by which its host's processor is slower, of a testbed;
    compute: what a step computes in simulated time, where it is not measured; place: what a run by the clock was made
    on, where that is not here (``Hosts.place``)."""

    config: str
    overrides: tuple[str, ...]
    ranks: int
    source: str
    link: Link
    slow_hosts: tuple[tuple[int, float], ...] = ()
    compute: str | None = None
    place: str = ""

    @property
    def toml(self) -> Path:
        return papers.toml(self.config)

    def load(self) -> Config:
        return load_config(self.config, self.overrides)

    def cli_args(self) -> list[str]:
        """Return the configuration and its overrides as arguments of ``grsgd train`` and ``grsgd simulate``."""
        return [
            papers.toml(self.config).relative_to(papers.ROOT).as_posix(),
            *(word for override in self.overrides for word in ("--set", shlex.quote(override))),
        ]

    def words(self) -> str:
        """Return the run in a few words."""
        return f"{self.config} on {self.ranks} ranks, seed {self.load().seed}"

    def name(self, where: str, code: str = "") -> str:
        """Return the name of the run file: the same for the same run ``where``, on whatever time depends besides.

        code: a digest of the code that makes the run; "" of runs that are told apart without it.
        """
        loaded = self.load()
        which = digest(loaded, self.ranks, self.source, where)
        parts = [loaded.algorithm_class.name, f"n{self.ranks}", self.source, code, which]
        return "-".join(filter(None, parts))


@functools.cache  # targets ask again and again
def load_config(name: str, overrides: tuple[str, ...]) -> Config:
    return config.load(papers.toml(name), list(overrides))


@functools.cache
def overrides(path: Path) -> tuple[str, ...]:
    """Return the content of a TOML file as ``key=value``s."""
    pairs = flattened(tomllib.loads(path.read_text()))
    return tuple(f"{key}={json.dumps(value)}" for key, value in pairs)  # JSON is TOML, too, and in one line


@functools.cache
def overrides_beside(config: str, name: str) -> tuple[str, ...]:
    """Return those of the file of that name in a configuration's folder; none if there is no such file."""
    path = papers.toml(config).with_name(name)
    return overrides(path) if path.exists() else ()
