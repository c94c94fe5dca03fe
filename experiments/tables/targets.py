"""The register of targets (tables and figures of papers).

The file targets.py in each paper's folder registers the targets of the paper.

A target has two functions: ``needs`` returns the runs that the target needs, and ``show`` writes their results into a
section. ``show`` is called once, after all runs of the target have been made.
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
"""Short names of the papers, with which the names of the papers' targets begin."""


class Found(dict[Hashable, "list[Run] | Sample"]):
    """The results of a target's needs, by the target's keys.

    conditions: the conditions under which the runs were made.
    """

    def __init__(self, conditions: Conditions, results: dict[Hashable, "list[Run] | Sample"]):
        super().__init__(results)
        self.conditions = conditions


class Target(NamedTuple):
    """A table or figure of a paper.

    needs: function that returns the target's needs by keys of its own. show: function that writes the results into a
    section.
    """

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
    """Return the targets that ``names`` selects, as names of targets or papers; all targets if ``names`` is empty.

    Raises ValueError if ``names`` has an unknown name.
    """
    for paper in PAPERS:
        importlib.import_module(f"{papers.module(paper)}.targets")
    if unknown := [name for name in names if name not in TARGETS and name not in PAPERS]:
        raise ValueError(f"no table or figure {unknown[0]!r}; allowed: {', '.join(PAPERS)}; {', '.join(TARGETS)}")
    return [target for target in TARGETS.values() if not names or {target.name, target.paper} & set(names)]
