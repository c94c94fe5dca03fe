"""The ranks of a simulated run. Each rank has a trainer, and all trainers run in one process and send messages over a
simulated network."""

import platform
from functools import partial

import simpy

from grsgd.algorithms.context import RankContext
from grsgd.comm.communicator import Communicator
from grsgd.comm.elastic.membership import MembersBackend, Membership
from grsgd.comm.stop_signal import StopSignal
from grsgd.config import Config
from grsgd.errors import ConfigError
from grsgd.job.progress_line import ProgressLine
from grsgd.runs.ending import TARGET_REACHED, joint_reason
from grsgd.simulator import compute as compute_times
from grsgd.simulator import garbage
from grsgd.simulator.compute import AfterWaits
from grsgd.simulator.compute_choice import choose_compute_time
from grsgd.simulator.contentless import sizes, without_content
from grsgd.simulator.driver import run_all
from grsgd.simulator.evaluation import SnapshotEvaluation
from grsgd.simulator.fabric import MessageFabric
from grsgd.simulator.fast_ring.allreduces import AllreduceTimes
from grsgd.simulator.flows import Network
from grsgd.simulator.lives import check_faults, live
from grsgd.simulator.network import NetworkSpec, bookkeeping_network
from grsgd.simulator.processor import Processor
from grsgd.simulator.rank_memory import check_memory
from grsgd.simulator.tracing.instrumentation import NO_INSTRUMENTATION, Instrumentation
from grsgd.training import device as gpu
from grsgd.training import memory
from grsgd.training.automatic_options import choose_options
from grsgd.training.deaths import accounts, without
from grsgd.training.description import describe
from grsgd.training.inputs import build_model, load_data
from grsgd.training.progress import FreeRunning
from grsgd.training.record import RankMeasurements
from grsgd.training.recovery import Recovery
from grsgd.training.saving import ModelFiles
from grsgd.training.snapshots import MEMORY
from grsgd.training.survival import recovery_from_deaths
from grsgd.training.trainer import Trainer, ignore
from grsgd.training.trial_batch import TRIED, check_batch, is_own


