"""Benchmark of the cost of a checkpoint in every hundred steps of a training with a model of 100 MB.

The benchmark divides the training into blocks of steps. A checkpoint is taken before every second block, and written
during the block. The checkpoint's cost is the time of the block during which it is written, minus the mean time of the
block before and the block after. The mean of the two blocks cancels slow changes of the machine's speed. As a control,
the same difference is computed for blocks without a checkpoint, where it should be near zero.
"""

import tempfile
from pathlib import Path
from time import perf_counter
from typing import ClassVar

import numpy as np

from experiments.bench.side_by_side import announce, median_and_range, report, slowest, start
from grsgd.algorithms.ring_allreduce import RingAllreduce
from grsgd.config import parse
from grsgd.job import prepare
from grsgd.job.keeping import Keeping
from grsgd.job.run import run
from grsgd.runs.spread import half_interval
from grsgd.training.checkpoints import Every

EVERY = 100
"""Number of steps from one checkpoint to the next in the training for which the benchmark states the cost."""
BLOCK, CHECKPOINTS = 20, 8
"""Number of steps in a block of the training, and number of checkpoints.

A block of steps takes 5 s, and writing a checkpoint of 400 MB takes 1 s to 3 s.
"""
HIDDEN = [4960, 4960]
"""Widths of the model's layers, which have 25 million parameters (100 MB).

With momentum, a rank keeps 200 MB for the parameters and their momentum.
"""


class Timed(RingAllreduce, name="timed"):
    """A ring all-reduce that records the time at which each training step has ended."""

    ends: ClassVar[list[float]] = []

    def step(self):
        yield from super().step()
        self.ends.append(perf_counter())


def main():
    mpi, quick = start()
    block = 2 if quick else BLOCK
    steps = 2 * block * (CHECKPOINTS + 1)
    content = {
        "algorithm": {"name": Timed.name},
        "model": {"name": "mlp", "hidden": [64] if quick else HIDDEN},
        "data": {"name": "digits", "batch_size": 32},
        "optimizer": {"lr": 0.01, "momentum": 0.9},
        "train": {"steps": steps, "snapshots": 1, "evaluate_replicas": False},
    }
    prepare.EARLY_MARKS = 0  # New snapshots, which are rare in long trainings, would make checkpoints larger.
    announce(mpi, f"checkpoints: {steps} steps")
    with tempfile.TemporaryDirectory() as mine:
        folder = Path(mpi.bcast(mine))
        run(mpi, parse(content), folder / "run.h5", keeping=Keeping(folder / "kept", Every(steps=2 * block)))
        mpi.Barrier()  # after this barrier no rank uses the temporary folder any more
    seconds = slowest(mpi, {"steps": list(np.diff(Timed.ends))})["steps"]
    # The checkpoint after step k is taken before step k + 1; the seconds of step k + 1 are at index k of ``seconds``.
    blocks = seconds[block - 1 : block - 1 + block * (2 * CHECKPOINTS + 1)].reshape(-1, block).sum(1)
    usual = np.median(blocks[::2])
    beside = (blocks[:-2] + blocks[2:]) / 2
    alone = blocks[::2]
    report(
        mpi,
        f"A checkpoint in every {EVERY} steps, on {mpi.size} ranks; a step takes {usual / block * 1e3:.0f} ms",
        ["blocks", "cost, as a share of the training: mean, 95 % interval", "median (min-max)"],
        [
            row("with a checkpoint", (blocks[1:-1] - beside)[::2] * block / (EVERY * usual)),
            row("without", (alone[1:-1] - (alone[:-2] + alone[2:]) / 2) * block / (EVERY * usual)),
        ],
    )


def row(name: str, shares: np.ndarray) -> list:
    shares = 100 * shares
    return [
        name,
        f"{shares.mean():.2f} +- {half_interval(shares):.2f} %",
        f"{median_and_range(shares, '.1f')} %",
    ]


if __name__ == "__main__":
    main()
