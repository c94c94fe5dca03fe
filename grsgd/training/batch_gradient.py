"""Computation of the gradient of one batch on one rank, with the settings of the configuration's section
``[gradient]``."""

import os
import shutil
from functools import cached_property

import torch

from grsgd.config.sections import Gradient
from grsgd.errors import ConfigError
from grsgd.models.replica import Replica, output_of
from grsgd.tasks import Task
from grsgd.text import printable


class BatchGradient:
    """Computation of the gradient of a batch, for all samples at once, or in micro-batches whose gradients are added
    up.

    The sum of the micro-batches' gradients equals the gradient of the whole batch, apart from rounding. A layer that
    depends on the whole batch, such as batch norm, sees only the samples of one micro-batch.
    """

    def __init__(self, wanted: Gradient, replica: Replica, task: Task):
        self.wanted, self.replica, self.task = wanted, replica, task
        self.is_last = True
        """Whether the present micro-batch is the last of its batch, so that the batch's gradient becomes complete."""

    def compute(self, x: torch.Tensor, y: torch.Tensor, items: float) -> float:
        """Compute the gradient of the batch's total loss divided by ``items``, and store it in the replica. Return the
        total loss divided by ``items``."""
        self.replica.zero_gradients()
        size = self.wanted.micro_batch
        parts = [(x, y)] if size is None else list(zip(x.split(size), y.split(size), strict=True))
        losses = []
        for number, (inputs, targets) in enumerate(parts, 1):
            self.is_last = number == len(parts)
            loss = self.total_loss(inputs, targets) / items
            loss.backward()
            losses.append(loss.detach())
        self.replica.collect_gradients()
        return sum(loss.item() for loss in losses)

    @cached_property
    def total_loss(self):
        """Function of (inputs, targets) that returns the total loss of a batch. The function ``total_loss`` is compiled
        by torch if the configuration sets ``gradient.compile``."""
        # Each batch shape is compiled separately, so that ranks compute the same bits for the same block of samples.
        return torch.compile(self._total_loss, dynamic=False) if self.wanted.compile else self._total_loss

    def _total_loss(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        if self.wanted.autocast == "off":
            return self.task.total_loss(output_of(self.replica.model, x), y)
        with torch.autocast(self.replica.device.type, getattr(torch, self.wanted.autocast)):
            return self.task.total_loss(output_of(self.replica.model, x), y)


def check_compiler(wanted: Gradient, device: torch.device):
    """Raise ConfigError if ``wanted.compile`` is set, but torch cannot compile code for ``device`` on this machine."""
    if not wanted.compile:
        return
    compiler = os.environ.get("CXX", "g++")
    if shutil.which(compiler) is None:
        raise ConfigError(
            f"gradient.compile = true: this machine has no C++ compiler {compiler!r}: install g++, or set CXX"
        )
    x = torch.ones(8, device=device, requires_grad=True)
    try:
        torch.compile(square_sum)(x).backward()
    except Exception as error:  # torch raises many classes of errors for a failed compilation
        raise ConfigError(
            f"gradient.compile = true: torch cannot compile on this machine: {printable(str(error), 300)}"
        ) from error


def square_sum(x: torch.Tensor) -> torch.Tensor:
    """Return the sum of the squares of ``x``. The function `check_compiler` compiles this small function as a test of
    the compiler."""
    return (x * x).sum()
