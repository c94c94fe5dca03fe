"""A stand-in for modules that take long to import, such as torch. The stand-in imports its module at the first use."""

import importlib


class LazyModule:
    """Stand-in for a module: ``torch = LazyModule("torch")`` in place of ``import torch``.

    The module is imported at the first access to one of its attributes. Commands that list algorithms or data sets, or
    print or draw runs, therefore do not import torch. Source files with annotations such as ``torch.Tensor`` need
    ``from __future__ import annotations``, because without this line Python would read the annotation and import the
    module.
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
