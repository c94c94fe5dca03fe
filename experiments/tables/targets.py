"""The register of targets (tables and figures); targets.py in each paper's folder registers the targets of the paper.

A target is two plain functions: ``needs`` returns the runs that it needs, and ``show`` shows their results. ``show`` is
called once, after the runs have been made.
"""

import importlib
from collections.abc import Callable, Hashable
from typing import NamedTuple

from experiments import papers
from experiments.runner.conditions import Conditions
from experiments.runner.needs import Need
from experiments.runner.sample import Sample
from experiments.tables.section import Section
from grsgd.runs.run_file import Run

PAPERS = tuple(papers.YEARS)
"""The short names of the papers."""


class Found(dict[Hashable, "list[Run] | Sample"]):
    """The result of each need, by the key that the target gave to the need. conditions: the conditions of the runs."""

    def __init__(self, conditions: Conditions, results: dict[Hashable, "list[Run] | Sample"]):
        super().__init__(results)
        self.conditions = conditions


class Target(NamedTuple):
    """A table or figure. needs: function that returns needs by the target's own keys. show: writes the section."""

    name: str
    title: str
    needs: Callable[[Conditions], dict[Hashable, Need]]
    show: Callable[[Found, Section], None]

    @property
    def paper(self) -> str:
        return self.name.partition("-")[0]


TARGETS: dict[str, Target] = {}


def register(
    name: str,
    title: str,
    needs: Callable[[Conditions], dict[Hashable, Need]],
    show: Callable[[Found, Section], None],
) -> None:
    """Register a target; raise ValueError if the name is already registered."""
    if name in TARGETS:
        raise ValueError(f"target {name} is registered twice")
    TARGETS[name] = Target(name, title, needs, show)


def chosen(names: list[str]) -> list[Target]:
    """Return the targets for names of targets or papers; all targets if ``names`` is empty. Raises ValueError."""
    for paper in PAPERS:
        importlib.import_module(f"{papers.module(paper)}.targets")
    if unknown := [name for name in names if name not in TARGETS and name not in PAPERS]:
        raise ValueError(f"no table or figure {unknown[0]!r}; allowed: {', '.join(PAPERS)}; {', '.join(TARGETS)}")
    return [target for target in TARGETS.values() if not names or {target.name, target.paper} & set(names)]
