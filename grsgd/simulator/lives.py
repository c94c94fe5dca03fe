"""Simulated processes that die at the times that the configuration plans, and spare processes that replace them."""

import math
from contextlib import suppress

import simpy

from grsgd.comm.communicator import LostRank
from grsgd.comm.pollables import Delay
from grsgd.config import Config
from grsgd.errors import ConfigError
from grsgd.training.deaths import comes_back, planned_deaths


def live(simulation) -> list[str | None]:
    """Train on all ranks of a `Simulation` whose processes may die. Return a list of the reasons why each rank's
    training has ended.

    A reason is None if the rank's process has died and no spare process has replaced it. Raises LostRank if the
    processes of all ranks have died.
    """
    lives = [Life(simulation, process) for process in range(len(simulation.drivers))]
    deaths = simulation.env.process(kill_as_planned(simulation))
    ends = simulation.run(life.live() for life in lives)
    deaths.interrupt() if deaths.is_alive else None
    reasons: list[str | None] = [None] * simulation.ranks
    for life, reason in zip(lives, ends, strict=True):
        if reason is not None:
            simulation.trainers[life.membership.rank], reasons[life.membership.rank] = life.trainer, reason
    if not any(reason is not None for reason in reasons):
        raise LostRank(f"the processes of all ranks have died, at {simulation.env.now - simulation.began:.9g} s")
    return reasons


def kill_as_planned(simulation):
    """Kill a rank's process at each time at which the configuration plans the death of this rank. SimPy runs this
    generator as a process in simulated time."""
    faults, drivers, env = simulation.config.faults, simulation.drivers, simulation.env
    with suppress(simpy.Interrupt):
        for seconds, rank in planned_deaths(faults, simulation.ranks, simulation.config.seed):
            yield env.timeout(simulation.began + seconds - env.now)
            holders = [p for p, m in enumerate(simulation.memberships) if m.rank == rank and not drivers[p].is_dead]
            for process in holders:
                for fabric in (simulation.fabric, simulation.uncounted):
                    fabric.kill(process, faults.notice_seconds)


class Life:
    """One process of a simulated job whose processes may die and be replaced."""

    def __init__(self, simulation, process: int):
        self.simulation, self.process = simulation, process
        self.membership, self.driver = simulation.memberships[process], simulation.drivers[process]
        self.trainer = simulation.trainers[process] if process < simulation.ranks else None

    def live(self):
        """Train a rank in this process. A spare process first waits until it can replace a dead process. Return the
        reason why training has ended. Return None if this process has not trained. This method is a schedule (a
        generator that yields the objects it waits for)."""
        membership, simulation = self.membership, self.simulation
        self.driver.polls_messages = True
        self.driver.start_beside(membership.attend())
        is_late = self.trainer is None
        if is_late:
            config, number = simulation.config, self.process - simulation.ranks
            away = comes_back(config.faults, simulation.ranks, config.seed, number)
            if away:
                membership.is_there = False
                self.driver.start_beside(self.come_back(away)) if away < math.inf else None
            if not (yield from membership.stand_by()):
                return None
            self.trainer = simulation._make_trainer(self.process, simulation.make_model())
        if is_late:
            yield from self.trainer.recovery.take_over()
        reason = yield from simulation.recording.observed(self.process, self.trainer.train())
        return reason if self.trainer.recovery.has_trained else None

    def come_back(self, seconds: float):
        """Offer this process to the job again as a spare after ``seconds``. This method is a generator that a driver
        runs in the background."""
        yield Delay(seconds)
        self.membership.is_there = True


def check_faults(config: Config, spares: int):
    """Raise ConfigError if the configuration plans deaths, or ``spares`` is not 0, but the algorithm cannot continue
    after a death."""
    if (spares or config.faults.are_deadly) and not config.traits.survives_deaths:
        what = f"--spares {spares}" if spares else "faults"
        raise ConfigError(f"{what}: with {config.algorithm.name} the run ends when a rank dies")
