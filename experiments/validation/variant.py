"""The variants of algorithms that are validated: every algorithm with each option value that changes its traits."""

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
"""Variants of all-reduce that cannot be simulated here.

The variant "mpi" is left out, because only the MPI library knows its steps. The variants "shared" and "hierarchical"
need several ranks on a host, but each emulated host has one rank. The variant "auto" is always one of the other
variants.
"""


class Variant(NamedTuple):
    """An algorithm, with overrides of its options that change its traits."""

    algorithm: str
    options: tuple[str, ...]

    @property
    def name(self) -> str:
        """Return the text with which the names of all files of this variant begin."""
        return "-".join(re.findall(r"[\w.]+", " ".join((self.algorithm, self.options_text))))

    @property
    def options_text(self) -> str:
        return ", ".join(option.removeprefix("algorithm.").replace('"', "") for option in self.options)

    def overrides(self) -> list[str]:
        return [f"algorithm.name={json.dumps(self.algorithm)}", *self.options]

    def load(self) -> config.Config:
        return config.load(BASE, self.overrides())


def variants_of(algorithms: Iterable[str], ranks: int) -> list[Variant]:
    """Return the variants of ``algorithms`` that can be simulated on ``ranks`` ranks; print all other variants.

    Raises ConfigError if an algorithm does not exist.
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
