"""One file per algorithm. A new file in this folder is found by itself."""

import importlib
import pkgutil

from grsgd.algorithms.base import ALGORITHMS, Algorithm, Options, Traits

for _module in pkgutil.iter_modules(__path__, f"{__name__}."):
    importlib.import_module(_module.name)

__all__ = ["ALGORITHMS", "Algorithm", "Options", "Traits"]
