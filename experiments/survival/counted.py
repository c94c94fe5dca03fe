"""A model that counts steps, and `grsgd` with it: ``python -m experiments.survival.counted train CONFIG ...``.

Each step of plain SGD adds 1 to one additional parameter, whatever the data are. Ranks mix this parameter like all
other parameters. Therefore, n times this parameter of the final model, an average of n ranks, is the number of steps in
the final model. The count lacks the work of a process that died before it passed the work on.
"""

import sys

import torch
from torch import nn

from grsgd.models import register, zoo

NAME = "counted"
"""Name of the model in configurations."""


class OneMore(torch.autograd.Function):
    """A function with the value zero, whose gradient makes a step of plain SGD add 1; ``rate``: the learning rate."""

    @staticmethod
    def forward(context, steps, rate):
        context.rate = rate
        return torch.zeros_like(steps)

    @staticmethod
    def backward(context, _):
        return torch.full((1,), -1 / context.rate), None


class Counted(nn.Module):
    """A model ``net`` that also counts steps; ``rate``: the learning rate, which must be constant."""

    def __init__(self, net: nn.Module, rate: float):
        super().__init__()
        self.net, self.rate = net, rate
        self.steps = nn.Parameter(torch.zeros(1))

    def forward(self, x):
        return self.net(x) + OneMore.apply(self.steps, self.rate)


@register.model(NAME, source="here")
def counted(shape, classes, hidden=(64,), rate=0.1):
    """An mlp that counts steps."""
    return Counted(zoo.build("mlp", shape, classes, hidden=list(hidden)), rate)


if __name__ == "__main__":
    from grsgd.cli import main

    sys.exit(main())
