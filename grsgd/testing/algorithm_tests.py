"""Tests that every algorithm must pass, in the class `AlgorithmTests`. Pytest runs the tests of this module for each
subclass of `AlgorithmTests`."""

import inspect
import subprocess
import tempfile
import unittest
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar

import numpy as np
import tomli_w
import torch

from grsgd.algorithms.base import Algorithm
from grsgd.algorithms.common_batch import CommonBatchAlgorithm
from grsgd.algorithms.find import find
from grsgd.config import Config, parse
from grsgd.mpi_environment import find_mpiexec, job_environment, module, without_launcher
from grsgd.simulator.compute import ComputeTime
from grsgd.simulator.simulation import Simulation
from grsgd.testing.quadratic import Job, shifted_job
from grsgd.testing.simulated import network_of

STEPS = 40
"""Number of steps that each rank takes in a test in simulated time."""
REAL_STEPS, KEPT_EVERY = 40, 10
"""Number of steps that each rank takes in a test under mpiexec, and number of steps from one checkpoint to the next."""
TIMEOUT = 300
"""Seconds after which a job under mpiexec is stopped, and its test fails."""
NETWORK = {"bandwidth": "1 mbit", "latency": "1 ms", "eager_bytes": 64}
"""Simulated network on which sending the model of `AlgorithmTests.configuration` takes about a tenth of the time of a
step."""


