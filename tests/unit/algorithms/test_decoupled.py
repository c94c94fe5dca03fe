import math

import numpy as np
import pytest

from grsgd.algorithms.decoupled import Quorum
from grsgd.errors import ConfigError
from grsgd.testing import AlgorithmTests
from grsgd.testing.quadratic import PROBLEM, STEPS, Job, M, Reference, random_speeds
from grsgd.testing.simulated import network_of
from grsgd.training.record import assemble
from tests.support.exhaustive import exhaustive_unless
from tests.support.training import CONSTANT, simulation

WORKERS = exhaustive_unless(lambda n: n in (1, 3), [1, 2, 3, 4, 5, 7])


def job(n, speeds, steps=STEPS, latencies=None, H=5, **options):
    random = None if latencies is None else np.random.default_rng(latencies)
    return Job("decoupled", n + 1, speeds, random=random, H=H, **options).train(steps)


@pytest.mark.parametrize("options", [{"grace": 0.0}, {"quorum": 1, "grace": math.inf}])
@pytest.mark.parametrize("outer", [{}, {"outer_lr": 1.0, "outer_momentum": 0.0}])
@pytest.mark.parametrize("n", WORKERS)
def test_waiting_for_all_it_is_diloco_bit_for_bit(n, options, outer):
    options = options if "quorum" in options else {**options, "quorum": n}
    ours = job(n, random_speeds(n), latencies=n, **options, **outer)
    theirs = Job("diloco", n, H=5, variant="tree", **outer).train()
    for worker in range(n):
        np.testing.assert_array_equal(ours.trajectories[worker], theirs.trajectories[worker])
    assert STEPS % 5 == 0 and (ours.algorithms[n].server.w.numpy() == theirs.X[0]).all()


@pytest.mark.parametrize("n", WORKERS)
def test_steps_that_are_left_are_averaged_as_diloco_averages_models(n):
    ours, theirs = job(n, random_speeds(n), 43, quorum=n), Job("diloco", n, H=5).train(43)
    assert np.abs(ours.average().X[:n] - theirs.average().X).max() < 1e-12
    assert ours.algorithms[n].server.applied == 43 * n


class Merged(Reference):
    """Worker by worker in float64: what each has pushed, and outer steps in the order in which the server took them."""

    def __init__(self, n, outer_lr=0.7, outer_momentum=0.9):
        super().__init__(n)
        self.w, self.u = self.X[0].copy(), np.zeros(PROBLEM.size)
        self.base, self.outer_lr, self.outer_momentum = self.X.copy(), outer_lr, outer_momentum
        self.changes, self.steps = np.zeros_like(self.X), np.zeros(n)

    def pushed(self, rank, worker, steps):
        """The server has got a model."""
        self.changes[worker] += self.X[worker] - self.base[worker]
        self.steps[worker] += steps

    def answered(self, rank, worker):
        self.X[worker] = self.base[worker] = self.w

    def merged(self, rank, workers):
        share = self.steps[list(workers)] / self.steps[list(workers)].sum()
        d = -share @ self.changes[list(workers)]
        self.u = self.outer_momentum * self.u + d
        self.w = self.w - self.outer_lr * (d + self.outer_momentum * self.u)
        self.changes[list(workers)], self.steps[list(workers)] = 0, 0


@pytest.mark.parametrize("grace", [0.0, 0.5])
@pytest.mark.parametrize("quorum", [1, 2, 3])
@pytest.mark.parametrize("seed", exhaustive_unless(lambda seed: seed < 2, range(10)))
def test_against_a_reference_with_workers_that_are_late(seed, quorum, grace):
    n, outer = 4, {"outer_lr": 0.6, "outer_momentum": 0.4}
    made = Job("decoupled", n + 1, random_speeds(seed), H=3, quorum=quorum, grace=grace, **outer)
    server = made.algorithms[n].server
    push, decide, answer = server.push, server.apply_decision, server.answer

    def pushed(worker, steps):
        made.log.append(("pushed", n, worker, steps))
        return push(worker, steps)

    def decided(decision):
        if decision.update:
            made.log.append(("merged", n, [worker for worker, _ in decision.gathered]))
        return decide(decision)

    def answered(worker):
        made.log.append(("answered", n, worker))
        return answer(worker)

    server.push, server.apply_decision, server.answer = pushed, decided, answered
    made.train(STEPS)
    reference = Merged(n, **outer).replay(made.log)
    rest = sum(reference.X[i] - reference.base[i] + reference.changes[i] for i in range(n))  # nobody pushed it
    assert np.abs(server.w.numpy() - reference.w - rest / n).max() < 1e-12
    assert server.applied == STEPS * n and made.nothing_is_left()
    assert grace or any(late > 0 for late in server.staleness)


def test_nobody_waits_for_a_late_worker():
    """Three workers of 1 s a step and one of 10: with a quorum of three the fast ones keep their pace."""
    slow, ends = (lambda rank, step: 10.0 if rank == 3 else 1.0), {}
    for quorum in (3, 4):
        made = Job("decoupled", 5, slow, network_of(), H=5, quorum=quorum, grace=0.0)
        made.train([40, 40, 40, 40, 0])
        ends[quorum] = [made.ends[worker][-1] for worker in range(4)]
    assert ends[3][:3] == pytest.approx([40] * 3) and ends[3][3] == pytest.approx(400)
    assert ends[4] == pytest.approx([400] * 4)


