"""Benchmark of training steps whose all-reduce sums the whole gradient, or buckets of it, or is left out.

share hidden = 1 - (step - step alone) / all-reduce, in which "step alone" is the time of the forward pass, backward
pass and update on a rank that sends nothing. An all-reduce can be hidden only behind a backward pass. The batch size
is therefore chosen so that the backward pass takes about twice as long as the all-reduce. In table rows named
"elsewhere", as in `experiments.bench.overlap`, the benchmark pretends that another processor computes the backward
pass. In rows named "elsewhere", this processor sleeps until each gradient is due.
"""

import copy
import time
from statistics import median

import numpy as np
import torch
from torch import nn

import grsgd
from experiments.bench.side_by_side import announce, median_and_range, take_turns
from grsgd.comm.allreduce import ring_allreduce
from grsgd.comm.backend import MpiBackend
from grsgd.comm.communicator import Communicator
from grsgd.comm.driver import MpiDriver

LAYERS, WIDTH = 22, 512
"""Number of the model's linear layers and their width; the parameters take 22 MiB."""
BUCKETS = (4, 8)
"""Numbers of buckets into which the measured steps divide the gradient."""
ROUNDS = 9
TIMES_AS_LONG = 2.0
"""Chosen ratio of the seconds of the backward pass to the seconds of the all-reduce."""


class Pause(torch.autograd.Function):
    """An identity function whose backward pass sleeps for ``seconds``, as if another processor computed it.
    """

    @staticmethod
    def forward(context, x, seconds):
        context.seconds = seconds
        return x.clone()

    @staticmethod
    def backward(context, gradient):
        time.sleep(context.seconds)
        return gradient, None


class Network(nn.Module):
    """A model of linear layers. pause: seconds that the backward pass sleeps at each layer."""

    def __init__(self, pause: float = 0.0):
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList([nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)])
        self.pause = pause

    def forward(self, x):
        for layer in self.layers:
            x = torch.tanh(layer(x))
            if self.pause:
                x = Pause.apply(x, self.pause)
        return x.square().mean()


class Steps:
    """Training steps of a copy of ``model`` on one batch.

    ``distribute(model, optimizer)`` returns the optimizer that exchanges gradients with the other ranks.
    """

    def __init__(self, model: Network, x: torch.Tensor, distribute=lambda model, optimizer: optimizer):
        self.model, self.x = copy.deepcopy(model), x
        self.optimizer = distribute(self.model, torch.optim.SGD(self.model.parameters(), lr=0.01))
        self.backward: list[float] = []
        """Seconds of each measured backward pass."""

    def __call__(self):
        self.optimizer.zero_grad()
        loss = self.model(self.x)
        begin = time.perf_counter()
        loss.backward()
        self.backward.append(time.perf_counter() - begin)
        self.optimizer.step()


def rows(mpi, quick: bool) -> list[list]:
    """Measure training steps with every combination of the options; return the rows of the table."""
    comm, driver = Communicator(MpiBackend(mpi.Dup())), MpiDriver(mpi.rank, progress_mode="inline")
    gradient = np.zeros(sum(p.numel() for p in Network().parameters()), np.float32)
    allreduce = {"all-reduce": lambda: driver.run(ring_allreduce(comm, gradient))}
    wanted = TIMES_AS_LONG * median(take_turns(mpi, allreduce, 5)["all-reduce"])
    found = []
    for where in ("here", "elsewhere"):
        batch, pause = (batch_for(mpi, wanted), 0.0) if where == "here" else (1, wanted / LAYERS)
        model, x = Network(pause), torch.randn(8 if quick else batch, WIDTH)
        for mode in ("thread", "inline"):
            announce(mpi, f"overlap: steps {where}, batch {len(x)}, {mode}")
            contenders = {"alone": Steps(model, x)} | allreduce
            for buckets in (None, *BUCKETS[: 1 if quick else None]):
                contenders[buckets] = Steps(model, x, distributed(mpi, mode, buckets))
            take_turns(mpi, contenders, 2)
            seconds = take_turns(mpi, contenders, 2 if quick else ROUNDS)
            backward = mpi.allreduce(median(contenders["alone"].backward)) / mpi.size
            for buckets in (None, *BUCKETS[: 1 if quick else None]):
                found.append([where, mode, buckets or "whole", f"{1e3 * backward:.0f}", *figures(seconds, buckets)])
                contenders[buckets].optimizer.finish()
    driver.close()
    return found


def batch_for(mpi, seconds: float) -> int:
    """Return the batch size whose backward pass takes ``seconds`` while all ranks compute at once."""
    size = 64
    steps = Steps(Network(), torch.randn(size, WIDTH))
    take_turns(mpi, {"": steps}, 6)
    measured = mpi.allreduce(median(steps.backward[1:])) / mpi.size
    return max(8, round(size * seconds / measured))


def distributed(mpi, mode: str, buckets: int | None):
    return lambda model, optimizer: grsgd.distribute(
        model, optimizer, "ring_allreduce", mpi, progress_mode=mode, buckets=buckets
    )


def figures(seconds, buckets) -> list[str]:
    alone, allreduce, step = seconds["alone"], seconds["all-reduce"], seconds[buckets]
    share = 1 - np.median(step - alone) / np.median(allreduce)
    return [*(median_and_range(taken * 1e3, ".0f") for taken in (alone, allreduce, step)), f"{share:.2f}"]


HEADERS = ["backward", "progress", "buckets", "backward ms"]
HEADERS += ["step alone ms", "all-reduce ms", "step ms", "share hidden"]
