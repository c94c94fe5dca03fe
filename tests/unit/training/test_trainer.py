"""The trainer: how its time is split, which samples it takes, and how it ends."""

import inspect
import threading
from itertools import combinations
from types import SimpleNamespace

import pytest
import torch

from grsgd.training.recovery import Recovery
from grsgd.training.times import RankTotals
from grsgd.training.trainer import Trainer
from tests.support.training import simulation


def test_the_time_of_a_hook_is_split_into_three():
    """Ten seconds in a hook, of which two are waited and three are an update."""
    now = iter([100.0, 110.0])
    trainer = SimpleNamespace(
        driver=SimpleNamespace(clock=lambda: next(now), wait_seconds=50.0),
        optimizer=SimpleNamespace(seconds=70.0),
        totals=RankTotals(),
        recovery=Recovery(),
    )

    def hook():
        trainer.driver.wait_seconds += 2
        trainer.optimizer.seconds += 3
        yield "a message"

    assert list(Trainer.timed(trainer, hook)) == ["a message"]
    measured = trainer.totals
    found = measured.compute_seconds, measured.communicate_seconds, measured.wait_seconds
    assert found == (3.0, 5.0, 2.0)


@pytest.mark.parametrize("n, r", [(4, 1), (4, 2), (5, 3)])
def test_every_sample_of_a_common_batch_is_computed_r_times(n, r):
    job = simulation({"name": "cssgd", "r": r}, n)
    assert sum(trainer.gradients.samples for trainer in job.trainers) == r * n * 4
    for trainer in job.trainers:
        assert all(block.samples == block.end - block.begin > 0 for block in trainer.gradients.blocks)


def test_batches_are_closed_at_the_end():
    """However it ends: processes that decode images end with them."""
    for steps in (8, 10**6):
        job = simulation("dpsgd", 2, steps=steps)
        if steps > 8:
            job.trainers[1].on_step = lambda progress, loss, job=job: job.trainers[1].stop_signal.fail("broken")
        job.train()
        for trainer in job.trainers:
            blocks = trainer.gradients.blocks
            assert all(inspect.getgeneratorstate(block.batches) == inspect.GEN_CLOSED for block in blocks)


def test_ranks_with_the_same_data_take_it_in_orders_of_their_own():
    job = simulation("dpsgd", 3, data={"replication": 3})
    batches = [next(trainer.gradients.blocks[0].batches)[0] for trainer in job.trainers]
    assert not any(torch.equal(one, other) for one, other in combinations(batches, 2))


def test_a_step_that_is_broken_off_is_not_counted():
    """A worker that waits for its answer when the run is stopped."""
    job = simulation({"name": "parameter_server", "strategy": "bsp"}, 3, steps=50)
    worker, other = job.trainers[:2]

    def on_step(progress, loss):
        if other.totals.steps == 4:
            other.stop_signal.request = "enough"

    other.on_step = on_step
    assert job.train() == "enough"
    for trainer in (worker, other):
        applied = job.trainers[2].algorithm.server.strategy.clocks[trainer.comm.rank]
        assert trainer.totals.steps in (applied - 1, applied)
        assert trainer.totals.samples == 4 * trainer.totals.steps


@pytest.mark.parametrize("name", ["adpsgd", "gossip", "lasgd"])
def test_a_snapshot_is_a_copy_where_the_background_changes_the_model(name):
    job = simulation(name, 2)
    algorithm = job.trainers[0].algorithm
    with algorithm.lock:
        found = []
        taking = threading.Thread(target=lambda: found.append(algorithm.snapshot()))
        taking.start()
        taking.join(0.05)
        assert taking.is_alive(), "it waits until the background is done with the model"
    taking.join()
    ((params, buffers),) = found
    before = params.clone()
    algorithm.x.tensor.add_(1.0)
    assert torch.equal(params, before) and buffers is not algorithm.replica.buffers.tensor
