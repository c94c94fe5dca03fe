"""Own loops whose ranks have unequal numbers of batches, with workers that load them, and DDP's ``join``."""

import os
import tempfile

import pytest
import torch
import torch.distributed as gloo
from torch.nn.parallel import DistributedDataParallel

import grsgd
from tests.mpi.ranks.conftest import COUNT, WORLD
from tests.support.own_loop import loss, network, plain, vector
from tests.support.streams import SAMPLES, Stream, numbered

EPOCHS, TIMEOUT = 2, 20
LONGEST, SHORTEST = -(-SAMPLES // max(COUNT, 1)), SAMPLES // max(COUNT, 1)


@pytest.mark.parametrize(
    ("algorithm", "data", "workers", "how"),
    [
        ("ring_allreduce", "stream", 0, "join"),
        ("dpsgd", "stream", 2, "join"),
        ("diloco", "stream", 2, "even"),
        ("ring_allreduce", "numbered", 2, "loader"),
        ("dpsgd", "numbered", 0, "loader"),
        ("diloco", "stream", 0, "join"),
        ("diloco", "numbered", 2, "loader"),
        ("ring_allreduce", "stream", 2, "join"),
        ("dpsgd", "stream", 0, "even"),
    ],
)
def test_all_ranks_take_equally_many_steps(algorithm, data, workers, how):
    made = grsgd.loader(Stream() if data == "stream" else numbered(), 1, num_workers=workers)
    model = network(WORLD.rank)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    optimizer = grsgd.distribute(model, optimizer, algorithm, timeout=TIMEOUT)

    def epoch(batches):
        for (x,) in batches:
            optimizer.zero_grad()
            model(x).square().sum().backward()
            optimizer.step()

    for _ in range(EPOCHS):
        if how == "join":
            with optimizer.join():
                epoch(made)
        else:
            epoch(grsgd.even(made) if how == "even" else made)
    assert WORLD.allgather(optimizer.steps) == [EPOCHS * (SHORTEST if how == "even" else LONGEST)] * COUNT
    optimizer.finish()
    assert all(torch.equal(vector(model), other) for other in WORLD.allgather(vector(model)))
    assert vector(model).isfinite().all()


@pytest.mark.ranks(2, 3)
def test_as_with_join_of_ddp():
    """Without momentum, which DDP leaves behind on ranks that have no batches."""
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    with tempfile.TemporaryDirectory() as folder:
        store = WORLD.bcast(folder)
        gloo.init_process_group("gloo", init_method=f"file://{store}/store", rank=WORLD.rank, world_size=WORLD.size)
        theirs = network()
        wrapped = DistributedDataParallel(theirs)
        optimizer = torch.optim.SGD(theirs.parameters(), lr=0.1, weight_decay=0.1)
        with wrapped.join():
            loop(wrapped, optimizer)
        gloo.barrier()
        gloo.destroy_process_group()
    ours = network()
    optimizer = torch.optim.SGD(ours.parameters(), lr=0.1, weight_decay=0.1)
    optimizer = grsgd.distribute(ours, optimizer, "ring_allreduce", timeout=TIMEOUT)
    with optimizer.join():
        loop(ours, optimizer)
    torch.testing.assert_close(vector(ours), vector(theirs), rtol=1e-12, atol=1e-14)
    optimizer.finish()


def loop(model, optimizer):
    for k in range(2 + 2 * WORLD.rank):
        plain(model, optimizer, lambda k: loss(model, WORLD.rank, k), k)
