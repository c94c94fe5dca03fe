"""Data sets, one file for each or for a few similar sets. A new file in this folder is found by itself."""

import importlib
import pkgutil

for _module in pkgutil.iter_modules(__path__, f"{__name__}."):
    importlib.import_module(_module.name)
