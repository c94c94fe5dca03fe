"""Many short random runs on real MPI: ``python -m tests.stress [--runs 200] [--seed 0] [--library openmpi]``.

Every run has a random algorithm, options, number of ranks, length and stragglers, all drawn from its seed. It must end
in time, all messages must have been received, and all models must be equal. Some are ended early, by a signal or by a
loss that is not finite: then all ranks must leave with the same reason, and the models must stay as they are. Exit code
1 if one fails; run its seed alone with ``--runs 1 --seed SEED``.
"""

import argparse
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import numpy as np

from grsgd.algorithms import ALGORITHMS
from grsgd.comm.communicator import Communicator
from grsgd.config import parse

RANKS = 2, 3, 4, 5
WAIT_SECONDS = 20
"""After so long a wait of one rank is an error."""
SILENCE_SECONDS = 60
"""After so long without a word a job is killed."""
VARIANTS = ["ring", "halving-doubling", "tree", "mpi"]
TRIGGER = {
    "adaptive": [False, True],
    "metric": ["l2rel", "normdiff", "layerwise", "cosine"],
    "theta": ["auto", "auto", 0.0, 0.01],
    "target": [0.08, 0.5],
    "scale_theta_with_lr": [True, False],
    "kmin": [1, 3],
    "kmax": [3, 200],
}
OPTIONS = {
    "ring_allreduce": {"variant": VARIANTS},
    "dpsgd": {"topology": ["ring", "exponential", "full"]},
    "grsgd": {
        "policy": ["succ", "alt", "rand2"],
        "H": [1, 2, 3],
        "merge": ["sumweight", "half"],
        "inbox_capacity": [1, 2],
        "inbox_full": ["hold", "merge"],
    },
    "local_sgd": {"H": [1, 3, 8], "post_local": [0, 4], "beta": [0.0, 0.7], "variant": VARIANTS},
    "lasgd": {
        "merge": ["delta", "overwrite", "cocod", "anchor"],
        "Hmin": [1, 2, 3],
        "Hmax": [None, 3, 5],
        "warmup": [0, 0, 3],
        "resync": [0, 1, 4, 1000],
        "variant": VARIANTS,
    },
    "sgp": {"tau": [0, 1, 3]},
    "gosgd": {"p": [0.0, 0.1, 0.5, 1.0], "inbox_capacity": [1, 2]},
    "adpsgd": {"graph": ["ring", "full"], "period": [1, 3], "merge": ["average", "delta"]},
    "gossip": {"mode": ["pair", "push", "pull"], "period": [1, 3]} | TRIGGER,
    "easgd": {"period": [1, 3], "centre": ["server", "allreduce"], "final": ["centre", "average"]} | TRIGGER,
}
"""What to choose from; an algorithm that is not named here runs with its defaults."""


class Stop(NamedTuple):
    """What ends a run early, on one rank: a "signal" after some seconds, or "nan" as learning rate after some steps."""

    cause: str
    rank: int
    when: float


