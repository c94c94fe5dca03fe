"""Register of the models that this package has, by name."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn

from grsgd import outside


@dataclass(frozen=True)
class RegisteredModel:
    """Function of (shape, classes, **options) that makes a model, and facts about the model."""

    make: Callable[..., nn.Module]
    smallest: int
    """Number of pixels per side of the smallest images that the model takes."""
    source: str
    usual: tuple[tuple[int, ...], int]
    """Shape of the data and number of classes for which `grsgd models` lists the number of parameters."""
    reads_text: bool = False
    """Whether the model is for tokens of text, and not for images."""

    def parameters(self) -> int:
        """Return the number of parameters of the model for its ``usual`` data."""
        with torch.device("meta"):
            return sum(p.numel() for p in self.build(*self.usual, {}).parameters())

    def usual_data(self) -> str:
        shape, classes = self.usual
        size = "x".join(map(str, shape))
        if self.reads_text:
            return f"text of {size} tokens, {classes} of them"
        return f"images of {size}, {classes} classes"

    def text(self) -> list[str]:
        """Return the lines of the function's docstring."""
        return (inspect.getdoc(self.make) or "").replace("``", "`").splitlines()

    def summary(self) -> str:
        """Return the first sentence of the function's docstring."""
        return " ".join(self.text()).partition(". ")[0].rstrip(".")

    def options(self) -> dict[str, object]:
        """Return the options with their defaults."""
        parameters = inspect.signature(self.make).parameters.values()
        return {parameter.name: parameter.default for parameter in parameters if parameter.name not in OF_DATA}

    def build(self, shape: tuple[int, ...], classes: int, options: dict) -> nn.Module:
        """Create the model, by calling ``make`` with the options, and with ``shape`` and ``classes`` of the data if it
        has these parameters."""
        return outside.call(self.make, {"shape": shape, "classes": classes}, options)


MAX_LAYERS = 1000
"""Largest number of layers that an option may ask for, because even a tiny layer takes time and memory."""
OF_DATA = ("shape", "classes")
"""Parameters of a model's function that are taken from the data; all other parameters are options."""
MODELS: dict[str, RegisteredModel] = {}


def model(
    name: str, *, smallest: int = 1, source: str = "not given", usual=((1, 28, 28), 10), reads_text: bool = False
):
    """Register the decorated function of (shape, classes, **options), for images of at least ``smallest`` pixels per
    side, or for text.

    ``source`` and ``usual`` (shape, classes) are for the list of models. Raises ValueError if the name is taken.
    """

    def add(make: Callable[..., nn.Module]) -> Callable[..., nn.Module]:
        if name in MODELS:
            raise ValueError(f"model {name} is registered twice")
        MODELS[name] = RegisteredModel(make, smallest, source, usual, reads_text)
        return make

    return add
