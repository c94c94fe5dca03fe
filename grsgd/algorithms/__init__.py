"""Algorithms, one file each. The package imports every file in this folder, so a new algorithm is entered in no
list."""

import importlib
import pkgutil

from grsgd.algorithms.base import ALGORITHMS, Algorithm, Options, Traits

for _module in pkgutil.iter_modules(__path__, f"{__name__}."):
    importlib.import_module(_module.name)

__all__ = ["ALGORITHMS", "Algorithm", "Options", "Traits"]
