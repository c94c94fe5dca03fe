"""On every rank: train a little with every algorithm; ``python train_all.py DEVICE FOLDER TRANSFER...``.

Writes a run file FOLDER/TRANSFER-ALGORITHM.h5 for each, or, where a transfer cannot be used, FOLDER/TRANSFER.skipped.
"""

import sys
from pathlib import Path

from grsgd.config import load
from grsgd.errors import SetupError
from grsgd.job import launch
from grsgd.job.run import run

DEMOS = Path(__file__).parents[2] / "experiments" / "demo"
SMALL = [
    'dtype="float64"',
    'data.name="synthetic"',
    "data.samples=600",
    "data.batch_size=16",
    'model.name="mlp"',
    "train.epochs=2",
    "train.snapshots=4",
    "comm.timeout=60",
]


def small(demo: Path, device: str, transfer: str = "auto"):
    return load(demo, [*SMALL, f'device="{device}"', f'comm.transfer="{transfer}"'])


def demos() -> list[Path]:
    """All that train on images, which `SMALL` replaces."""
    return sorted(path for path in DEMOS.glob("*.toml") if path.stem not in ("base", "gpt"))


def main():
    device, folder, *transfers = sys.argv[1:]
    mpi = launch.world()
    launch.abort_on_error(mpi)
    for transfer in transfers:
        for demo in demos():
            try:
                run(mpi, small(demo, device, transfer), Path(folder) / f"{transfer}-{demo.stem}.h5")
            except SetupError as error:
                if "cannot be used here" not in str(error):
                    raise
                if mpi.rank == 0:
                    (Path(folder) / f"{transfer}.skipped").write_text(str(error))
                break


if __name__ == "__main__":
    main()
