"""Training in simulated time against training on real MPI: the same numbers."""

import time

import pytest
import torch

from grsgd.algorithms import ALGORITHMS
from grsgd.algorithms.context import RankContext
from grsgd.comm.backend import MpiBackend
from grsgd.comm.communicator import Communicator
from grsgd.comm.stop_signal import StopSignal
from grsgd.config import parse
from grsgd.errors import ConfigError
from grsgd.simulator.calibration.exchanges import BATCHES_BESIDE, EXCHANGES_BESIDE, exchanges_beside
from grsgd.simulator.calibration.messages import EXCHANGES
from grsgd.simulator.network import NetworkSpec
from grsgd.simulator.simulation import Simulation
from grsgd.training.inputs import build_model, load_data
from grsgd.training.trainer import Trainer

SYNCHRONOUS = sorted(name for name, algorithm in ALGORITHMS.items() if algorithm.traits.synchronous)


def config(name):
    return parse(
        {
            "algorithm": {"name": name},
            "model": {"name": "mlp", "hidden": [8]},
            "data": {"name": "synthetic", "samples": 200, "shape": [1, 6, 6], "classes": 4, "batch_size": 8},
            "optimizer": {"lr": 0.05, "momentum": 0.9},
            "train": {"steps": 25, "snapshots": 5},
            "device": "cpu",
            "seed": 3,
        }
    )


def trained(world, driver, config) -> Trainer:
    """This rank's trainer after a run on real MPI."""
    dataset = load_data(config)
    model = build_model(config, dataset, torch.device("cpu"))
    comm, uncounted, for_stop = (Communicator(MpiBackend(world.Dup())) for _ in range(3))
    context = RankContext(comm, uncounted, driver, StopSignal(for_stop), config.seed)
    trainer = Trainer(config, dataset, model, context)
    driver.run(trainer.broadcast_initial_model())
    world.Barrier()
    assert driver.run(trainer.train()) == "steps"
    return trainer


@pytest.mark.parametrize("name", SYNCHRONOUS)
@pytest.mark.parametrize("eager_bytes", [0, 65536])
def test_the_simulated_model_is_the_real_one(world, driver, name, eager_bytes):
    """Bit for bit, and so are losses and traffic."""
    chosen = config(name)
    try:
        chosen.check_ranks(world.size)
    except ConfigError:
        pytest.skip(f"{name} refuses {world.size} ranks")
    real = trained(world, driver, chosen)
    network = NetworkSpec(bandwidth="inf bit", latency="0 s", eager_bytes=eager_bytes)
    simulation = Simulation(chosen, world.size, network, "constant:0.01")
    assert simulation.train() == "steps"
    simulated = simulation.trainers[world.rank]
    assert simulated.comm.rank == world.rank
    assert torch.equal(simulated.replica.params.tensor, real.replica.params.tensor)
    assert torch.equal(simulated.replica.buffers.tensor, real.replica.buffers.tensor)
    assert [moment.train_loss for moment in simulated.snapshots.moments] == [
        moment.train_loss for moment in real.snapshots.moments
    ]
    for what in ("sent", "messages", "headers"):
        assert (getattr(simulated.comm.traffic, what) == getattr(real.comm.traffic, what)).all()
    assert simulated.comm.traffic.sent_once == real.comm.traffic.sent_once
    assert simulated.totals.steps == real.totals.steps == 25


class CountedSends:
    """Communicator that counts the messages it sends."""

    def __init__(self, comm: Communicator):
        self._comm, self.sent = comm, 0

    def Isend(self, *args):
        self.sent += 1
        return self._comm.Isend(*args)

    def __getattr__(self, name):
        return getattr(self._comm, name)


@pytest.mark.ranks(2, 3)
def test_exchanges_beside_computing_end_inline_and_go_on_within_steps_in_a_thread(comm, driver):
    """Inline a thread helps only after some milliseconds without a look, so a step may or may not send messages."""
    counted, sent_within = CountedSends(comm), []

    def step():
        before = counted.sent
        time.sleep(10e-3)
        sent_within.append(counted.sent - before)

    begin = time.perf_counter()
    found = exchanges_beside(driver, counted, step)
    whole = time.perf_counter() - begin
    assert found.shape == (BATCHES_BESIDE,) and found.sum() * EXCHANGES_BESIDE < whole
    assert counted.sent == EXCHANGES + BATCHES_BESIDE * EXCHANGES_BESIDE
    assert driver.progress_mode == "inline" or any(sent_within)
