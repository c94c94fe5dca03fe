"""The register of tables and figures; each paper's are in its folder's targets.py."""

import importlib
from collections.abc import Callable
from typing import NamedTuple

from experiments import papers

PAPERS = tuple(papers.YEARS)


class Target(NamedTuple):
    """make: called with a ``RunRequests`` and a ``Section``."""

    name: str
    title: str
    make: Callable

    @property
    def paper(self) -> str:
        return self.name.partition("-")[0]


TARGETS: dict[str, Target] = {}


def target(name: str, title: str):
    """Register the decorated function; ValueError if the name is taken."""

    def add(make: Callable) -> Callable:
        if name in TARGETS:
            raise ValueError(f"target {name} is registered twice")
        TARGETS[name] = Target(name, title, make)
        return make

    return add


def chosen(names: list[str]) -> list[Target]:
    """Return the targets of these names, which may be papers'; of none, all. Raises ValueError for unknown ones."""
    for paper in PAPERS:
        importlib.import_module(f"{papers.module(paper)}.targets")
    if unknown := [name for name in names if name not in TARGETS and name not in PAPERS]:
        raise ValueError(f"no table or figure {unknown[0]!r}; there are {', '.join(PAPERS)}; {', '.join(TARGETS)}")
    return [target for target in TARGETS.values() if not names or {target.name, target.paper} & set(names)]