def drawn(seed: int) -> tuple[int, dict, Stop | None]:
    """The number of ranks and the configuration of a run, and what ends it early."""
    random = np.random.default_rng(seed)

    def choose(values):
        return values[random.integers(len(values))]

    n = choose(RANKS)
    name = choose(sorted(ALGORITHMS))
    options = {key: choose(values) for key, values in OPTIONS.get(name, {}).items()}
    if name == "easgd" and options["adaptive"]:
        options["centre"] = "server"
    rho = choose([1, 1, 2]) if ALGORITHMS[name].for_any_loop else 1
    algorithm = {"name": name, "rho": rho} | {k: v for k, v in options.items() if v is not None}
    stragglers = {"slowdown": {}, "tail": {}, "pause": {}}
    for rank in range(n):
        if random.random() < 0.4:
            stragglers["slowdown"][rank] = float(1 + random.exponential(5))
        if random.random() < 0.2:
            stragglers["tail"][rank] = {"probability": float(random.uniform(0.05, 0.5)), "seconds": 3e-3}
        if random.random() < 0.2:
            stragglers["pause"][rank] = {"every": int(random.integers(1, 10)), "seconds": 1e-2}
    steps = int(random.integers(1, 40))
    end = choose([{"steps": steps}, {"samples": 4 * n * steps + 1}, {"seconds": 0.01 * steps}])
    content = {
        "seed": seed,
        "device": "cpu",
        "dtype": choose(["float32", "float64"]),
        "algorithm": algorithm,
        # With the larger one a message is too long for the library to store it.
        "model": {"name": "mlp", "hidden": choose([[], [], [5000]])},
        "data": {"name": "synthetic", "samples": 60, "shape": [1, 4, 4], "classes": 2, "batch_size": 4},
        "optimizer": {"lr": 0.01, "momentum": choose([0.0, 0.9])},
        "train": end | {"snapshots": int(random.integers(1, 6))},
        "stragglers": stragglers,
        "comm": {"progress": choose(["inline", "thread"]), "timeout": WAIT_SECONDS},
    }
    rank = int(random.integers(n))
    stops = [
        Stop("signal", rank, float(random.uniform(0, 0.01 * steps))),
        Stop("nan", rank, int(random.integers(steps))),
    ]
    return n, content, choose([None, None, None, None, *stops])


# ---- inside a job


class Recorded(Communicator):
    """A communicator that keeps its messages, to ask them afterwards."""

    def __init__(self, mpi, device_end=None):
        super().__init__(mpi, device_end)
        self.sent, self.received, self.collective = [], [], []

    def Isend(self, *args, **kwargs):
        return self.keep(self.sent, super().Isend(*args, **kwargs))

    def Issend(self, *args, **kwargs):
        return self.keep(self.sent, super().Issend(*args, **kwargs))

    def Irecv(self, *args, **kwargs):
        return self.keep(self.received, super().Irecv(*args, **kwargs))

    def Iallreduce(self, *args, **kwargs):
        return self.keep(self.collective, super().Iallreduce(*args, **kwargs))

    def Ibcast(self, *args, **kwargs):
        return self.keep(self.collective, super().Ibcast(*args, **kwargs))

    def keep(self, where, message):
        where.append(message)
        return message


def check_messages(world, comm: Recorded, what: str):
    """Every message that was sent to this rank has been received, and nothing else is expected or has come."""
    from mpi4py import MPI

    deadline = time.perf_counter() + 5
    for message in comm.sent + comm.received + comm.collective:
        while not message.Test():
            assert time.perf_counter() < deadline, f"{what}: not complete at the end: {message}"
    sent = np.bincount([message.peer for message in comm.sent], minlength=comm.size)
    to_me = world.allreduce(sent)[comm.rank]
    assert to_me == len(comm.received), f"{what}: {to_me} messages were sent here, {len(comm.received)} received"
    world.Barrier()
    assert not comm.mpi.Iprobe(MPI.ANY_SOURCE, MPI.ANY_TAG), f"{what}: a message is left"


@contextmanager
def stopping(trainer, stop: Stop | None):
    """While entered, what is to happen on this rank happens."""
    from grsgd.interruption import Interruption

    mine = stop is not None and stop.rank == trainer.comm.rank
    if mine and stop.cause == "nan":

        def poison(loss):
            if trainer.measured.steps == stop.when:
                for group in trainer.algorithm.optimizer.param_groups:
                    group["lr"] = float("nan")

        trainer.on_step = poison
    if not mine or stop.cause == "nan":
        yield
        return
    with Interruption(lambda reason: setattr(trainer.control, "request", reason)):
        timer = threading.Timer(stop.when, os.kill, (os.getpid(), signal.SIGINT))
        timer.start()
        try:
            yield
        finally:
            timer.cancel()
            timer.join()  # no signal after this run


def check_early_end(reason: str, stop: Stop | None, x):
    from grsgd.interruption import INTERRUPTED

    assert stop is not None, f"ended by {reason}"
    assert reason.startswith("non-finite loss" if stop.cause == "nan" else INTERRUPTED), f"{stop}: ended by {reason}"
    before = x.tobytes()
    time.sleep(0.02)
    assert x.tobytes() == before, "the model has changed after an early end"


