"""A model that counts training steps, and `grsgd` with it: ``python -m experiments.survival.counted train CONFIG``.

Each step of plain SGD adds 1 to one additional parameter of the model, whatever the data are. Ranks average this
additional parameter with other ranks like all parameters. In the final model, the average of n ranks, n times this
parameter is therefore the number of steps that the model contains. Steps that a process took before its death are not
counted if the process had not yet passed their result on.
"""

import sys

import torch
from torch import nn

from grsgd.models import register, zoo

NAME = "counted"
"""Name of the counting model in configurations."""


class OneMore(torch.autograd.Function):
    """A function whose value is zero and whose gradient makes a step of plain SGD add 1.

    ``rate``: the learning rate.
    """

    @staticmethod
    def forward(context, steps, rate):
        context.rate = rate
        return torch.zeros_like(steps)

    @staticmethod
    def backward(context, _):
        return torch.full((1,), -1 / context.rate), None


class Counted(nn.Module):
    """The model ``net``, which also counts steps.

    ``rate``: the learning rate, which must be constant.
    """

    def __init__(self, net: nn.Module, rate: float):
        super().__init__()
        self.net, self.rate = net, rate
        self.steps = nn.Parameter(torch.zeros(1))

    def forward(self, x):
        return self.net(x) + OneMore.apply(self.steps, self.rate)


@register.model(NAME, source="here")
def counted(shape, classes, hidden=(64,), rate=0.1):
    """Return a multilayer perceptron that counts its training steps."""
    return Counted(zoo.build("mlp", shape, classes, hidden=list(hidden)), rate)


if __name__ == "__main__":
    from grsgd.cli import main

    sys.exit(main())
