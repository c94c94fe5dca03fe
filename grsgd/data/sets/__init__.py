"""Loaders of data sets, one file for each data set or group of similar data sets. All files in this folder are
imported, so a new loader file needs no entry in a list."""

import importlib
import pkgutil

for _module in pkgutil.iter_modules(__path__, f"{__name__}."):
    importlib.import_module(_module.name)
