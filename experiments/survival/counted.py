"""A model that counts, and `grsgd` with it: ``python -m experiments.survival.counted train CONFIG ...``.

Each step of plain SGD adds 1 to one more parameter, whatever the data. Ranks mix it as they mix the others, so the
final model, an average of n ranks, holds of every rank's steps the share that has come to it, over n: n times that
parameter is how many steps are in the final model. What a process has done that dies before it has passed it on is not.
"""

import sys

import torch
from torch import nn

from grsgd.models import register, zoo

NAME = "counted"


class OneMore(torch.autograd.Function):
    """Zero, with the gradient that makes a step of plain SGD with this learning rate add 1."""

    @staticmethod
    def forward(context, steps, rate):
        context.rate = rate
        return torch.zeros_like(steps)

    @staticmethod
    def backward(context, _):
        return torch.full((1,), -1 / context.rate), None


class Counted(nn.Module):
    """``net``, and a count of the steps; ``rate``: the learning rate, which is constant."""

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
