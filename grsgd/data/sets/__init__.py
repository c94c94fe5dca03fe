"""Data sets, with one file per data set or per group of similar data sets. All files in this folder are imported, so a
new file needs no entry elsewhere."""

import importlib
import pkgutil

for _module in pkgutil.iter_modules(__path__, f"{__name__}."):
    importlib.import_module(_module.name)
