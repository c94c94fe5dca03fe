"""Benchmark of the time that grsgd's training loop adds to a step of a plain torch loop, on one rank, by algorithm."""

import itertools
from dataclasses import replace

import torch
from torch.nn.functional import cross_entropy

from experiments.bench.side_by_side import announce, complete, device, median_and_range, report, start, take_turns
from grsgd import config
from grsgd.algorithms import ALGORITHMS
from grsgd.algorithms.context import RankContext
from grsgd.comm.backend import MpiBackend
from grsgd.comm.communicator import Communicator
from grsgd.comm.driver import MpiDriver
from grsgd.comm.stop_signal import StopSignal
from grsgd.models import zoo as models
from grsgd.training.inputs import build_model, load_data
from grsgd.training.trainer import Trainer

CLASSES = 10
CASES = {
    "cpu": (("dnn", 16, (1, 28, 28)), ("dnn", 64, (1, 28, 28)), ("cnn", 16, (1, 28, 28)), ("cnn", 64, (1, 28, 28))),
    "cuda": (("resnet18", 64, (3, 32, 32)), ("resnet18", 64, (3, 224, 224))),
}
"""Models, each with its batch size and the shape of an image, by device of torch."""
BLOCK = 5
"""Number of steps that a loop takes in a row, before the next loop takes its steps."""
SECONDS = 10
"""Approximate seconds of the measurement of one model with one batch size."""


def main():
    mpi, quick = start()
    on, rows = device(), []
    for model, batch_size, shape in CASES[on.type]:
        case = f"{model}, batch {batch_size} x {' x '.join(map(str, shape))}"
        announce(mpi, f"overhead: {case}")
        batches = [(torch.randn(batch_size, *shape), torch.randint(CLASSES, (batch_size,))) for _ in range(16)]
        contenders = {"bare": complete(bare_loop(model, shape, batches, on), on)}
        for algorithm in sorted(ALGORITHMS):
            try:
                contenders[algorithm] = complete(our_loop(mpi, algorithm, model, shape, batches, on), on)
            except ValueError:  # the algorithm needs options, or at least two ranks
                announce(mpi, f"overhead: {algorithm} does not run on one rank with default options")
        once = sum(sum(taken) for taken in take_turns(mpi, contenders, 2).values()) / 2
        seconds = take_turns(mpi, contenders, 2 if quick else max(15, int(SECONDS / once)))
        bare = seconds.pop("bare")
        for algorithm, taken in seconds.items():
            rows.append([case, algorithm, median_and_range(bare / BLOCK * 1e3), median_and_range(taken / bare, ".3f")])
    headers = ["case", "algorithm", "bare ms", "our step / bare step"]
    report(mpi, "A step on one rank, median (min-max)", headers, rows)


def bare_loop(model: str, shape, batches, on: torch.device):
    """Return a function that takes `BLOCK` steps of a plain torch loop."""
    torch.manual_seed(0)
    model = models.build(model, shape, CLASSES).to(on)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    batches = itertools.cycle(batches)

    def block():
        for _ in range(BLOCK):
            x, y = next(batches)
            optimizer.zero_grad()
            loss = cross_entropy(model(x.to(on)), y.to(on))
            loss.backward()
            optimizer.step()

    return block


class Repeated:
    """Training data that repeat the same few batches without end."""

    def __init__(self, batches):
        self.repeated = batches
        self.labels = torch.cat([labels for _, labels in batches]).numpy()

    def __len__(self):
        return len(self.labels)

    def batches(self, *_, **__):
        return itertools.cycle(self.repeated)


def our_loop(mpi, algorithm: str, model: str, shape, batches, on: torch.device):
    """Return a function that takes `BLOCK` steps with grsgd's ``Trainer``, including all work of its loop."""
    settings = {
        "algorithm": {"name": algorithm},
        "model": {"name": model},
        "data": {"name": "synthetic", "shape": list(shape), "samples": 100, "batch_size": len(batches[0][1])},
        "optimizer": {"lr": 0.01, "momentum": 0.9},
        "train": {"steps": 10**6},
    }
    driver, stop_signal = MpiDriver(), StopSignal(Communicator(MpiBackend(mpi.Dup())))
    context = RankContext(Communicator(MpiBackend(mpi.Dup())), Communicator(MpiBackend(mpi.Dup())), driver, stop_signal)
    chosen = config.parse(settings)
    chosen.check_ranks(mpi.size)
    dataset = replace(load_data(chosen), train=Repeated(batches))
    trainer = Trainer(chosen, dataset, build_model(chosen, dataset, on), context)
    driver.run(trainer.algorithm.start())
    trainer.progress.start()
    driver.run(trainer.begin())
    count = itertools.count()

    def block():
        for _ in range(BLOCK):
            yield from trainer.progress.decide()
            yield from trainer.step(next(count))
            trainer.totals.steps += 1
            trainer.progress.advance(len(batches[0][1]))
            stop_signal.watch()

    driver.watch = stop_signal.watch
    return lambda: driver.run(block())


if __name__ == "__main__":
    main()
