"""A run in simulated time, from the configuration to the run file."""

import gc
import math
import os
import platform
import time
from pathlib import Path

import simpy
import torch

from grsgd import gpu
from grsgd.algorithms import ALGORITHMS
from grsgd.comm.control import Control
from grsgd.config import Config, ConfigError
from grsgd.interruption import INTERRUPTED
from grsgd.progress import FreeRunning
from grsgd.record import Record, assemble
from grsgd.redundancy import settle
from grsgd.rescue import save
from grsgd.results import check_writable
from grsgd.run import ProgressLine, describe, ending, expected_bytes
from grsgd.simulate import compute as compute_times
from grsgd.simulate.communicator import World
from grsgd.simulate.compute import ComputeTime
from grsgd.simulate.driver import Driver, run_until_done
from grsgd.simulate.flows import Network
from grsgd.simulate.network import NetworkSpec
from grsgd.snapshots import MEMORY, Snapshots, common_marks
from grsgd.train import Trainer, build_model, load_data, use_threads

RANK_BYTES = 1_500_000
"""Memory of a rank beside its model: objects, and counters of traffic to every other one come on top."""
LOSS_COLUMNS = ("train_loss", "test_accuracy", "test_accuracy_min", "test_accuracy_max", "consensus_distance")


class Simulation:
    """``ranks`` trainers in one process and simulated time. Raises ConfigError and DataError.

    ``compute``: one of `compute.FORMS`; None takes the network's, or a default.
    """

    def __init__(
        self, config: Config, ranks: int, network: NetworkSpec, compute: str | None = None, timing_only: bool = False
    ):
        check_memory(ranks, 0)  # before anything is made that grows with the number of ranks
        config.check_ranks(ranks)
        network.check_ranks(ranks)
        self.config, self.ranks, self.spec, self.timing_only = config, ranks, network, timing_only
        if timing_only and ALGORITHMS[config.algorithm.name].needs_content(config.algorithm_options):
            raise ConfigError(
                f"--timing-only: {config.algorithm.name} with these options sends by what the models contain: leave "
                "--timing-only out"
            )
        form, numbers = compute_times.parse(compute) if compute is not None else (None, [])
        dataset = load_data(config)
        with torch.device("meta"):
            blueprint = build_model(config, dataset, torch.device("meta"))
        check_memory(ranks, 0 if timing_only else content_bytes(blueprint, config, ranks))
        device = gpu.pick_device(config.device)
        gpu.use(device)
        self.compute = self._compute_time(form, numbers, blueprint, dataset, device)
        compute_times.check_end(config, self.compute)
        self.env = simpy.Environment()
        self.drivers = [Driver(self.env, rank, self.compute, timing_only) for rank in range(ranks)]
        self.network = Network(self.env, network, ranks)
        self.world = World(self.network, self.drivers)
        # Bookkeeping travels out of band: it takes the network's latency and none of its bandwidth.
        out_of_band = NetworkSpec(bandwidth="inf bit", latency=f"{network.latency!r} s")
        self.aside = World(Network(self.env, out_of_band, ranks), self.drivers)
        controls = [Control(comm) for comm in self.aside.communicators()]
        models = [
            without_content(blueprint) if timing_only else build_model(config, dataset, device) for _ in range(ranks)
        ]
        triples = zip(models, self.world.communicators(), self.drivers, strict=True)
        settled = self.run(settle(config, dataset, model, comm, driver) for model, comm, driver in triples)
        self.config, self.redundancy = config, _ = settled[0]
        asides = self.aside.communicators()
        ends = zip(models, self.world.communicators(), asides, controls, self.drivers, strict=True)
        self.trainers = []
        for model, comm, aside, control, driver in ends:
            trainer = Trainer(config, dataset, model, comm, aside, control, driver)
            trainer.snapshots = Snapshots(trainer.replica, MEMORY // ranks)
            driver.random_state = torch.get_rng_state()
            self.trainers.append(trainer)
        if ranks > 1 and any(isinstance(trainer.progress, FreeRunning) for trainer in self.trainers):
            compute_times.check_free_running(config, self.compute, network.latency)
        self.began = 0.0
        """When training did: what is done before it takes simulated time, too."""

    def train(self) -> str:
        """Train on all ranks; returns why the run ended. Raises Deadlock, and what any rank raises."""
        self.run(trainer.same_start() for trainer in self.trainers)
        self.began = self.env.now
        for trainer, driver in zip(self.trainers, self.drivers, strict=True):
            driver.watch = trainer.control.watch
        reasons = self.run(trainer.train() for trainer in self.trainers)
        return ending([reasons[rank] for rank in self.left()])

    def seconds(self) -> float:
        """Simulated time of the training so far; of ranks that were left behind, nothing counts."""
        left = self.left()
        if len(left) == self.ranks:
            return self.env.now - self.began
        return max(self.trainers[rank].snapshots.moments[-1].time for rank in left)

    def left(self) -> list[int]:
        """The ranks that the others have not left behind."""
        lost = frozenset().union(*(trainer.algorithm.lost for trainer in self.trainers))
        return [rank for rank in range(self.ranks) if rank not in lost]

    def evaluate(self) -> tuple[list, object]:
        """The qualities at the snapshots that all ranks have, and the final one."""
        left = self.left()
        marks = common_marks([self.trainers[rank].snapshots.numbers for rank in left])
        comms = self.aside.communicators()
        parts = {rank: comms[rank].subset(left) for rank in left}
        return self.run((self.trainers[rank].evaluate(parts[rank], marks) for rank in left), left)[0]

    def run(self, schedules, ranks=None) -> list:
        """Drive one schedule a rank, of these ``ranks`` or of all, to its end; returns their values."""
        ranks = range(self.ranks) if ranks is None else ranks
        pairs = zip([self.drivers[rank] for rank in ranks], schedules, strict=True)
        gc.freeze()  # otherwise Python looks for garbage among thousands of objects that stay
        try:
            activities = [driver.start_foreground(schedule) for driver, schedule in pairs]
            run_until_done(self.env, activities)
        finally:
            gc.unfreeze()  # or they would stay for ever
        for driver in self.drivers:
            driver.watch = driver.foreground = None
        return [activity.value for activity in activities]

    def _compute_time(self, form, numbers, blueprint, dataset, device) -> ComputeTime:
        seed = self.config.seed
        if form is None and self.spec.compute is None:
            form, numbers = compute_times.parse(compute_times.DEFAULT)
        if form == "flops":
            operations = compute_times.flops(blueprint, dataset.shape, self.config.data.batch_size)
            return ComputeTime(operations / numbers[0])
        if form in ("constant", "lognormal"):
            return ComputeTime(*numbers, seed=seed) if form == "lognormal" else ComputeTime(*numbers)
        if self.spec.compute is not None:
            measured = self.spec.compute
            return ComputeTime(measured.median, measured.sigma, seed, measured.slowdown)
        driver = Driver(simpy.Environment())
        single = World(Network(driver.env, self.spec, 1), [driver])
        comm, aside, control = (single.communicators()[0] for _ in range(3))
        model = build_model(self.config, dataset, device)
        trainer = Trainer(compute_times.alone(self.config), dataset, model, comm, aside, Control(control), driver)
        return ComputeTime(*compute_times.measure(trainer), seed)


def simulate(
    config: Config, ranks: int, network: NetworkSpec, out: Path, compute: str | None = None, timing_only: bool = False
) -> str:
    """Simulate a run and write its run file. Returns why the run ended."""
    check_writable(out, expected_bytes(config, ranks))
    began = time.perf_counter()
    use_threads()
    simulation = Simulation(config, ranks, network, compute, timing_only)
    attributes = describe(simulation.trainers[0]) | {
        "clock": "virtual",
        "hosts": [platform.node()] * ranks,
        "network": network.summary(),
        "compute": str(simulation.compute),
        "timing_only": timing_only,
        "redundancy": simulation.redundancy,
    }
    with ProgressLine(simulation.trainers[0]) as line:
        simulation.trainers[0].on_step = line.update
        interrupted = False
        try:
            stopped = simulation.train()
        except KeyboardInterrupt as interrupt:
            stopped, interrupted = str(interrupt) or INTERRUPTED, True
    attributes |= {"stopped": stopped, "virtual_seconds": simulation.seconds()}
    left = simulation.left()
    attributes["lost"] = sorted(set(range(ranks)) - set(left)) or None
    records = [
        Record.of(trainer) if rank in left else Record.of_nothing(ranks)
        for rank, trainer in enumerate(simulation.trainers)
    ]
    evaluated = () if timing_only or interrupted else simulation.evaluate()
    result = assemble(records, attributes | {"wall_seconds": time.perf_counter() - began}, *evaluated)
    if timing_only:
        for column in LOSS_COLUMNS:
            del result.curve[column]
    save(out, result)
    return stopped


def without_content(model: torch.nn.Module) -> torch.nn.Module:
    """A model of one parameter and one buffer, as large as ``model``'s together, on the device ``meta``."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    buffers = [b for b in model.buffers() if b.is_floating_point()]
    flat = torch.nn.Module()
    flat.x = torch.nn.Parameter(torch.empty(sum(p.numel() for p in parameters), device="meta"))
    flat.register_buffer("statistics", torch.empty(sum(b.numel() for b in buffers), device="meta"))
    return flat


def content_bytes(model: torch.nn.Module, config: Config, ranks: int) -> int:
    """Bytes of one rank's arrays of the size of ``model``."""
    itemsize = getattr(torch, config.dtype).itemsize
    copies = ALGORITHMS[config.algorithm.name].copies(config.algorithm_options, ranks)
    return copies * itemsize * sum(tensor.numel() for tensor in [*model.parameters(), *model.buffers()])


def check_memory(ranks: int, model_bytes: int):
    """Raise ConfigError if so many ranks do not fit into this machine."""
    needed = ranks * (model_bytes + RANK_BYTES) + 5 * 24 * ranks**2
    there = memory()
    if needed > there:
        advice = "fewer ranks" if not model_bytes else "fewer ranks, a smaller model, or --timing-only"
        raise ConfigError(
            f"--ranks {ranks}: about {needed / 2**30:,.1f} GiB of memory are needed, and this machine has "
            f"{there / 2**30:,.1f} GiB: {advice}"
        )


def memory() -> float:
    """Bytes of memory that this process may use."""
    limits = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            limits.append(int(Path(path).read_text()))
        except (OSError, ValueError):  # no such file, or "max"
            continue
    return min(limits, default=math.inf)
