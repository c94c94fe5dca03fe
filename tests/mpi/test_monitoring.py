"""The bytes in the run file, against those that Open MPI has seen: its component pml/monitoring counts every message
between two ranks, below everything that is ours and whoever sends it.

The tests start this very module as a program on several ranks, which trains with one algorithm after the other and
reads Open MPI's counters (MPI_T performance variables) at the beginning and at the end of every training.
"""

import ctypes
import functools
import sys
from pathlib import Path

import numpy as np
import pytest

import grsgd.job.prepare
import grsgd.job.run
from grsgd import config, load_run
from grsgd.algorithms import ALGORITHMS
from grsgd.algorithms.common_batch import CommonBatchAlgorithm
from grsgd.training.trainer import Trainer
from tests.support.launcher import mpiexec

ENVIRONMENT = {"OMPI_MCA_pml_monitoring_enable": "1"}
"""1: messages of our own and those that the library's collectives are made of count alike."""
VARIABLES = {
    "bytes": b"pml_monitoring_messages_size",
    "messages": b"pml_monitoring_messages_count",
    "collective": b"coll_monitoring_messages_size",
}
"""Open MPI's counters, one value for each receiver. ``collective``: what its collectives were asked to bring there."""
UNAVAILABLE = "Open MPI has no monitoring component"

ADAPTIVE = {"adaptive": True, "metric": "layerwise", "max_interval": 5}
"""``max_interval``: a training of twelve steps has exchanges for certain."""
CASES = {
    "ring_allreduce": [
        {},
        {"variant": "halving-doubling"},
        {"variant": "tree"},
        {"variant": "swing"},
        {"variant": "bine"},
        {"buckets": 2},
    ],
    "local_sgd": [{"H": 3}, {"post_local": 2, "beta": 0.7}],
    "noloco": [{"H": 3}],
    "choco_sgd": [{}],
    "decoupled": [{"H": 3}],
    "diloco": [{"H": 3}, {"H": 4, "fragments": 2, "delay": 1}, {"H": 3, "compression": "int4"}],
    "dpsgd": [{}, {"topology": "full"}, {"period": 2}],
    "exact_diffusion": [{}],
    "gradient_tracking": [{}, {"topology": "one-peer-exponential"}],
    "relaysgd": [{}, {"tree": "binary"}],
    "sgp": [{}, {"tau": 2}],
    "grsgd": [
        {"policy": "successor"},
        {"policy": "random"},
        {"merge": "average", "inbox_full": "merge"},
        {"compression": "int8"},
    ],
    "gosgd": [{"p": 0.5}],
    "adpsgd": [{}, {"topology": "full", "merge": "delta"}],
    "gossip": [{"mode": "pair"}, {"mode": "push"}, {"mode": "pull"}, ADAPTIVE],
    "easgd": [{"period": 2}, {"period": 2, "centre": "allreduce"}, ADAPTIVE],
    "lasgd": [{}, {"variant": "halving-doubling"}, {"merge": "cocod", "Hmin": 2}],
    "cssgd": [
        {"transport": "unicast"},
        {"transport": "unicast", "scheme": "uncoded"},
        {"transport": "unicast", "scheme": "grouped-rs"},
        {"scheme": "tolerant"},
    ],
    "ssgd": [{"transport": "unicast"}, {"transport": "unicast", "accounting": "per-block", "r": 2}],
    "parameter_server": [{"strategy": name} for name in ("bsp", "ssp", "adsp")]
    + [{"servers": 2}, {"server": "shared"}, {"on_lost_worker": "evict"}],
    "asgd": [{}, {"compression": "top-k"}],
}
"""Algorithms, each with options, that send every message themselves."""
MULTICASTS = {
    "cssgd": [{}, {"scheme": "uncoded"}, {"scheme": "grouped-direct"}, {"scheme": "grouped-rs"}],
    "ssgd": [{}, {"accounting": "per-block", "r": 2}],
}
ALLREDUCES = {name: [{"variant": "mpi"}] for name in ("ring_allreduce", "local_sgd", "lasgd")}

