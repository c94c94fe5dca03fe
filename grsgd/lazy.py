"""Import of modules that take long to import, at their first use."""

import importlib


class LazyModule:
    """Stand-in for a module: ``torch = LazyModule("torch")`` in place of ``import torch``.

    The module is imported at the first access to an attribute. So commands that list algorithms or data sets, or print
    or draw runs, do not import torch. Files with annotations such as ``torch.Tensor`` need ``from __future__ import
    annotations``; otherwise reading the annotation would import the module.
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
