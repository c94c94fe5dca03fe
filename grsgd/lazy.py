"""Modules that take long to import, imported when something of theirs is first used."""

import importlib


class LazyModule:
    """Stands for a module: ``torch = LazyModule("torch")`` in place of ``import torch``.

    Commands that list algorithms or data sets, print or draw runs need nothing of it. In annotations it takes
    ``from __future__ import annotations`` not to be used as they are read.
    """

    def __init__(self, name: str):
        self._name = name
        self._module = None

    def __getattr__(self, attribute: str):
        if self._module is None:
            self._module = importlib.import_module(self._name)
        return getattr(self._module, attribute)

    def __repr__(self):
        return f"LazyModule({self._name!r})"
