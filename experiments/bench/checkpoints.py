"""The cost of a checkpoint every hundred steps, in a training with a model of 100 MB.

Steps are timed one by one. If the time of a hundred steps varies by more than a checkpoint costs, the steps in which a
checkpoint is taken and written still differ from their neighbours. The cost is the sum of their excess over the median
of the steps without a checkpoint, as a share of a hundred median steps. For comparison, the same sum is taken over the
same number of steps without a checkpoint: it should be near zero.
"""

import tempfile
from pathlib import Path
from time import perf_counter
from typing import ClassVar

import numpy as np

from experiments.bench.side_by_side import announce, median_and_range, report, slowest, start
from grsgd.algorithms.ring_allreduce import RingAllreduce
from grsgd.config import parse
from grsgd.job.keeping import Keeping
from grsgd.job.run import run
from grsgd.training.checkpoints import Every

EVERY, CHECKPOINTS = 100, 6
"""Number of steps between two checkpoints, and number of checkpoints."""
BESIDE = 40
"""Number of steps during which a checkpoint may be written: 10 s, if writing 400 MB takes some seconds."""
HIDDEN = [4960, 4960]
"""Widths of the model's layers: about 25 million parameters, 100 MB; with momentum a rank keeps 200 MB."""


class Timed(RingAllreduce, name="timed"):
    """An all-reduce algorithm that notes the time at which each step has ended."""

    ends: ClassVar[list[float]] = []

    def step(self):
        yield from super().step()
        self.ends.append(perf_counter())


def main():
    mpi, quick = start()
    every, beside = (4, 2) if quick else (EVERY, BESIDE)
    content = {
        "algorithm": {"name": Timed.name},
        "model": {"name": "mlp", "hidden": [64] if quick else HIDDEN},
        "data": {"name": "digits", "batch_size": 32},
        "optimizer": {"lr": 0.01, "momentum": 0.9},
        "train": {"steps": every * (CHECKPOINTS + 1), "snapshots": 1, "evaluate_replicas": False},
    }
    announce(mpi, f"checkpoints: {every * (CHECKPOINTS + 1)} steps")
    with tempfile.TemporaryDirectory() as mine:
        folder = Path(mpi.bcast(mine))
        run(mpi, parse(content), folder / "run.h5", keeping=Keeping(folder / "kept", Every(steps=every)))
        mpi.Barrier()  # after this barrier no rank uses the folder any more
    steps = slowest(mpi, {"steps": list(np.diff(Timed.ends))})["steps"]
    # The checkpoint after step k is taken before step k + 1, which is number k of these differences.
    taken = [every * number - 1 for number in range(1, CHECKPOINTS + 1)]
    beside_one = np.zeros(steps.size, bool)
    for first in taken:
        beside_one[first : first + beside] = True
    usual = np.median(steps[~beside_one])
    excess = (steps - usual) / (every * usual)
    report(
        mpi,
        f"A checkpoint in every {every} steps, on {mpi.size} ranks; a step takes {usual * 1e3:.0f} ms",
        [f"{beside} steps", "cost, as a share of the training: mean", "median (min-max)"],
        [
            row("from a checkpoint on", [excess[first : first + beside].sum() for first in taken]),
            row("before the next one", [excess[first + every - beside : first + every].sum() for first in taken]),
        ],
    )


def row(name: str, shares: list[float]) -> list:
    return [name, f"{100 * np.mean(shares):.1f} %", f"{median_and_range(100 * np.array(shares), '.1f')} %"]


if __name__ == "__main__":
    main()
