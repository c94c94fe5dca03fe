"""Spreads simulated runs over the nodes of a Slurm allocation; each node makes some runs, on all its cores.

Every node runs ``python -m experiments.runner.on_nodes LIST SHA256``, in which LIST is a file with all runs.
"""

import hashlib
import os
import pickle
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from experiments.runner.parallel import make_in_parallel
from experiments.runner.run_spec import RunSpec
from experiments.runner.store import Store

POLL_SECONDS = 1.0
"""Seconds from one check which runs have finished to the next check."""


def make_on_nodes(make: Callable, specs: Iterable[RunSpec], store: Store, workers: int) -> Iterator[RunSpec]:
    """Call ``make(spec, store)`` for all runs on the nodes of the Slurm allocation.

    Each node uses ``workers`` processes. Yields each run when it is done. A run that cannot be made leaves a file with
    the ending ``.error`` in place of its run file.
    """
    left = list(specs)
    if not left:
        return
    done = {spec: (store.path(spec), store.path(spec).with_suffix(".error")) for spec in left}
    for _, error in done.values():
        error.unlink(missing_ok=True)
    nodes = str(store.hosts.nodes)
    content = pickle.dumps((make, left, store, workers))
    descriptor, list_file = tempfile.mkstemp(".pickle", "on-nodes-", store.folder)  # a folder that all nodes see
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
    digest = hashlib.sha256(content).hexdigest()
    command = ["srun", "--nodes", nodes, "--ntasks", nodes, "--ntasks-per-node=1", "--cpu-bind=none", "--mpi=none"]
    job = subprocess.Popen([*command, sys.executable, "-m", "experiments.runner.on_nodes", list_file, digest])
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
        Path(list_file).unlink(missing_ok=True)


def take_share(specs: list[RunSpec], node: int, nodes: int) -> list[RunSpec]:
    """Return the runs that the node with the number ``node`` makes.

    The list ``specs`` has long runs first, so each node gets some long runs.
    """
    return specs[node::nodes]


def load_list(list_file: Path, digest: str) -> tuple:
    """Return the content of a file that `make_on_nodes` has pickled.

    Raises ValueError before anything is unpickled if the SHA-256 of the file is not ``digest``.
    """
    content = list_file.read_bytes()
    if hashlib.sha256(content).hexdigest() != digest:
        raise ValueError(f"{list_file}: its SHA-256 differs: another program has written it")
    return pickle.loads(content)


def main():
    make, specs, store, workers = load_list(Path(sys.argv[1]), sys.argv[2])
    own = take_share(specs, int(os.environ["SLURM_PROCID"]), int(os.environ["SLURM_NTASKS"]))
    for _ in make_in_parallel(make, own, store, workers):
        pass


if __name__ == "__main__":
    main()