class Simulation:
    """Simulated run of ``ranks`` ranks. Each rank has one trainer, and all trainers run in this process, in simulated
    time. Raises ConfigError and DataError.

    ``compute`` is a text in one of the forms `compute.FORMS`, which gives the seconds of a step's computation. If
    ``compute`` is None, the network file gives the seconds. Without ``compute`` and without seconds in the network
    file, `compute.DEFAULT` is used.
    """

    def __init__(
        self,
        config: Config,
        ranks: int,
        network: NetworkSpec,
        compute: str | None = None,
        timing_only: bool = False,
        on_step=ignore,
        models: ModelFiles | None = None,
        spares: int = 0,
        recording: Instrumentation = NO_INSTRUMENTATION,
    ):
        """Create the simulated ranks, and the simulated network between them.

        ``on_step`` is a function that rank 0's `Trainer` calls after each step. ``models`` stores the best of the
        evaluated models. ``spares`` is the number of additional processes that can replace dead processes.
        ``recording`` records the events of the training for a timeline or a trace.
        """
        check_request(config, ranks, network, timing_only, spares)
        self.config, self.ranks, self.spec, self.timing_only = config, ranks, network, timing_only
        self.recording = recording
        stated = compute_times.parse(compute) if compute is not None else None
        self.dataset = dataset = load_data(config)
        blueprint = memory.blueprint(config, dataset)
        check_memory(ranks, 0 if timing_only else memory.rank_bytes(blueprint, config, ranks))
        device = gpu.pick_device(config.device)
        gpu.use(device)
        gpu.allow_tf32(device, config.gradient.tf32)
        if not timing_only and is_own(config, *TRIED):
            check_batch(config, dataset, build_model(config, dataset, device))
        self.compute = choose_compute_time(stated, config, network, blueprint, dataset, device)
        compute_times.check_end(config, self.compute)
        check_faults(config, spares)
        self.survives = spares > 0 or config.faults.are_deadly
        self._make_fabrics(ranks + spares)
        self.make_model = partial(build_model, config, dataset, device)
        if timing_only:
            parameters, statistics = sizes(blueprint)
            parts = parameters if config.traits.sends_early else [sum(parameters)]
            self.make_model = partial(without_content, parts, statistics)
        replicas = [self.make_model() for _ in range(ranks)]
        self.config, self.reasons = config, _ = self._choose_options(replicas)
        self.request: str | None = None
        """Reason for which training must stop after the present step; None if training must continue."""
        self.contexts = self._make_contexts()
        self.states = self.uncounted.communicators() if self.survives else None
        with garbage.not_looked_for(rarely=timing_only):
            self.trainers = [self._make_trainer(rank, model, on_step) for rank, model in enumerate(replicas)]
        self.evaluation = SnapshotEvaluation(self.trainers, models or ModelFiles())
        self.is_at_target = False
        """Whether training has reached the target accuracy, and therefore has ended or is about to end."""
        if ranks > 1 and any(isinstance(trainer.progress, FreeRunning) for trainer in self.trainers):
            compute_times.check_free_running(config, self.compute, network.latency)
        self.lost: frozenset[int] = frozenset()
        """Ranks whose processes have died, and which no spare process has taken over. The set of lost ranks is complete
        when training has ended."""
        self.began = 0.0
        """Simulated moment at which training began, after the initial model was broadcast. The broadcast of the initial
        model before training takes simulated time, too."""

    def _make_fabrics(self, processes: int):
        """Create a driver for each process, and the networks and message fabrics between the processes.
        ``processes`` is the number of ranks plus the number of spare processes."""
        config, network, recording = self.config, self.spec, self.recording
        self.env = simpy.Environment()
        self.drivers = recording.drivers(self.env, processes, self.compute, self.timing_only)
        has_quota = network.processor is not None and network.processor.period > 0
        for driver in self.drivers:
            driver.work_seconds = self.compute.work * self.compute.slowdown.get(driver.rank, 1.0)
            if self.compute.after_wait and not has_quota:  # a quota models the effect of waits itself
                driver.compute_seconds = AfterWaits(self.compute, lambda driver=driver: driver.wait_seconds)
        self.network = Network(self.env, network, processes)
        processors = self._make_processors()
        self.fabric = recording.fabric(self.network, self.drivers, processors)
        is_plain = not (self.survives or config.faults.cut or network.processor or recording.is_on)
        if self.timing_only and config.traits.only_allreduces and is_plain:
            self.fabric.allreduces = AllreduceTimes(self.fabric)
        out_of_band = Network(self.env, bookkeeping_network(network), processes)
        self.uncounted = recording.fabric(out_of_band, self.drivers, processors, is_counted=False)
        self.memberships: list[Membership | None] = [None] * self.ranks
        if self.survives:
            comms = zip(self.uncounted.communicators(), self.drivers, strict=True)
            self.memberships = [Membership(comm, self.ranks, driver.clock, look_seconds=0) for comm, driver in comms]
        self.signals = [StopSignal(comm, tolerant=self.survives) for comm in self._communicators(self.uncounted)]

    def _make_processors(self) -> list[Processor] | None:
        """Return a list of one simulated processor per process. Return None if messages on this network take no
        processor time."""
        if self.spec.processor is None:
            return None
        for driver in self.drivers:
            factor = self.compute.slowdown.get(driver.rank, 1.0)
            driver.processor = Processor(self.network, self.spec.processor, factor, driver.waited, driver.rank)
        return [driver.processor for driver in self.drivers]

    def _communicators(self, fabric: MessageFabric) -> list[Communicator]:
        """Return one communicator per process. The communicators form a new group, to which all processes of ``fabric``
        belong."""
        comms = fabric.communicators()
        if not self.survives:
            return comms
        pairs = zip(comms, self.memberships, strict=True)
        return [Communicator(MembersBackend(comm.backend, membership)) for comm, membership in pairs]

    def _make_contexts(self) -> list[RankContext]:
        """Return the `RankContext` of each process: its communicators, driver, stop signal and membership."""
        config, comms = self.config, (self._communicators(fabric) for fabric in (self.fabric, self.uncounted))
        parts = zip(*comms, self.drivers, self.signals, self.memberships, strict=True)
        return [
            RankContext(comm, uncounted, driver, signal, config.seed, config.data.replication, membership)
            for comm, uncounted, driver, signal, membership in parts
        ]

    def _make_trainer(self, process: int, model, on_step=ignore) -> Trainer:
        trainer = Trainer(
            self.config,
            self.dataset,
            model,
            self.contexts[process],
            snapshot_memory=MEMORY // self.ranks,
            recovery=self._recovery(process),
            on_step=partial(self._after_step, process, on_step if process == 0 else ignore),
        )
        if not self.timing_only:  # a run that simulates only times draws no random numbers
            self.drivers[process].keep_random_state()
        return trainer

    def _recovery(self, process: int) -> Recovery:
        if not self.survives:
            return Recovery()
        context = self.contexts[process]
        return recovery_from_deaths(self.config.traits, context, self.states[process], context.driver)

    def stop(self, reason: str):
        """Let the training end after the present step, with ``reason`` as the reason why the run ended. A signal
        handler may call this method."""
        self.request = reason

    def _after_step(self, process: int, on_step, progress, loss: float | None):
        on_step(progress, loss)
        train = self.config.train
        if train.stop_at_target and not self.is_at_target:
            new = self.evaluation.of_new_snapshots()
            metric = self.trainers[0].task.metric
            self.is_at_target = any(metric.is_reached(quality.mean, self.config.target) for quality in new)
            if self.is_at_target:
                self.stop(TARGET_REACHED)
        if self.request is not None:  # tell all ranks to stop
            self.signals[process].request, self.request = self.request, None

    def describe(self) -> dict:
        """Return the run file's attributes whose values are known before training begins."""
        return (
            describe(self.trainers[0])
            | self.reasons
            | {
                "clock": "virtual",
                "hosts": [platform.node()] * self.ranks,
                "network": self.spec.summary(),
                "compute": str(self.compute),
                "timing_only": self.timing_only,
            }
        )

    def train(self) -> str:
        """Train on all ranks, and return the reason why the training ended. Raises Deadlock if no rank can continue,
        and any error that a rank raises."""
        self.run(trainer.broadcast_initial_model() for trainer in self.trainers)
        self.began = self.env.now
        self.network.forget_bytes()
        for network in (self.network, self.uncounted.network):
            network.cuts = {
                rank: (self.began + cut.at, self.began + cut.at + cut.seconds)
                for rank, cut in self.config.faults.cut.items()
            }
        self.recording.begin(self.began)
        try:
            reasons = live(self) if self.survives else self.run(self.trainings())
            self.lost = frozenset(rank for rank, reason in enumerate(reasons) if reason is None)
        finally:
            self.recording.end()
        if self.is_at_target:
            for trainer in self.trainers:
                trainer.snapshots.keep_first(self.evaluation.marks_seen)
            return TARGET_REACHED
        return joint_reason([reasons[rank] for rank in self.left()])

    def trainings(self) -> list:
        """Return a list of one generator per rank, which trains on this rank when a driver runs it."""
        return [self.recording.observed(rank, trainer.train()) for rank, trainer in enumerate(self.trainers)]

    def seconds(self) -> float:
        """Return the simulated seconds that training has taken so far, on the ranks that were not lost."""
        left = self.left()
        if len(left) == self.ranks:
            return self.env.now - self.began
        return max(self.trainers[rank].snapshots.moments[-1].time for rank in left)

    def left(self) -> list[int]:
        """Return the ranks that were not lost during the run, in ascending order."""
        if self.survives:
            return [rank for rank in range(self.ranks) if rank not in self.lost]
        lost = frozenset().union(*(trainer.lost for trainer in self.trainers))
        return [rank for rank in range(self.ranks) if rank not in lost]

    def records(self) -> tuple[list[RankMeasurements], list[int] | None]:
        """Return the measurements of all ranks, and the list of lost ranks, without which the other ranks went on. The
        list of lost ranks is None if no rank was lost.
        """
        left, ranks = self.left(), range(self.ranks)
        lost = [rank for rank in ranks if rank not in left]
        found = {rank: RankMeasurements.of(self.trainers[rank]) for rank in left}
        records = [found[rank] if rank in found else RankMeasurements.of_nothing() for rank in ranks]
        if self.survives:
            for rank in lost:
                labels = self.dataset.train.labels
                records[rank].warnings.append(without(rank, lost, self.ranks, self.config, labels))
            recoveries = {rank: self.trainers[rank].recovery for rank in left}
            deaths = (death.after(self.began) for each in recoveries.values() for death in each.membership.deaths)
            waits = {rank: each.longest_wait for rank, each in recoveries.items()}
            records[left[0]].extra |= accounts(deaths, waits, self.ranks)
        return records, lost or None

    def evaluate(self, line: ProgressLine | None = None) -> tuple[list, object]:
        """Return the test results of the snapshots that all ranks have, and the test results of the final model.
        ``line`` shows the progress of the evaluation to the user.

        After the evaluation, the models of all ranks that were not lost hold the final model. If the run has stopped
        because its target accuracy was reached, the last snapshot is the final model.
        """
        left = self.left()
        marks = self.evaluation.marks(left)
        known = self.evaluation.qualities if len(left) == self.ranks else []
        if self.is_at_target:
            return known, *self.evaluation.of_snapshots(marks[-1:], left)
        marks = marks[len(known) :]
        line = line or ProgressLine(is_shown=False)
        line.doing(f"evaluating {len(marks)} snapshot{'s' * (len(marks) != 1)}")
        qualities, final = self.evaluation.to_the_end(marks, left, line.counted)
        return known + qualities, final

    def run(self, schedules) -> list:
        """Run the schedule with index i in ``schedules`` on process i, until all schedules have ended. All processes
        run at the same time. Return the values that the schedules return."""
        schedules = list(schedules)
        with garbage.not_looked_for(rarely=self.timing_only):
            return run_all(self.env, self.drivers[: len(schedules)], schedules)

    def _choose_options(self, models):
        """Return the configuration in which the automatic options have chosen values, and the reasons for these
        choices."""
        communicators = zip(models, self._communicators(self.fabric), self.drivers, strict=False)
        return self.run(
            choose_options(self.config, self.dataset, model, RankContext(comm, comm, driver))
            for model, comm, driver in communicators
        )[0]


def check_request(config: Config, ranks: int, network: NetworkSpec, timing_only: bool, spares: int):
    """Raise ConfigError if the run cannot be simulated. The caller makes this check before it creates any object whose
    size grows with ``ranks``."""
    check_memory(ranks, 0)
    config.check_ranks(ranks)
    network.check_ranks(ranks, spares)
    if timing_only and config.traits.depends_on_values:
        raise ConfigError(
            f"--timing-only: with these options, messages of {config.algorithm.name} depend on the models' content: "
            "leave --timing-only out"
        )
    config.check_simulated(timing_only)
    if timing_only and config.train.stop_at_target:
        raise ConfigError("train.stop_at_target = true with --timing-only: nothing is evaluated; leave one of them out")
