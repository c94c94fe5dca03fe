"""Benchmark of training steps per second: every algorithm of grsgd in a user's loop, and common alternatives.

The reference is a plain torch loop with one in-place Allreduce of a flat array of all gradients. All compared loops
train the same model on the same batches with the same torch optimizer and one thread per rank. All compared loops take
turns with the reference loop.
"""

from functools import partial
from time import perf_counter

import numpy as np
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import grsgd
from experiments.bench.side_by_side import announce, has, median_and_range, report, slowest, start, start_gloo, turns
from grsgd.algorithms import ALGORITHMS

MODELS = {"0.8 MiB": (784, 256, 10), "22 MiB": (784, 2048, 2048, 10)}
STEPS_ROUNDS = {"0.8 MiB": (30, 15), "22 MiB": (10, 9)}
BATCH = 64
WARM_UP = 2
BAR, SECOND_BAR = "flat Allreduce loop", "decent-dp ring"
EXACT_ONE = "ring_allreduce"
VARIANTS = ("ring", "shared", "auto")
"""Variants of ``ring_allreduce`` that are compared with the reference loop; "ring" is the algorithm's default."""
EXACT = (BAR, "gloo DDP", *(f"grsgd ring_allreduce, {variant}" for variant in VARIANTS))
"""Compared loops that apply the mean of all ranks' gradients to one model, so that their losses must agree."""


def chosen(models: dict, quick: bool):
    """Return the pairs of name and value in ``models``, or only the first pair in a quick run."""
    return list(models.items())[: 1 if quick else None]


def mlp(widths) -> nn.Module:
    torch.manual_seed(0)
    layers = []
    for inputs, outputs in zip(widths, widths[1:], strict=False):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def sgd(parameters):
    return torch.optim.SGD(parameters, lr=0.02, momentum=0.9)


class FlatLoop:
    """The reference loop: a plain torch loop with one in-place Allreduce of all gradients.

    The loss's gradient is scaled by 1/n (n ranks), so that the sum over ranks is a mean without extra work.
    """

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

    def begin(self):
        pass

    def finish(self):
        pass


class GlooDDP:
    """torch's DistributedDataParallel with gloo."""

    def __init__(self, mpi, model):
        self.model = nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True)
        self.optimizer = sgd(model.parameters())

    def step(self, x, y):
        self.optimizer.zero_grad()
        cross_entropy(self.model(x), y).backward()
        self.optimizer.step()

    def begin(self):
        pass

    def finish(self):
        pass


class DecentDP:
    """The loop of decent-dp with its DecentralizedDataParallel, whose optimizer steps inside the backward pass."""

    def __init__(self, mpi, model, topology: str):
        from decent_dp.ddp import DecentralizedDataParallel
        from loguru import logger

        logger.disable("decent_dp")
        self.model = DecentralizedDataParallel(
            model, lambda named: sgd([p for _, p in named]), topology=topology, _local_world_size=mpi.size
        )

    def step(self, x, y):
        cross_entropy(self.model(x), y).backward()

    def begin(self):
        pass

    def finish(self):
        self.model.global_avg(will_revert=False)


class Ours:
    """A loop like a user's, with an algorithm of grsgd through ``grsgd.distribute``."""

    def __init__(self, mpi, model, algorithm: str, **options):
        self.mpi, self.model, self.algorithm, self.sgd = mpi, model, algorithm, sgd(model.parameters())
        self.options = options
        self.begin()
        self.finish()

    def begin(self):
        self.optimizer = grsgd.distribute(self.model, self.sgd, self.algorithm, self.mpi, **self.options)

    def step(self, x, y):
        self.optimizer.zero_grad()
        cross_entropy(self.model(x), y).backward()
        self.optimizer.step()

    def finish(self):
        self.optimizer.finish()