class AlgorithmTests:
    """Tests of properties that every algorithm must have. A subclass sets the attribute ``algorithm`` to the algorithm
    to test. Some tests run only if the subclass sets further attributes, such as ``keeps_mean``.

    In most tests the ranks are simulated and minimise quadratic losses (`Job`). The last two tests of the class train
    on real ranks, which are processes under mpiexec.
    """

    algorithm: ClassVar[str]
    """Name of the tested algorithm as in a configuration: ``mine.py:MyGossip``, ``package.module:Name``, a plug-in's
    name, or a built-in name."""
    options: ClassVar[dict] = {}
    """Options with which the algorithm is tested, by name."""
    ranks: ClassVar[tuple[int, ...]] = (2, 3, 5)
    """Numbers of ranks with which the algorithm is tested."""
    orders: ClassVar[int] = 8
    """Number of different orders of messages and steps in which a test runs the algorithm, for each number of ranks."""
    distance: ClassVar[float] = 0.3
    """Largest allowed distance of the mean model from the optimum after 40 steps (`STEPS`), as a fraction of the
    distance before training. A subclass sets a larger fraction for an algorithm that needs more steps because of its
    method."""
    keeps_mean: ClassVar[bool] = False
    """Whether exchanges keep the mean of all models, weighted by ``Algorithm.weight``, including models in messages
    under way. If ``keeps_mean`` is True, a test compares the mean of all models before and after training with
    learning rate 0."""
    mixing_matrix: ClassVar[Callable[[int, int], np.ndarray] | None] = None
    """Static method that returns the mixing matrix W, of shape [n, n], for the number of ranks n and the number of the
    step.

    A subclass sets ``mixing_matrix`` only if a step of all ranks consists of a local step and of X <- W X. Row i of X
    is the model of rank i."""
    mixes_first: ClassVar[bool] = False
    """Whether a step of an algorithm with ``mixing_matrix`` is X <- W X - rate G, with the gradients G at the models
    before the mixing. If ``mixes_first`` is False, a step is X <- W (X - rate G)."""

    # ---- tests in simulated time

    def test_all_steps_are_taken_and_nothing_is_left(self):
        for n in self.ranks:
            job = self.job(n).train(STEPS).average()
            taken = [len(trajectory) for trajectory in job.trajectories[: job.workers]]
            assert taken == [STEPS] * job.workers, f"{n} ranks have taken {taken} steps of {STEPS}"
            assert job.nothing_is_left(), f"{n} ranks: messages, or receives, are left at the end"
            apart = np.abs(job.X - job.X[0]).max()
            assert np.isfinite(job.X).all() and apart < 1e-12, f"{n} ranks: models are {apart:g} apart after average()"

    def test_it_trains(self):
        for n in self.ranks:
            job = self.job(n)
            begin, optimum = np.abs(job.X.mean(0) - 3.0).max(), 3.0
            job.train(STEPS).average()
            end = np.abs(job.X.mean(0) - optimum).max()
            limit = self.distance * begin
            assert end < limit, (
                f"{n} ranks: after {STEPS} steps the mean model is {end:.3g} from the optimum, expected less than "
                f"{limit:.3g}, the part distance = {self.distance:g} of the {begin:.3g} at the start: for an algorithm "
                "that is slower by its nature, set `distance` in the class of tests"
            )

    def test_no_order_of_messages_or_steps_stops_it(self):
        """Train with different orders of messages and of the ranks' steps. A deadlock raises the error Deadlock, whose
        message names the object for which each rank waits."""
        for n in self.ranks:
            for seed in range(self.orders):
                slow = {seed % n: 4.0} if seed % 2 else {}
                job = self.job(n, ComputeTime(1e-3, 0.5, seed, slow), seed).train(STEPS)
                assert job.nothing_is_left(), f"{n} ranks, order {seed}: messages, or receives, are left at the end"

    def test_a_run_is_repeated_exactly(self):
        for n in self.ranks:
            one, other = (self.job(n, ComputeTime(1e-3, 0.5, 1), 1).train(STEPS) for _ in range(2))
            assert (one.X == other.X).all() and one.sent() == other.sent(), f"{n} ranks: two runs of one seed differ"

    def test_synchronous_ranks_do_not_depend_on_times(self):
        if not self.traits.synchronous:
            skip("the algorithm is asynchronous")
        for n in self.ranks:
            one = self.job(n).train(STEPS).average()
            other = self.job(n, ComputeTime(1e-3, 0.5, 1), 1).train(STEPS).average()
            assert (one.X == other.X).all(), f"{n} ranks: the models depend on how long steps and messages take"

    def test_the_mean_of_all_models_is_kept(self):
        """Compare the mean of the ranks' models before and after training with learning rate 0. The models of the ranks
        differ before training."""
        if not self.keeps_mean:
            skip("keeps_mean is not set to True")
        for n in self.ranks:
            job = self.job(n, ComputeTime(1e-3, 0.5, 2), 2, rate=0.0)
            job.scatter()
            before = job.X.mean(0)
            job.train(STEPS)
            weights = np.array([algorithm.weight for algorithm in job.algorithms])
            assert abs(weights.sum() - n) < 1e-9, f"{n} ranks: the weights add up to {weights.sum():g}"
            apart = np.abs(weights @ job.X / n - before).max()
            assert apart < 1e-12, f"{n} ranks: the mean has moved by {apart:g}"

    def test_it_is_what_its_mixing_matrices_make(self):
        if self.mixing_matrix is None:
            skip("mixing_matrix is not set")
        for n in self.ranks:
            job = self.job(n, momentum=0.0, weight_decay=0.0)
            X = job.X
            job.train(STEPS, drain=False)
            for step in range(STEPS):
                W, change = self.mixing_matrix(n, step), job.rate(step) * job.problem.gradients(X, step)
                X = W @ X - change if self.mixes_first else W @ (X - change)
                found = np.array([trajectory[step] for trajectory in job.trajectories])
                apart = np.abs(found - X).max()
                assert apart < 1e-10, f"{n} ranks, step {step}: {apart:g} from the mixing matrices"

    def test_times_alone_are_the_times_of_training(self):
        """Compare the simulated times of training with the simulated times of the same run with ``--timing-only``."""
        if self.traits.depends_on_values:
            skip("the algorithm's messages depend on the models' values (traits.depends_on_values)")
        for n in self.ranks:
            one, other = (self.simulated(n, timing_only) for timing_only in (False, True))
            times = one.env.now, other.env.now
            assert times[0] == times[1], f"{n} ranks: {times[1]:g} s without gradients, {times[0]:g} s with them"
            for trained, timed in zip(one.trainers, other.trainers, strict=True):
                assert (trained.comm.traffic.sent == timed.comm.traffic.sent).all(), f"{n} ranks: other bytes"

    # ---- tests on real ranks

    def test_real_ranks_do_what_simulated_ones_do(self):
        """Train on real ranks. Train on real ranks. If the algorithm is synchronous, compare the final model with the
        final model of simulated ranks."""
        with tempfile.TemporaryDirectory() as folder:
            n = self.ranks[-1]
            model = self.train(Path(folder), n)
            if self.traits.synchronous:
                job = self.simulated(n)
                job.evaluate()
                for name, expected in job.trainers[0].replica.model.state_dict().items():
                    apart = (model[name] - expected).abs().max().item()
                    assert apart < 1e-5, f"{n} ranks: {name} is {apart:g} from the value of simulated ranks"

    def test_it_goes_on_from_a_checkpoint(self):
        """Train with checkpoints, and resume training from a checkpoint. If the algorithm is synchronous, the resumed
        run must end with the same model bit for bit as the first run."""
        if find(self.name).remembers is None:
            skip("the algorithm does not set `remembers`, so it has no checkpoints")
        with tempfile.TemporaryDirectory() as name:
            folder, n = Path(name), self.ranks[len(self.ranks) // 2]
            whole = self.train(folder, n, "--checkpoint", folder / "kept", "--every", KEPT_EVERY)
            again = self.train(folder, n, "--resume", folder / "kept")
            if self.traits.synchronous:
                for name in whole:
                    assert torch.equal(whole[name], again[name]), f"{n} ranks: {name} differs after going on"

    # ---- methods that the tests call

    @property
    def name(self) -> str:
        """Name of the tested algorithm, with the path of its file. If the file is not in the working directory, the
        file in the folder of the test class is used."""
        file, colon, wanted = self.algorithm.rpartition(":")
        beside = Path(inspect.getfile(type(self))).parent / file
        here = not file.endswith(".py") or Path(file).exists() or not beside.exists()
        return self.algorithm if here else f"{beside}{colon}{wanted}"

    @property
    def traits(self):
        cls: type[Algorithm] = find(self.name)
        return cls.traits_of(cls.Options(**self.options))

    def job(self, n: int, seconds=None, latencies: int | None = None, **more) -> Job:
        """Return a `Job` of ``n`` simulated ranks, made by `shifted_job`, whose quadratic losses have the optimum 3."""
        if issubclass(find(self.name), CommonBatchAlgorithm):
            skip("all ranks share a batch, and quadratics have none")
        return shifted_job(self.name, n, seconds, latencies, **more, **self.options)

    def configuration(self) -> dict:
        """Return the configuration of a run that trains a linear classifier of 34 parameters on generated images."""
        return {
            "algorithm": {"name": self.name, **self.options},
            "model": {"name": "mlp", "hidden": []},
            "data": {"name": "synthetic", "samples": 60, "shape": [1, 4, 4], "classes": 2, "batch_size": 4},
            "optimizer": {"lr": 0.05, "momentum": 0.9},
            "train": {"steps": REAL_STEPS, "snapshots": 4, "compute_seconds": 2e-3},
            "comm": {"timeout": 60.0},
            "device": "cpu",
        }

    def simulated(self, n: int, timing_only: bool = False) -> Simulation:
        """Train with `configuration` on ``n`` ranks in simulated time. Return the finished simulation."""
        config: Config = parse(self.configuration())
        simulation = Simulation(config, n, network_of(**NETWORK), "lognormal:0.01,0.5", timing_only)
        simulation.train()
        return simulation

    def train(self, folder: Path, n: int, *arguments) -> dict[str, torch.Tensor]:
        """Train with `configuration` on ``n`` ranks under mpiexec. Return the parameters of the final model, by
        name."""
        toml, model = folder / "run.toml", folder / "model.pt"
        toml.write_text(tomli_w.dumps(self.configuration()))
        command = [find_mpiexec(), "-n", n, *module("grsgd"), "train", toml, "--out", folder / "run.h5"]
        done = subprocess.run(
            [str(word) for word in (*command, "--save", model, *arguments)],
            env=without_launcher(job_environment()),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=TIMEOUT,
        )
        assert done.returncode == 0, f"{n} ranks: exit code {done.returncode}:\n{done.stdout}{done.stderr}"
        return torch.load(model, weights_only=True)


def skip(why: str):
    """Skip the test that is running, for the reason ``why``, in any test runner."""
    raise unittest.SkipTest(why)
