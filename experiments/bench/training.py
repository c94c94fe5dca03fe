"""Training steps per second: every algorithm of grsgd in a user's own loop, against the usual alternatives.

The bar is a plain loop with one in-place Allreduce of gradients that lie in one flat array. All contenders train the
same model on the same batches with the same torch optimizer, one thread per rank, and take turns.
"""

import numpy as np
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import grsgd
from experiments.bench.side_by_side import has, progress, report, spread, start, start_gloo, take_turns
from grsgd.algorithms import ALGORITHMS

MODELS = {"0.8 MiB": (784, 256, 10), "22 MiB": (784, 2048, 2048, 10)}
STEPS_ROUNDS = {"0.8 MiB": (30, 15), "22 MiB": (10, 9)}
BATCH = 64
BAR = "flat Allreduce loop"
EXACT = (BAR, "gloo DDP", "grsgd ring_allreduce")
"""Those that apply the mean of all gradients to one model: they must agree."""


def mlp(widths) -> nn.Module:
    torch.manual_seed(0)
    layers = []
    for inputs, outputs in zip(widths, widths[1:], strict=False):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def sgd(parameters):
    return torch.optim.SGD(parameters, lr=0.02, momentum=0.9)


class FlatLoop:
    """The bar. Scaling the loss's gradient by 1/n makes the sum over the ranks a mean for nothing."""

    def __init__(self, mpi, model):
        from mpi4py import MPI

        self.mpi, self.in_place, self.model, self.optimizer = mpi, MPI.IN_PLACE, model, sgd(model.parameters())
        parameters = list(model.parameters())
        self.grads = torch.zeros(sum(p.numel() for p in parameters))
        for p, part in zip(parameters, self.grads.split([p.numel() for p in parameters]), strict=True):
            p.grad = part.view_as(p)
        self.array = self.grads.numpy()
        self.share = torch.tensor(1 / mpi.size)

    def step(self, x, y):
        self.grads.zero_()
        cross_entropy(self.model(x), y).backward(self.share)
        self.mpi.Allreduce(self.in_place, self.array)
        self.optimizer.step()

    def finish(self):
        pass


class GlooDDP:
    def __init__(self, mpi, model):
        self.model = nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True)
        self.optimizer = sgd(model.parameters())

    def step(self, x, y):
        self.optimizer.zero_grad()
        cross_entropy(self.model(x), y).backward()
        self.optimizer.step()

    def finish(self):
        pass


class DecentDP:
    """Its optimizer steps inside of backward."""

    def __init__(self, mpi, model, topology: str):
        from decent_dp.ddp import DecentralizedDataParallel
        from loguru import logger

        logger.disable("decent_dp")
        self.model = DecentralizedDataParallel(
            model, lambda named: sgd([p for _, p in named]), topology=topology, _local_world_size=mpi.size
        )

    def step(self, x, y):
        cross_entropy(self.model(x), y).backward()

    def finish(self):
        self.model.global_avg(will_revert=False)


class Ours:
    def __init__(self, mpi, model, algorithm: str):
        self.model = model
        self.optimizer = grsgd.distribute(model, sgd(model.parameters()), algorithm, mpi)

    def step(self, x, y):
        self.optimizer.zero_grad()
        cross_entropy(self.model(x), y).backward()
        self.optimizer.step()

    def finish(self):
        self.optimizer.finish()


def main():
    mpi, quick = start()
    gloo, decent = start_gloo(mpi), has("decent_dp")
    for size, widths in MODELS.items():
        makers = {BAR: FlatLoop}
        if gloo:
            makers["gloo DDP"] = GlooDDP
        if gloo and decent:
            for topology in ("ring", "complete"):
                makers[f"decent-dp {topology}"] = lambda *a, topology=topology: DecentDP(*a, topology)
        for algorithm in sorted(ALGORITHMS):
            makers[f"grsgd {algorithm}"] = lambda *a, algorithm=algorithm: Ours(*a, algorithm)
        rows, losses, notes = compare(mpi, size, makers, mlp, widths, quick)
        notes += ["gloo: not in this torch"] * (not gloo) + ["decent-dp: not installed"] * (not decent)
        exact = [losses[name] for name in EXACT if name in losses]
        difference = (max(exact) - min(exact)) / min(exact)
        verdict = "agree" if difference < 1e-4 else "DIFFER"
        notes.append(f"final loss: the methods with exact averages {verdict} (relative difference {difference:.0e})")
        title = f"Training a {size} MLP on {mpi.size} ranks, batch {BATCH} per rank, median (min-max)"
        headers = ["", "steps/s", f"speed / {BAR}", "speed / decent-dp ring", "final loss"]
        report(mpi, title, headers, rows, notes)


def compare(mpi, size, makers, build, widths, quick):
    """Rows of the table, final losses by name, notes."""
    steps, turns = (10, 1) if quick else STEPS_ROUNDS[size]
    batches, notes, contenders = make_batches(mpi.rank), [], {}
    for name, make in makers.items():
        progress(mpi, f"training: {size}, set up {name}")
        try:
            contenders[name] = make(mpi, build(widths))
        except ValueError as error:  # an algorithm that needs options, or other numbers of ranks
            notes.append(f"{name}: not run: {str(error).splitlines()[0]}")
    rounds = {name: rounds_of(contender, batches, steps) for name, contender in contenders.items()}
    for call in rounds.values():
        call()  # the first round is slower
    progress(mpi, f"training: {size}, {turns} rounds of {steps} steps")
    seconds = take_turns(mpi, rounds, turns)
    losses = {}
    for name, contender in contenders.items():
        contender.finish()
        losses[name] = mpi.allreduce(mean_loss(contender.model, batches)) / mpi.size
    reference = seconds.get("decent-dp ring")
    rows = [
        [
            name,
            spread(steps / taken, ".1f"),
            spread(seconds[BAR] / taken),
            spread(reference / taken) if reference is not None else "not installed",
            f"{losses[name]:.6f}",
        ]
        for name, taken in seconds.items()
    ]
    return rows, losses, notes


def make_batches(rank: int, count: int = 16) -> list:
    """Noise with labels by a linear teacher that all ranks share."""
    teacher = torch.randn(784, 10, generator=torch.Generator().manual_seed(1))
    noise = torch.Generator().manual_seed(2 + rank)
    inputs = [torch.randn(BATCH, 784, generator=noise) for _ in range(count)]
    return [(x, (x @ teacher).argmax(1)) for x in inputs]


def rounds_of(contender, batches, steps: int):
    """A call that takes the next ``steps`` steps."""
    position = 0

    def take_steps():
        nonlocal position
        for _ in range(steps):
            contender.step(*batches[position % len(batches)])
            position += 1

    return take_steps


@torch.no_grad()
def mean_loss(model, batches) -> float:
    model.eval()
    return float(np.mean([cross_entropy(model(x), y).item() for x, y in batches]))


if __name__ == "__main__":
    main()
