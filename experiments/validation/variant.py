"""The runs that are validated: every algorithm, in all variants that differ in their traits, found by themselves."""

import json
import re
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from experiments.options import variants
from grsgd import config

BASE = Path(__file__).with_name("base.toml")
NOT_SIMULATED = {f'algorithm.variant="{name}"' for name in ("mpi", "shared", "hierarchical", "auto")}
"""Only the library knows what the first does, hosts of one rank share no memory, and the last is one of the others."""


class Variant(NamedTuple):
    """An algorithm, and overrides that make it another one than its defaults do."""

    algorithm: str
    options: tuple[str, ...]

    @property
    def name(self) -> str:
        """The name of its files."""
        return "-".join(re.findall(r"[\w.]+", " ".join((self.algorithm, self.options_text))))

    @property
    def options_text(self) -> str:
        return ", ".join(option.removeprefix("algorithm.").replace('"', "") for option in self.options)

    def overrides(self) -> list[str]:
        return [f"algorithm.name={json.dumps(self.algorithm)}", *self.options]

    def load(self) -> config.Config:
        return config.load(BASE, self.overrides())


def variants_of(algorithms: Iterable[str], ranks: int) -> list[Variant]:
    """Return all variants of these algorithms that can be simulated on so many ranks; says which are left out.

    Raises ConfigError for an algorithm that there is not.
    """
    found = []
    for variant in (Variant(name, options) for name in algorithms for options in variants(BASE, name)):
        if NOT_SIMULATED.intersection(variant.options):
            continue
        try:
            variant.load().check_ranks(ranks)
        except config.ConfigError as error:
            print(f"left out: {error}", file=sys.stderr)
        else:
            found.append(variant)
    return found
