"""The specification of a run: a configuration, a number of ranks, and the source of the run's times."""

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
"""Sources of a run's times.

``MEASURED`` times are wall-clock times on a testbed or a cluster. ``SIMULATED`` times come from the simulator, in runs
that compute gradients. ``TIMING_ONLY`` times come from the simulator, in runs that compute no gradients.
With ``UNIT_STEPS``, each step takes one second, for runs whose times mean nothing.
"""
LATENCY = "50us"
"""Latency of simulated links if it was not measured."""


class Link(NamedTuple):
    """The network between the ranks of a run.

    multicast: True if one outgoing copy reaches all receivers, as it always does on a shared medium. nominal: True if
    simulated links have exactly the stated rate, and not the measured rate of a testbed's links. latency: latency of
    simulated links if it was not measured.
    """

    rate: str
    medium: str = "switch"
    multicast: bool = False
    nominal: bool = False
    latency: str = LATENCY

    def __str__(self):
        return f"{self.rate} {self.medium}" + (", true multicast" if self.multicast or self.medium == "shared" else "")


class RunSpec(NamedTuple):
    """The specification of one run, without its results.

    config: name of the configuration, ``paper/name`` or ``experiment/name``, as for ``papers.toml``. overrides:
    ``key=value`` texts that change the configuration, as for ``--set``. slow_hosts: pairs of a rank and the factor by
    which its host on the testbed is slower. compute: computing time of a step in simulated time; None for the measured
    time. place: the machine of a measured run; "" for the machine of this process (``Hosts.place``).
    """

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
        """Return the run's configuration and overrides as arguments for ``grsgd train`` and ``grsgd simulate``."""
        return [
            papers.toml(self.config).relative_to(papers.ROOT).as_posix(),
            *(word for override in self.overrides for word in ("--set", shlex.quote(override))),
        ]

    def words(self) -> str:
        """Return a short description of the run for messages, with its configuration, number of ranks and seed."""
        return f"{self.config} on {self.ranks} ranks, seed {self.load().seed}"

    def name(self, where: str, code: str = "") -> str:
        """Return the name of the run file, which is equal for equal runs with equal ``where``.

        where: text of all conditions on which times depend in addition to the specification. code: digest of the code
        that makes the run; "" for runs whose names have no digest.
        """
        loaded = self.load()
        which = digest(loaded, self.ranks, self.source, where)
        parts = [loaded.algorithm_class.name, f"n{self.ranks}", self.source, code, which]
        return "-".join(filter(None, parts))


@functools.cache  # cached, because targets load each configuration repeatedly
def load_config(name: str, overrides: tuple[str, ...]) -> Config:
    return config.load(papers.toml(name), list(overrides))


@functools.cache
def overrides(path: Path) -> tuple[str, ...]:
    """Return the content of a TOML file as overrides (``key=value`` texts)."""
    pairs = flattened(tomllib.loads(path.read_text()))
    # JSON, because a JSON value is a TOML value on one line
    return tuple(f"{key}={json.dumps(value)}" for key, value in pairs)


@functools.cache
def overrides_beside(config: str, name: str) -> tuple[str, ...]:
    """Return the overrides in the TOML file ``name`` of a configuration's folder; () if the file does not exist."""
    path = papers.toml(config).with_name(name)
    return overrides(path) if path.exists() else ()
