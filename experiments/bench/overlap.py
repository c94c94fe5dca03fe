"""Benchmark of how much of an all-reduce's time is hidden behind a backward pass that runs at the same time.

share hidden = 1 - (together - backward) / all-reduce, in which "together" is the time of both at once. The share hidden
is 1 if the all-reduce costs no time, and 0 if the all-reduce might as well run after the backward pass. If ranks
outnumber free cores, only the waiting of an all-reduce can be hidden, because its additions take core time in any case.
The benchmark therefore also measures a second kind of backward pass, which pretends that another processor computes,
such as a GPU. In the second kind of backward pass, this processor only waits. The last table has whole training steps,
with and without buckets of the gradient (`experiments.bench.bucketed_steps`). The option ``--steps`` measures only
whole training steps. The benchmark runs over a link between emulated hosts by::

    grsgd testbed --hosts 2 --rate 1gbit -- -n 2 -x PYTHONPATH python -m mpi4py -m experiments.bench.overlap
"""

import sys
import time

import numpy as np
import torch
from torch import nn

from experiments.bench import bucketed_steps
from experiments.bench.side_by_side import announce, median_and_range, report, start, take_turns
from grsgd.comm.allreduce import ALLREDUCE
from grsgd.comm.backend import MpiBackend
from grsgd.comm.communicator import Communicator
from grsgd.comm.driver import MpiDriver
from grsgd.models.replica import Replica

MIB = 1 << 20
SIZES = (1, 4, 22)
VARIANTS = ("ring", "mpi")
ROUNDS = 40
LAYERS, WIDTH, BATCH = 16, 512, 32
ELSEWHERE_SECONDS = 0.3
"""Seconds of a backward pass that another processor is pretended to compute."""


class Backward:
    """A backward pass with about 16 MiB of gradients, which calls ``on_gradient()`` 32 times during the pass."""

    def __init__(self, on_gradient=None):
        torch.manual_seed(0)
        layers = [layer for _ in range(LAYERS) for layer in (nn.Linear(WIDTH, WIDTH), nn.Tanh())]
        self.replica = Replica(nn.Sequential(*layers))
        self.loss = self.replica.model(torch.randn(BATCH, WIDTH)).square().mean()
        if on_gradient is not None:
            self.replica.on_each_gradient(on_gradient)

    def __call__(self):
        self.loss.backward(retain_graph=True)


class Elsewhere:
    """A pretended backward pass on a second processor: this processor sleeps and calls ``on_gradient()`` 32 times."""

    def __init__(self, on_gradient=None):
        self.on_gradient = on_gradient or (lambda: None)

    def __call__(self):
        for _ in range(32):
            time.sleep(ELSEWHERE_SECONDS / 32)
            self.on_gradient()


PASSES = {"here": (Backward, SIZES, ROUNDS), "elsewhere": (Elsewhere, SIZES[-1:], 9)}
"""Classes of backward passes by name, each with sizes of the all-reduce's arrays in MiB and the number of rounds.

For the backward pass "elsewhere", only the largest array is measured, because its time varies by milliseconds.
"""


def main():
    mpi, quick = start()
    if "--steps" not in sys.argv:
        allreduces(mpi, quick)
    title = f"Steps of a model of 22 MiB on {mpi.size} ranks, median (min-max)"
    report(mpi, title, bucketed_steps.HEADERS, bucketed_steps.rows(mpi, quick))


def allreduces(mpi, quick: bool):
    """Measure all-reduces that run during a backward pass; their arrays are not the gradients of the backward pass."""
    rows = []
    for where, (make, sizes, rounds) in PASSES.items():
        for progress_by in ("thread", "inline"):
            driver = MpiDriver(mpi.rank, progress_mode=progress_by)
            comm = Communicator(MpiBackend(mpi.Dup()))
            backward = make(driver.poll if progress_by == "inline" else None)
            for size in sizes[: 1 if quick else None]:
                x = np.zeros(size * MIB // 4, np.float32)
                announce(mpi, f"overlap: backward {where}, {size} MiB, {progress_by}")
                contenders = {"backward": backward}
                for variant in VARIANTS:
                    contenders |= calls(driver, comm, backward, variant, x)
                take_turns(mpi, contenders, 2)
                seconds = take_turns(mpi, contenders, 2 if quick else rounds)
                for variant in VARIANTS:
                    rows.append([where, variant, progress_by, f"{size} MiB", *figures(seconds, variant)])
            driver.close()
    headers = ["backward", "all-reduce", "progress", "size"]
    headers += ["backward ms", "all-reduce ms", "together ms", "share hidden"]
    report(mpi, f"All-reduce behind a backward pass on {mpi.size} ranks, median (min-max)", headers, rows)


def calls(driver, comm, backward, variant: str, x) -> dict:
    schedule = ALLREDUCE[variant]

    def wait_for(handle):
        yield handle

    def together():
        handle = driver.start(schedule(comm, x))
        backward()
        driver.run(wait_for(handle))

    return {variant: lambda: driver.run(schedule(comm, x)), f"{variant} together": together}


def figures(seconds, variant: str) -> list[str]:
    backward, alone, together = seconds["backward"], seconds[variant], seconds[f"{variant} together"]
    share = 1 - np.median(together - backward) / np.median(alone)
    return [*(median_and_range(taken * 1e3, ".1f") for taken in (backward, alone, together)), f"{share:.2f}"]


if __name__ == "__main__":
    main()
