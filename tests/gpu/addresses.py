"""On every rank: the addresses of parameters and gradients, as torch and CuPy see them, before and after steps and a
broadcast, by each of the transfers given."""

import sys

import torch
from torch.nn.functional import cross_entropy

from grsgd.comm.allreduce import broadcast, ring_allreduce
from grsgd.comm.backend import MpiBackend
from grsgd.comm.communicator import Communicator
from grsgd.comm.gpu.select import select_transport
from grsgd.errors import ConfigError
from grsgd.job import launch
from grsgd.models import zoo as models
from grsgd.models.replica import Replica
from grsgd.training import device as gpu


def main():
    mpi = launch.world()
    launch.abort_on_error(mpi)
    device = gpu.pick_device("cuda", launch.local_ranks(mpi)[0])
    gpu.use(device)
    driver = launch.driver(mpi, 60.0, "inline")
    for way in sys.argv[1:]:
        torch.manual_seed(mpi.rank)
        replica = Replica(models.build("cnn", (1, 28, 28), 10).to(device))
        optimizer = torch.optim.SGD(replica.model.parameters(), lr=0.1, momentum=0.9)
        try:
            comm = Communicator(select_transport(MpiBackend(mpi), device, way, replica.nbytes).backend.dup())
        except ConfigError:
            continue
        before = addresses(replica)
        driver.run(broadcast(comm, replica.params.array))
        assert addresses(replica) == before, f"{way}: a broadcast"
        for _ in range(2):
            replica.zero_gradients()
            x, y = torch.randn(8, 1, 28, 28, device=device), torch.randint(10, (8,), device=device)
            cross_entropy(replica.model(x), y).backward()
            replica.collect_gradients()
            assert addresses(replica) == before, f"{way}: a gradient"
            driver.run(ring_allreduce(comm, replica.grads.array))
            assert addresses(replica) == before, f"{way}: an all-reduce"
            optimizer.step()
            assert addresses(replica) == before, f"{way}: an optimizer step"
        sums = mpi.allgather(replica.params.tensor.double().sum().item())
        assert len(set(sums)) == 1, f"{way}: models differ: {sums}"


def addresses(replica) -> list[int]:
    """Of the flat arrays as CuPy and torch see them, and of every parameter and gradient."""
    assert replica.params.array.data.ptr == replica.params.tensor.data_ptr() == first(replica).data_ptr()
    assert replica.grads.array.data.ptr == replica.grads.tensor.data_ptr() == first(replica).grad.data_ptr()
    return [place for p in replica.model.parameters() for place in (p.data_ptr(), p.grad.data_ptr())]


def first(replica) -> torch.Tensor:
    return next(replica.model.parameters())


if __name__ == "__main__":
    main()
