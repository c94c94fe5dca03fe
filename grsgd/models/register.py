"""Register of this package's models by name, and the decorator that adds a model."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn

from grsgd import outside


@dataclass(frozen=True)
class RegisteredModel:
    """Entry of the register of models: the function ``make`` of (shape, classes, **options) that creates a model, and
    facts about the model."""

    make: Callable[..., nn.Module]
    smallest: int
    """Smallest height and width, in pixels, of images that the model accepts."""
    source: str
    usual: tuple[tuple[int, ...], int]
    """Shape of a sample and number of classes for which `grsgd models` prints the model's number of parameters."""
    reads_text: bool = False
    """Whether the model's input is tokens of text; if False, the input is images."""

    def parameters(self) -> int:
        """Return the number of the model's parameters for data of the shape ``usual``."""
        with torch.device("meta"):
            return sum(p.numel() for p in self.build(*self.usual, {}).parameters())

    def usual_data(self) -> str:
        shape, classes = self.usual
        size = "x".join(map(str, shape))
        if self.reads_text:
            return f"text of {size} tokens, {classes} of them"
        return f"images of {size}, {classes} classes"

    def text(self) -> list[str]:
        """Return the lines of the model's description, which is the docstring of the function ``make``."""
        return (inspect.getdoc(self.make) or "").replace("``", "`").splitlines()

    def summary(self) -> str:
        """Return the first sentence of the model's description, for the list of models."""
        return " ".join(self.text()).partition(". ")[0].rstrip(".")

    def options(self) -> dict[str, object]:
        """Return the model's options by name, with their defaults."""
        parameters = inspect.signature(self.make).parameters.values()
        return {parameter.name: parameter.default for parameter in parameters if parameter.name not in OF_DATA}

    def build(self, shape: tuple[int, ...], classes: int, options: dict) -> nn.Module:
        """Call the function ``make`` with ``options``, and return the model that it creates. ``shape`` and ``classes``
        of the data set are passed only if the function ``make`` has these parameters."""
        return outside.call(self.make, {"shape": shape, "classes": classes}, options)


MAX_LAYERS = 1000
"""Largest number of layers that a model's option may ask for, because even a tiny layer takes time and memory."""
OF_DATA = ("shape", "classes")
"""Names of parameters that get their values from the data set, in functions that create models. All other parameters of
a function that creates a model are the model's options."""
MODELS: dict[str, RegisteredModel] = {}


def model(
    name: str, *, smallest: int = 1, source: str = "not given", usual=((1, 28, 28), 10), reads_text: bool = False
):
    """Decorate a function of (shape, classes, **options) to register it as the model ``name``. The model is for images
    of at least ``smallest`` pixels per side, or for text if ``reads_text``.

    ``source`` and ``usual`` (shape, classes) are shown in the list of models. Raises ValueError if another model is
    already registered as ``name``.
    """

    def add(make: Callable[..., nn.Module]) -> Callable[..., nn.Module]:
        if name in MODELS:
            raise ValueError(f"model {name} is registered twice")
        MODELS[name] = RegisteredModel(make, smallest, source, usual, reads_text)
        return make

    return add