def run_once(world, content: dict, stop: Stop | None):
    """One run on all ranks, with all checks; raises what is wrong.

    Returns None, or after an early end what must be kept: MPI may still write into it.
    """
    import torch

    from grsgd.comm.control import Control
    from grsgd.comm.driver import Driver
    from grsgd.config import ENDS
    from grsgd.run import ending
    from grsgd.snapshots import common_marks
    from grsgd.train import Trainer, build_model, load_data

    config = parse(content)
    config.check_ranks(world.size)
    driver = Driver(world.rank, config.comm.timeout, config.comm.progress)
    comm, aside, for_control, evaluation = (Recorded(world.Dup()) for _ in range(4))
    control = Control(for_control)
    dataset = load_data(config)
    trainer = Trainer(config, dataset, build_model(config, dataset, torch.device("cpu")), comm, aside, control, driver)
    algorithm = trainer.algorithm
    driver.run(trainer.same_start())
    driver.watch = control.watch
    with stopping(trainer, stop):
        stopped = driver.run(trainer.train())
    driver.watch = None
    x = algorithm.x.array
    reason = ending(world.allgather(stopped))
    early = reason not in ENDS
    if early:
        check_early_end(reason, stop, x)
    final = x.tobytes()
    marks = common_marks(world.allgather(trainer.snapshots.numbers))
    assert marks if early else len(trainer.snapshots) == config.train.snapshots, f"snapshots: {marks}"
    qualities, _ = driver.run(trainer.evaluate(evaluation, marks))
    assert all(0 <= quality.lowest <= quality.highest <= 1 for quality in qualities)
    check_messages(world, evaluation, "evaluation")
    evaluation.free()
    if early:
        driver.close()
        return driver, trainer, for_control
    background = [str(handle) for handle in driver.background if not handle.Test()]
    background = [name for name in background if "schedule watch" not in name]  # a server's clock: it does nothing more
    driver.close()
    assert not background, f"left in the background: {background}"
    check_messages(world, comm, "training")
    check_messages(world, aside, "bookkeeping")
    check_messages(world, for_control, "control")

    models = world.allgather(final)
    if stop is None or stop.cause != "nan":  # which may have come with the last step
        finite = np.isfinite(np.frombuffer(final, x.dtype)).all()
        assert finite and models[0] == final, "the models are not finite and equal"
    steps = world.allgather(trainer.measured.steps)
    assert not algorithm.synchronous or len(set(steps)) == 1, f"steps of a synchronous algorithm: {steps}"
    counted = trainer.progress.samples
    if algorithm.counts_steps:  # a worker has last heard of it before the others' last steps
        counted = max(world.allgather(algorithm.steps)) * config.data.batch_size
    assert counted == sum(steps) * config.data.batch_size, "wrong number of samples"
    traffic = np.array(world.allgather(comm.traffic.sent))
    name, options = config.algorithm.name, algorithm.options
    if name == "adpsgd" or (name == "gossip" and options.mode == "pair"):
        assert (traffic == traffic.T).all(), f"one half of an exchange is missing:\n{traffic}"
    if name == "lasgd":
        rounds = world.allgather(algorithm.rounds)
        assert len(set(rounds)) == 1, f"rounds: {rounds}"
    world.Barrier()
    for one in (comm, aside, for_control):
        one.mpi.Free()


def inside(seeds: list[int]):
    """The job's own part: run after run."""
    import torch

    from grsgd import launch

    torch.set_num_threads(1)
    world = launch.world()
    launch.abort_on_error(world)
    # The first gradient of a process takes up to a second, which a straggler would multiply.
    torch.nn.functional.cross_entropy(torch.nn.Linear(4, 2)(torch.ones(3, 4)), torch.zeros(3, dtype=int)).backward()
    kept, compiled = [], set()
    for seed in seeds:
        _, content, stop = drawn(seed)
        if world.rank == 0:
            print("begin", seed, flush=True)
        kernels = content["algorithm"]["name"], content["dtype"]
        if ALGORITHMS[kernels[0]].shared_batch and kernels not in compiled:
            run_once(world, content | {"stragglers": {}, "train": {"steps": 1}}, None)  # compiled in the first gradient
            compiled.add(kernels)
        rest = run_once(world, content, stop)
        if rest is not None:
            kept.append(rest)
        if world.rank == 0:
            print("end", seed, "early" if rest is not None else "", flush=True)
    if kept:
        launch.leave(world, 0)


