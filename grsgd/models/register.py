"""The register of models."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn

from grsgd import outside


@dataclass(frozen=True)
class RegisteredModel:
    """A function of (shape, classes, **options) that makes a model, and what is known of that."""

    make: Callable[..., nn.Module]
    smallest: int
    """Pixels a side of the smallest images that it takes."""
    source: str
    usual: tuple[tuple[int, ...], int]
    """Shape of the data and number of the classes that its size is told for."""
    reads_text: bool = False
    """Whether it is for tokens of text, and not for images."""

    def parameters(self) -> int:
        """Return the number of parameters for the usual images."""
        with torch.device("meta"):
            return sum(p.numel() for p in self.build(*self.usual, {}).parameters())

    def usual_data(self) -> str:
        shape, classes = self.usual
        size = "x".join(map(str, shape))
        if self.reads_text:
            return f"text of {size} tokens, {classes} of them"
        return f"images of {size}, {classes} classes"

    def text(self) -> list[str]:
        """Return the lines of what it says of itself."""
        return (inspect.getdoc(self.make) or "").replace("``", "`").splitlines()

    def summary(self) -> str:
        """Return the first sentence of it."""
        return " ".join(self.text()).partition(". ")[0].rstrip(".")

    def options(self) -> dict[str, object]:
        """Return its options with their defaults."""
        parameters = inspect.signature(self.make).parameters.values()
        return {parameter.name: parameter.default for parameter in parameters if parameter.name not in OF_DATA}

    def build(self, shape: tuple[int, ...], classes: int, options: dict) -> nn.Module:
        """Make the model, given what it asks for of the data: ``shape``, ``classes``."""
        return outside.call(self.make, {"shape": shape, "classes": classes}, options)


MOST_LAYERS = 1000
"""Layers that an option may ask for: each takes time and memory, whatever its size."""
OF_DATA = ("shape", "classes")
"""The parameters of a model that come from the data; all others are options."""
MODELS: dict[str, RegisteredModel] = {}


def model(
    name: str, *, smallest: int = 1, source: str = "not given", usual=((1, 28, 28), 10), reads_text: bool = False
):
    """Register the decorated function of (shape, classes, **options), for images of ``smallest`` pixels a side or more,
    or for text.

    ``source`` and ``usual`` (shape, classes) are for the list of models. Raises ValueError if the name is taken.
    """

    def add(make: Callable[..., nn.Module]) -> Callable[..., nn.Module]:
        if name in MODELS:
            raise ValueError(f"model {name} is registered twice")
        MODELS[name] = RegisteredModel(make, smallest, source, usual, reads_text)
        return make

    return add