RANKS = {4: ALGORITHMS.keys(), 5: {"ring_allreduce", "sgp", "cssgd", "ssgd"}}
"""By number of ranks, the algorithms: on 5 those that treat ranks unequally where that is no power of two."""


def listed(cases: dict[str, list]) -> list[tuple[str, dict, int]]:
    return [
        (name, options, ranks)
        for ranks, names in RANKS.items()
        for name, choices in cases.items()
        for options in choices
        if name in names
    ]


def called(name: str, options: dict, ranks: int) -> str:
    return ",".join([name, *(f"{key}={value}" for key, value in options.items()), f"{ranks} ranks"])


# ---- the program


class Counters:
    """Open MPI's counters of this rank; mpi4py does not offer MPI_T, but its library is linked with what does."""

    def __init__(self, mpi):
        from mpi4py import MPI

        self.library = ctypes.CDLL(MPI.__file__)
        self.session, self.size = ctypes.c_void_p(), mpi.size
        self.call("init_thread", MPI.THREAD_MULTIPLE, ctypes.byref(ctypes.c_int()))
        self.call("pvar_session_create", ctypes.byref(self.session))
        address = ctypes.c_void_p(MPI._addressof(mpi))
        self.handles = {key: self.start(name, address) for key, name in VARIABLES.items()}

    def start(self, name: bytes, comm):
        index, handle, count = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_int()
        class_size = 2  # MPI_T_PVAR_CLASS_SIZE in Open MPI's mpi.h
        self.call("pvar_get_index", name, class_size, ctypes.byref(index))
        self.call("pvar_handle_alloc", self.session, index, comm, ctypes.byref(handle), ctypes.byref(count))
        self.call("pvar_start", self.session, handle)
        assert count.value == self.size
        return handle

    def read(self) -> dict[str, np.ndarray]:
        values = {key: np.zeros(self.size, np.uint64) for key in self.handles}
        for key, handle in self.handles.items():
            self.call("pvar_read", self.session, handle, ctypes.c_void_p(values[key].ctypes.data))
        return {key: value.astype(np.int64) for key, value in values.items()}

    def call(self, function: str, *arguments):
        if getattr(self.library, f"MPI_T_{function}", lambda *_: -1)(*arguments) != 0:
            sys.exit(f"{UNAVAILABLE}: MPI_T_{function} failed")


class WatchedTrainer(Trainer):
    """Reads the counters before the first message of the algorithm and after the last one. What this rank has sent
    beside them meanwhile, such as reports of progress, is counted by ``uncounted``."""

    counters: Counters
    seen: dict[str, np.ndarray]

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        start, average = self.algorithm.start, self.algorithm.average

        def read():
            uncounted = self.context.uncounted_comm.traffic
            return self.counters.read() | {"uncounted": uncounted.sent + uncounted.headers}

        def begin():
            # A common batch has communicators of its own to make, which takes messages too; nothing else is sent then.
            if isinstance(self.algorithm, CommonBatchAlgorithm):
                start()
                self.before = read()
            else:
                self.before = read()
                start()

        def end():
            WatchedTrainer.seen = {key: value - self.before[key] for key, value in read().items()}
            return average()

        self.algorithm.start, self.algorithm.average = begin, end


def main(folder: Path):
    from mpi4py import MPI

    mpi = MPI.COMM_WORLD
    WatchedTrainer.counters = Counters(mpi)
    grsgd.job.prepare.Trainer = WatchedTrainer
    for name, options, ranks in listed(CASES) + listed(MULTICASTS) + listed(ALLREDUCES):
        if ranks == mpi.size:
            out = folder / called(name, options, ranks)
            train(mpi, name, options, Path(f"{out}.h5"))
            rows = mpi.gather(WatchedTrainer.seen)
            for key in rows[0] if rows else ():
                np.save(f"{out}.{key}.npy", [row[key] for row in rows])


