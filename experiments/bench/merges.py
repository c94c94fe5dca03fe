"""Benchmark of merges of two models against a copy of a model on a GPU, in bytes read and written per second."""

import numpy as np
import torch

from experiments.bench.side_by_side import announce, complete, device, median_and_range, report, start, take_turns
from grsgd.models.mixing import add_difference, mix

MIB = 1 << 20
SIZE = 512
"""Size of each merged model in MiB."""
ROUNDS = 30


def main():
    mpi, quick = start()
    on = device()
    announce(mpi, "merges")
    x, y, z, s = (torch.randn((1 if quick else SIZE) * MIB // 4, device=on) for _ in range(4))
    contenders = {
        "copy": (lambda: s.copy_(x), 2),
        "weighted average of two": (lambda: x.lerp_(y, 0.25), 3),
        "mix of three": (lambda: mix(x, 0.5, [(0.25, y), (0.25, z)]), 4),
        "x + (y - s)/2": (lambda: add_difference(x, y, s, 0.5), 4),
    }
    calls = {name: complete(call, on) for name, (call, _) in contenders.items()}
    take_turns(mpi, calls, 2)
    seconds = take_turns(mpi, calls, 2 if quick else ROUNDS)
    rate = {name: contenders[name][1] * x.nbytes / taken / 1e9 for name, taken in seconds.items()}
    rows = [
        [name, contenders[name][1], median_and_range(found, ".0f"), f"{np.median(found) / np.median(rate['copy']):.0%}"]
        for name, found in rate.items()
    ]
    report(mpi, "Merges, median (min-max)", ["", "models read and written", "GB/s", "of the copy"], rows)


if __name__ == "__main__":
    main()