def main():
    mpi, quick = start()
    gloo, decent = start_gloo(mpi), has("decent_dp")
    for size, widths in chosen(MODELS, quick):
        others = {"gloo DDP": GlooDDP} if gloo else {}
        if gloo and decent:
            for topology in ("ring", "complete"):
                others[f"decent-dp {topology}"] = partial(DecentDP, topology=topology)
        bars = {BAR: FlatLoop} | {name: others[name] for name in (SECOND_BAR,) if name in others}
        # An algorithm's background work would slow other algorithms, so each algorithm is timed only with the
        # reference loops.
        groups = [{BAR: FlatLoop} | others]
        allreduce = {f"grsgd {EXACT_ONE}, {v}": partial(Ours, algorithm=EXACT_ONE, variant=v) for v in VARIANTS}
        groups += [{BAR: FlatLoop} | allreduce]
        makers = {f"grsgd {name}": maker_of(name) for name in sorted(ALGORITHMS) if name != EXACT_ONE}
        groups += [bars | {name: maker} for name, maker in makers.items() if maker]
        rows, losses, notes = compare(mpi, size, groups, widths, quick)
        notes += [f"{name}: not run: chooses the batches of each rank" for name, maker in makers.items() if not maker]
        notes += ["gloo: not in this torch"] * (not gloo) + ["decent-dp: not installed"] * (not decent)
        exact = [losses[name] for name in EXACT if name in losses]
        difference = (max(exact) - min(exact)) / min(exact)
        verdict = "agree" if difference < 1e-4 else "DIFFER"
        notes.append(f"final loss: the methods with exact averages {verdict} (relative difference {difference:.0e})")
        title = f"Training a {size} MLP on {mpi.size} ranks, batch {BATCH} per rank, median (min-max)"
        headers = ["", "steps/s", f"speed / {BAR}", f"speed / {SECOND_BAR}", "final loss"]
        report(mpi, title, headers, rows, notes)


def maker_of(name: str) -> partial | None:
    """Return a function that makes the loop of the algorithm ``name``, in which every rank trains on its own batches.

    Returns None if the algorithm itself decides which rank computes on which batch.
    """
    algorithm = ALGORITHMS[name]
    if not algorithm.traits.decides_who_computes:
        return partial(Ours, algorithm=name)
    return partial(Ours, algorithm=name, server="shared") if "server" in algorithm.Options.model_fields else None


def compare(mpi, size, groups, widths, quick):
    """Time the loops of each group in turn; return the rows of the table, each loop's final loss by name, and notes."""
    steps, rounds = (10, 1) if quick else STEPS_ROUNDS[size]
    batches, rows, losses, notes = make_batches(mpi.rank), [], {}, []
    for makers in groups:
        *_, last = makers
        announce(mpi, f"training: {size}, {rounds} rounds of {steps} steps, {last}")
        try:
            contenders = {name: make(mpi, mlp(widths)) for name, make in makers.items()}
        except ValueError as error:  # the algorithm needs options, or a different number of ranks
            notes.append(f"{last}: not run: {str(error).splitlines()[0]}")
            continue
        take_steps(contenders.values(), batches, steps)  # warm up, because the first steps of a loop are slower
        seconds = timed(mpi, contenders, batches, steps, rounds)
        for name, contender in contenders.items():
            if name in losses:
                continue
            losses[name] = mpi.allreduce(mean_loss(contender.model, batches)) / mpi.size
            taken, second = seconds[name], seconds.get(SECOND_BAR)
            ratios = [median_and_range(bar / taken) if bar is not None else "" for bar in (seconds[BAR], second)]
            rows.append([name, median_and_range(steps / taken, ".1f"), *ratios, f"{losses[name]:.6f}"])
    return rows, losses, notes


def make_batches(rank: int, count: int = 16) -> list:
    """Return batches of random inputs, which a linear model labels; all ranks use the same linear model."""
    teacher = torch.randn(784, 10, generator=torch.Generator().manual_seed(1))
    noise = torch.Generator().manual_seed(2 + rank)
    inputs = [torch.randn(BATCH, 784, generator=noise) for _ in range(count)]
    return [(x, (x @ teacher).argmax(1)) for x in inputs]


def take_steps(contenders, batches, steps: int):
    for contender in contenders:
        contender.begin()
        for step in range(steps):
            contender.step(*batches[step % len(batches)])
        contender.finish()


def timed(mpi, contenders, batches, steps: int, rounds: int):
    """Return the seconds that ``steps`` steps of each loop take in each round, by name of the loop.

    Each loop starts and finishes its algorithm within its turn, so that it does no background work while other loops
    are timed. The first steps of each turn, which allocate memory, are not timed.
    """
    seconds = {name: [] for name in contenders}
    for name in turns(contenders, rounds):
        contender = contenders[name]
        contender.begin()
        for x, y in batches[:WARM_UP]:
            contender.step(x, y)
        mpi.Barrier()
        begin = perf_counter()
        for step in range(steps):
            contender.step(*batches[step % len(batches)])
        seconds[name].append(perf_counter() - begin)
        contender.finish()
    return slowest(mpi, seconds)


@torch.no_grad()
def mean_loss(model, batches) -> float:
    model.eval()
    return float(np.mean([cross_entropy(model(x), y).item() for x, y in batches]))


if __name__ == "__main__":
    main()
