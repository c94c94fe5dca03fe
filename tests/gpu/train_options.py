"""On every rank: train with each compression, and with an outer state in host memory, end and go on from a checkpoint,
let a run choose its options, and ask for what GPUs do not have; ``python train_options.py DEVICE FOLDER``.

Writes a run file FOLDER/DEVICE-NAME.h5 for each, three for one that ends and goes on, or, where it is refused,
FOLDER/NAME.refused.
"""

import sys
from pathlib import Path

from grsgd.comm.compression.compressors import COMPRESSORS
from grsgd.config import load
from grsgd.errors import SetupError
from grsgd.job import launch
from grsgd.job.keeping import Keeping
from grsgd.job.run import run
from grsgd.training.checkpoints import Every
from grsgd.training.saving import ModelFiles
from tests.gpu.train_all import DEMOS, SMALL
from tests.support.ending import Ending

COMPRESSED = {f"compressed by {name}": ("ring_allreduce", {"compression": name}) for name in COMPRESSORS} | {
    "compressed by power-sgd": ("ring_allreduce", {"compression": "power-sgd", "matrix_rank": 2})
}
HOST = {"outer_state": "host"}
IN_HOST_MEMORY = {
    "outer state of diloco": ("diloco", {"H": 4} | HOST),
    "outer state of choco_sgd": ("choco_sgd", HOST),
    "outer state of exact_diffusion": ("exact_diffusion", HOST),
    "outer state of gradient_tracking": ("gradient_tracking", HOST),
    "errors of top-k": ("ring_allreduce", {"compression": "top-k"} | HOST),
}
RESUMED = {
    "all-reduce": ("ring_allreduce", {}),
    "compressed": ("ring_allreduce", {"compression": "int8"}),
    "gossip": ("dpsgd", {}),
    "gradient tracking": ("gradient_tracking", {}),
    "local steps": ("diloco", {"H": 4}),
    "coded": ("cssgd", {"r": 1}),
    "asynchronous gossip": ("grsgd", {}),
    "server": ("asgd", {}),
}
CHOSEN = {
    "the fastest all-reduce": ("ring_allreduce", {"variant": "auto"}),
    "redundancy and transport": ("cssgd", {"r": "auto", "transport": "auto"}),
}
REFUSED = {
    "shared memory": ("ring_allreduce", {"variant": "shared"}),
    "shared memory within hosts": ("ring_allreduce", {"variant": "hierarchical"}),
    "buckets": ("ring_allreduce", {"buckets": 3}),
    "datagrams": ("ssgd", {"transport": "ip-multicast", "rate": "1gbit"}),
}
EVERY, ENDED_AT = Every(steps=4), 6
"""When checkpoints are written, and after which of its steps rank 0 asks the run to end."""


def config_of(demo: str, options: dict, device: str):
    """The small run of a demonstration with these options of its algorithm."""
    words = [f"algorithm.{name}={value!r}".replace("'", '"') for name, value in options.items()]
    transfer = "auto" if "auto" in options.values() else "staged"  # trying all takes some seconds
    return load(DEMOS / f"{demo}.toml", [*SMALL, f'device="{device}"', f'comm.transfer="{transfer}"', *words])


def main():
    device, folder = sys.argv[1], Path(sys.argv[2])
    mpi = launch.world()
    launch.abort_on_error(mpi)

    def train(name: str, algorithm: tuple[str, dict], ended_at: int | None = None, **options):
        if mpi.rank == 0:
            print(name, flush=True)  # for whoever looks where it has failed
        line = Ending(ended_at) if ended_at and mpi.rank == 0 else None
        models = ModelFiles(str(folder / f"{device}-{name}.pt"), None)
        run(mpi, config_of(*algorithm, device), folder / f"{device}-{name}.h5", line=line, models=models, **options)
        mpi.Barrier()

    for name, algorithm in (COMPRESSED | IN_HOST_MEMORY | CHOSEN).items():
        train(name, algorithm)
    for name, algorithm in RESUMED.items():
        kept = folder / f"{device} {name}"
        train(name, algorithm)
        train(f"{name}, ended", algorithm, ENDED_AT, keeping=Keeping(kept, EVERY))
        train(f"{name}, resumed", algorithm, keeping=Keeping(kept, EVERY, kept))
    for name, algorithm in REFUSED.items():
        try:
            train(name, algorithm)
        except SetupError as error:
            if mpi.rank == 0:
                (folder / f"{name}.refused").write_text(str(error))


if __name__ == "__main__":
    main()