# ---- outside


class Stress:
    """All runs, a job for each number of ranks, and another one after a failure."""

    def __init__(self, library: str, runs: int, first: int):
        self.library, self.runs, self.first = library, runs, first
        self.began = time.perf_counter()
        self.done = self.early = 0
        self.failed: list[int] = []
        self.ran: Counter[str] = Counter()

    def run(self) -> int:
        seeds = range(self.first, self.first + self.runs)
        for n in RANKS:
            left = [seed for seed in seeds if drawn(seed)[0] == n]
            while left:
                left = self.job(n, left)
        failed = f"; FAILED: seeds {', '.join(map(str, self.failed))}" if self.failed else ", all well"
        seconds = time.perf_counter() - self.began
        names = ", ".join(f"{name} {count}" for name, count in sorted(self.ran.items()))
        done = f"{self.done} of {self.runs} runs on {self.library} ended, {self.early} of them early"
        print(f"\n{done}, in {seconds:.0f} s ({names}){failed}")
        return 1 if self.failed else 0

    def job(self, n: int, seeds: list[int]) -> list[int]:
        """One job; returns the seeds that are left after a failure, without the one that failed."""
        sys.path.insert(0, str(Path(__file__).parents[1] / "mpi"))
        import launcher

        arguments = ["-m", "tests.stress", "--inside", ",".join(map(str, seeds))]
        job = launcher.start(self.library, n, arguments)
        lines: queue.Queue[str | None] = queue.Queue()
        reader = threading.Thread(target=self.read, args=(job, lines), daemon=True)
        reader.start()
        output, left, unfinished = [], list(seeds), False
        try:
            while (line := lines.get(timeout=SILENCE_SECONDS)) is not None:
                word, _, rest = line.strip().partition(" ")
                if word == "begin":
                    output = []
                elif word == "end":
                    early = rest.endswith("early")
                    self.note(n, left.pop(0), early)
                    unfinished |= early
                else:
                    output.append(line)
            code = job.wait(timeout=SILENCE_SECONDS)  # its output may end before its ranks do
        except (queue.Empty, subprocess.TimeoutExpired):
            output.append(f"no word for {SILENCE_SECONDS} s: killed\n")
            os.killpg(job.pid, 9)
            code = job.wait(timeout=SILENCE_SECONDS)
        # Without MPI_Finalize, which would wait for messages under way, the launcher's exit code is its own.
        if not left and (code == 0 or (unfinished and code > 0)):
            return []
        failed = left.pop(0) if left else seeds[-1]  # a library may lose what a rank has said last
        self.failed.append(failed)
        print(f"\nseed {failed} on {n} ranks failed: {drawn(failed)[1:]}\n{''.join(output)[-4000:]}", flush=True)
        return left

    @staticmethod
    def read(job, lines):
        for line in job.stdout:
            lines.put(line)
        lines.put(None)

    def note(self, n: int, seed: int, early: bool):
        self.done += 1
        self.early += early
        self.ran[drawn(seed)[1]["algorithm"]["name"]] += 1
        terminal = sys.stdout.isatty()
        if terminal or self.done % 25 == 0:
            text = f"{self.done} of {self.runs} runs, {len(self.failed)} failed, now on {n} ranks"
            print(text, end="\r" if terminal else "\n", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.stress", description=__doc__.partition(":")[0])
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0, help="of the first run; the others follow")
    parser.add_argument("--library", choices=["openmpi", "mpich"], default="openmpi")
    parser.add_argument("--inside", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.inside:
        inside([int(seed) for seed in arguments.inside.split(",")])
        return 0
    return Stress(arguments.library, arguments.runs, arguments.seed).run()


if __name__ == "__main__":
    sys.exit(main())
