"""Simulations spread over the nodes of a Slurm allocation: each makes a share of them, on all of its cores.

``python -m experiments.tables.on_nodes LIST`` is what runs on every node.
"""

import os
import pickle
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from experiments.cache import make_in_parallel
from experiments.tables.run_spec import RunSpec
from experiments.tables.store import Store

POLL_SECONDS = 1.0


def make_on_nodes(make: Callable, specs: Iterable[RunSpec], store: Store, workers: int) -> Iterator[RunSpec]:
    """Call ``make(spec, store)`` for all runs on the nodes of the allocation, in so many processes on each; yields the
    runs as they are done. What cannot be made leaves a file ``.error`` in place of its run."""
    left = list(specs)
    if not left:
        return
    done = {spec: (store.path(spec), store.path(spec).with_suffix(".error")) for spec in left}
    for _, error in done.values():
        error.unlink(missing_ok=True)
    nodes = str(store.hosts.nodes)
    list_file = store.folder / f"on-nodes-{os.getpid()}.pickle"  # which all nodes see
    list_file.write_bytes(pickle.dumps((make, left, store, workers)))
    command = ["srun", "--nodes", nodes, "--ntasks", nodes, "--ntasks-per-node=1", "--cpu-bind=none", "--mpi=none"]
    job = subprocess.Popen([*command, sys.executable, "-m", "experiments.tables.on_nodes", str(list_file)])
    try:
        while left:
            has_ended = job.poll() is not None
            finished = [spec for spec in left if any(file.exists() for file in done[spec])]
            yield from finished
            left = [spec for spec in left if spec not in finished]
            if has_ended:
                return
            time.sleep(POLL_SECONDS)
    finally:
        job.terminate()
        job.wait()
        list_file.unlink(missing_ok=True)


def share(specs: list[RunSpec], node: int, nodes: int) -> list[RunSpec]:
    """Return the runs of one node: long ones come first, so each has some of them."""
    return specs[node::nodes]


def main():
    make, specs, store, workers = pickle.loads(Path(sys.argv[1]).read_bytes())
    own = share(specs, int(os.environ["SLURM_PROCID"]), int(os.environ["SLURM_NTASKS"]))
    for _ in make_in_parallel(make, own, store, workers):
        pass


if __name__ == "__main__":
    main()
