"""Algorithms of distributed SGD, one file for each algorithm. The package imports every module in its folder, so a new
algorithm need not be entered in a list."""

import importlib
import pkgutil

from grsgd.algorithms.base import ALGORITHMS, Algorithm, Options, Traits

for _module in pkgutil.iter_modules(__path__, f"{__name__}."):
    importlib.import_module(_module.name)

__all__ = ["ALGORITHMS", "Algorithm", "Options", "Traits"]