def test_grace_window():
    strategy = Quorum(4, quorum=2, grace=0.5)
    assert not strategy.push(0, 0, 9.0).update and strategy.window is None
    assert not strategy.push(1, 0, 10.0).update and strategy.window == 5.0
    assert not strategy.push(2, 0, 12.0).answers
    decision = strategy.end_of_window(15.0)
    assert [worker for worker, _ in decision.gathered] == [0, 1, 2] and decision.answers == (0, 1, 2)
    late = strategy.push(3, 0, 16.0)
    assert late.answers == (3,) and not late.gathered and strategy.staleness == 1
    assert not strategy.push(0, 1, 20.0).update
    assert not strategy.push(1, 1, 21.0).update and strategy.window == 3.0
    decision = strategy.end_of_window(24.0)
    assert [worker for worker, _ in decision.gathered] == [0, 1, 3] and decision.answers == (0, 1)


def test_all_in_time_end_the_grace_window():
    strategy = Quorum(3, quorum=2, grace=math.inf)
    assert not strategy.push(0, 0, 1.0).update and not strategy.push(1, 0, 1.0).update
    assert strategy.push(2, 0, 50.0).answers == (0, 1, 2) and strategy.version == 1
    assert not strategy.push(0, 1, 51.0).update and not strategy.push(2, 1, 51.0).update
    assert strategy.lost(1, 60.0).answers == (0, 2)


@pytest.mark.parametrize(
    "options, error",
    [
        ({"quorum": 5}, "quorum = 5: must be at most the number of workers, 4"),
        ({"quorum": 0}, "quorum"),
        ({"grace": -1.0}, "grace"),
        ({"server": "shared"}, "server"),
    ],
)
def test_options_that_cannot_be(options, error):
    with pytest.raises((ConfigError, ValueError), match=error):
        simulation({"name": "decoupled", **options}, 5, network_of(), CONSTANT)


def test_bytes():
    made = job(3, lambda rank, step: 1.0, 20)
    assert made.sent() == 2 * 3 * 4 * M  # three workers, four times, there and back


def test_a_worker_that_is_stopped_is_left_behind():
    """A rank with a pause of hours is evicted, and the others go on with a quorum of all that are left."""
    made = simulation(
        {"name": "decoupled", "H": 2, "quorum": 3, "on_lost_worker": "evict", "worker_timeout": 5.0},
        4,
        network_of(),
        CONSTANT,
        stragglers={"pause": {1: {"every": 7, "seconds": 1e4}}},
        train={"steps": 40, "snapshots": 2},
    )
    assert made.train() == "steps"
    (server,) = (trainer.algorithm.server for trainer in made.trainers if trainer.algorithm.server is not None)
    assert list(server.evicted) == [1] and server.applied >= 3 * 40 and made.env.now < 2e4


@pytest.mark.parametrize("H, steps", [(30, 40), (100, 40), (16, 48)])
def test_the_run_ends_after_as_many_samples_as_asked_for(H, steps):
    """Workers know how far it is between their pushes, too, and so does the learning rate."""
    sections = {"schedule": {"name": "cosine"}, "train": {"steps": steps, "snapshots": 2}}
    made = simulation({"name": "decoupled", "H": H}, 5, network_of(), CONSTANT, **sections)
    rates = set()
    for trainer in made.trainers[:4]:
        optimizer = trainer.optimizer
        update = optimizer.step
        optimizer.step = lambda o=optimizer, u=update: (u(), rates.add(o.param_groups[0]["lr"]))
    assert made.train() == "steps"
    assert [trainer.totals.steps for trainer in made.trainers] == [steps] * 4 + [0]
    assert len(rates) == steps


@pytest.mark.parametrize("seed", exhaustive_unless(lambda seed: seed < 2, range(8)))
@pytest.mark.parametrize("seconds", [0.15, 0.35])
def test_what_workers_take_for_granted_is_not_written_down(seconds, seed):
    """Where the clock ends a run before the first push, workers take steps of a slow one for granted that it never
    takes; what is written down is what the server has merged."""
    sections = {"train": {"seconds": seconds, "snapshots": 6}, "stragglers": {"slowdown": {2: 5.0}}, "seed": seed}
    algorithm = {"name": "decoupled", "H": 20, "quorum": 1, "grace": 0.0}
    made = simulation(algorithm, 5, network_of(), "lognormal:0.01,0.1", **sections)
    assert made.train() == "seconds"
    steps, (*workers, server) = [trainer.totals.steps for trainer in made.trainers], made.trainers
    if seconds < 0.2:
        assert max(worker.progress.samples for worker in workers) > 4 * sum(steps)
    curve = assemble(made.records()[0], {"reason": "seconds"}).curve["samples"]
    assert curve.tolist() == [moment.samples for moment in server.snapshots.moments]
    assert curve[-1] == 4 * sum(steps) and (np.diff(curve) >= 0).all()


def test_a_slow_worker_is_not_lost_while_it_takes_h_steps():
    sections = {"comm": {"timeout": 5 * 0.01}, "train": {"steps": 40, "snapshots": 2}}
    made = simulation({"name": "decoupled", "H": 20}, 3, network_of(), "constant:0.01", **sections)
    assert made.train() == "steps"


class TestDecoupled(AlgorithmTests):
    algorithm = "decoupled"
    options = {"H": 4, "outer_momentum": 0.3}
