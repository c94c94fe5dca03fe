"""The cost of a checkpoint: the same training with and without one in every hundred steps.

The time is that from the first step to the last, with what is still to be written then.
"""

import tempfile
from pathlib import Path

import numpy as np

from experiments.bench.side_by_side import announce, median_and_range, report, start, turns
from grsgd.config import parse
from grsgd.job.prepare import Keeping
from grsgd.job.run import run
from grsgd.runs.run_file import load_run
from grsgd.training.checkpoints import Every

STEPS, ROUNDS = 100, 4
HIDDEN = [4960, 4960]
"""About 25 million parameters, 100 MB; with momentum a rank keeps 200 MB."""
WITHOUT, WITH = "without", "with one"


def main():
    mpi, quick = start()
    content = {
        "algorithm": {"name": "ring_allreduce"},
        "model": {"name": "mlp", "hidden": [64] if quick else HIDDEN},
        "data": {"name": "digits", "batch_size": 32},
        "optimizer": {"lr": 0.01, "momentum": 0.9},
        "train": {"steps": STEPS, "snapshots": 1, "evaluate_replicas": False},
    }
    seconds = {WITHOUT: [], WITH: []}
    with tempfile.TemporaryDirectory() as mine:
        folder = Path(mpi.bcast(mine))
        for number, name in enumerate(turns(seconds, 1 if quick else ROUNDS)):
            announce(mpi, f"checkpoints: {name}")
            keeping = Keeping(folder / str(number), Every(steps=STEPS // 2)) if name == WITH else Keeping()
            out = folder / f"{number}.h5"
            run(mpi, parse(content), out, keeping=keeping)
            mpi.Barrier()
            attributes = load_run(out).attributes
            seconds[name].append(attributes["wall_seconds"])
        mpi.Barrier()  # nobody uses the folder any more
    pairs = np.array(seconds[WITH]) / np.array(seconds[WITHOUT])
    report(
        mpi,
        f"{STEPS} steps of {attributes['model_bytes'] / 1e6:.0f} MB on {mpi.size} ranks, median (min-max)",
        ["a checkpoint", "s", "times as long, by rounds"],
        [
            [WITHOUT, median_and_range(seconds[WITHOUT]), ""],
            [WITH, median_and_range(seconds[WITH]), median_and_range(pairs, ".3f")],
        ],
    )


if __name__ == "__main__":
    main()
