"""Functions that find and create models by name: models of this package, and users' own models."""

from collections.abc import Sequence

from torch import nn
from torch.nn.parameter import is_lazy

from grsgd import outside
from grsgd.models import images, text  # noqa: F401  the import of these modules registers their models
from grsgd.models.register import MODELS, RegisteredModel

NAMES = tuple(MODELS)


def build(name: str, shape: Sequence[int], classes: int, **options) -> nn.Module:
    """Return a new model with random weights from torch's global generator. A model for images maps float32 [b, *shape]
    to logits [b, classes]. A model for text maps tokens, int64 [b, length], to logits [b, length, classes], where
    ``classes`` is the number of different tokens.

    Raises ValueError, with a message of one line, if the name or an option is unknown, or if the model cannot take data
    of the shape ``shape``.
    """
    network = find(name)
    allowed = network.options()
    if unknown := sorted(options.keys() - allowed.keys()):
        raise ValueError(f"model {name}: unknown option {unknown[0]}; allowed: {', '.join(allowed) or 'none'}")
    if name not in MODELS:
        model = network.build(tuple(shape), classes, options)
        if not isinstance(model, nn.Module):
            raise ValueError(f"model {name}: makes {type(model).__name__}, expected a torch.nn.Module")
        check_parameters(name, model)
        return model
    if network.reads_text:
        if len(shape) != 1 or shape[0] < 1:
            raise ValueError(f"model {name}: reads text: the data have shape {tuple(shape)}, expected (places,)")
        return network.build(tuple(shape), classes, options)
    if len(shape) != 3 or min(shape) < 1:
        raise ValueError(f"model {name}: image shape {tuple(shape)}, expected (channels, height, width)")
    if min(shape[1:]) < network.smallest:
        least = f"{network.smallest}x{network.smallest}"
        raise ValueError(f"model {name}: images of {shape[1]}x{shape[2]}, expected at least {least}")
    return network.build(tuple(shape), classes, options)


def check_parameters(name: str, model: nn.Module):
    """Raise ValueError if ``model`` has no trainable parameters, or if a parameter has no shape yet, as in lazy
    modules."""
    if lazy := [key for key, tensor in model.state_dict(keep_vars=True).items() if is_lazy(tensor)]:
        raise ValueError(
            f"model {name}: {lazy[0]} has no shape yet (a lazy module): give the shape, or call the model with a batch "
            "of zeros at the end of its __init__"
        )
    if not any(p.requires_grad for p in model.parameters()):
        raise ValueError(
            f"model {name}: no parameter requires a gradient: keep modules in attributes or an nn.ModuleList, not in a "
            "list, and do not freeze all parameters"
        )


def find(name: str) -> RegisteredModel:
    """Return the `RegisteredModel` (function that creates a model, and facts) of the model called ``name``. ``name``
    may name one of `MODELS`, a function in a user's file or module (`grsgd.outside`), or a model of a plug-in.

    Raises ValueError if there is no model called ``name``.
    """
    if name in MODELS:
        return MODELS[name]
    made = outside.loaded(name, "models")
    if made is None:
        raise ValueError(f"unknown model {name}; there are {', '.join(NAMES)}, FILE.py:NAME and PACKAGE.MODULE:NAME")
    source = outside.source_of(made)
    return RegisteredModel(made, 1, source.path if source else made.__module__, ((1, 28, 28), 10))