def train(mpi, name: str, options: dict, out: Path):
    content = {
        "algorithm": {"name": name} | options,
        "model": {"name": "mlp", "hidden": [32]},
        "data": {"name": "synthetic", "samples": 200, "shape": [1, 8, 8]},
        "train": {"steps": 12, "snapshots": 1},
    }
    grsgd.job.run.run(mpi, config.parse(content), out)


# ---- the tests


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """By the number of ranks: the folder with what all cases have left, the exit code, and what was printed. One job
    for all of them: its start takes longer than they do."""

    @functools.cache
    def job(ranks: int) -> tuple[Path, int, str]:
        folder = tmp_path_factory.mktemp("monitoring")
        program = ["-m", "tests.mpi.test_monitoring", folder]
        return folder, *mpiexec("openmpi", ranks, program, timeout=300, environment=ENVIRONMENT)

    return job


def found(trained, *case):
    """The run of a case, and what Open MPI and ``uncounted`` have counted; rows send, columns receive."""
    folder, code, output = trained(case[-1])
    if unavailable := [line for line in output.splitlines() if line.startswith(UNAVAILABLE)]:
        pytest.skip(unavailable[0])
    assert code == 0, output[-5000:]
    out = folder / called(*case)
    return load_run(f"{out}.h5"), {key: np.load(f"{out}.{key}.npy") for key in (*VARIABLES, "uncounted")}


def each(cases: dict[str, list]):
    marks = {5: pytest.mark.exhaustive}
    params = [pytest.param(*case, id=called(*case), marks=marks.get(case[-1], ())) for case in listed(cases)]
    return pytest.mark.parametrize(("name", "options", "ranks"), params)


def test_no_algorithm_is_left_out():
    assert CASES.keys() == ALGORITHMS.keys()


@each(CASES)
def test_every_byte_from_rank_to_rank(name, options, ranks, trained):
    """Exact for each pair of ranks, however the messages of an asynchronous algorithm happened to go."""
    run, monitored = found(trained, name, options, ranks)
    sent, headers, messages = (run.traffic[key] for key in ("sent", "headers", "messages"))
    uncounted = monitored["uncounted"]
    assert np.array_equal(monitored["bytes"], sent + headers + uncounted)
    assert not monitored["collective"].any()
    # Beside the training there are reports of progress and the like, a few bytes each: no model travels there.
    assert sent.sum() > 0 and uncounted.max() < run.attributes["model_bytes"] / 4
    assert not (uncounted.any() and ALGORITHMS[name].traits.synchronous)
    if not (headers + uncounted).any():  # messages of bookkeeping alone are not counted one by one
        assert np.array_equal(monitored["messages"], messages)


@each(MULTICASTS)
def test_multicast_brings_every_byte_to_every_receiver_once(name, options, ranks, trained):
    """Who passes a broadcast on is the library's affair, but along any tree each receiver gets everything once."""
    run, monitored = found(trained, name, options, ranks)
    sent = run.traffic["sent"]
    assert np.array_equal(monitored["bytes"].sum(0), sent.sum(0))
    assert sent.sum() > 0 and not run.traffic["headers"].any() and not monitored["uncounted"].any()
    # What the library was asked to bring to whom. Only grouped-rs has packets to one receiver, which are no broadcasts.
    asked = monitored["collective"]
    assert (asked <= sent).all() and asked.any() and (options.get("scheme") == "grouped-rs" or (asked == sent).all())


@each(ALLREDUCES)
def test_all_reduce_of_the_library(name, options, ranks, trained):
    """What is counted is the least that all ranks together must send, 2(n-1) M. That is also what a reduction and a
    broadcast along any trees send, which Open MPI 5 uses here; recursive doubling would send a quarter to a third more.
    """
    run, monitored = found(trained, name, options, ranks)
    counted, seen = run.traffic["sent"].sum(), (monitored["bytes"] - monitored["uncounted"]).sum()
    assert 0 < counted <= seen < 1.5 * counted


if __name__ == "__main__":
    main(Path(sys.argv[1]))
