"""Functions that run an algorithm step by step on the ranks of an MPI job; each rank has the loss of
`quadratic.Quadratic`."""

import numpy as np
import torch
from mpi4py import MPI

from grsgd.algorithms import ALGORITHMS
from grsgd.algorithms.context import RankContext
from grsgd.comm.backend import MpiBackend
from grsgd.comm.communicator import Communicator
from grsgd.models.replica import Replica
from grsgd.testing.quadratic import MOMENTUM, RATE, WEIGHT_DECAY, Quadratic


def start(world, driver, name, rate=RATE, **options):
    cls = ALGORITHMS[name]
    model = Quadratic(world.rank)
    replica = Replica(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=rate, momentum=MOMENTUM, weight_decay=WEIGHT_DECAY)
    comms = Communicator(MpiBackend(world.Dup())), Communicator(MpiBackend(world.Dup()))
    algorithm = cls(cls.Options(**options), replica, optimizer, RankContext(*comms, driver, seed=7))
    driver.run(algorithm.start())
    driver.run(algorithm.begin())
    if algorithm.traits.sends_early and world.size > 1:
        replica.on_gradient(algorithm.gradient_ready)
    return algorithm


def take_step(algorithm, step, in_between=lambda: None):
    algorithm.driver.run(algorithm.before_backward())
    in_between()
    algorithm.replica.zero_gradients()
    algorithm.replica.model(step).backward()
    algorithm.replica.collect_gradients()
    algorithm.driver.run(algorithm.step())


def models(world, algorithm):
    return np.array(world.allgather(algorithm.x.array.copy()))


def finish(algorithm):
    algorithm.driver.run(algorithm.drain())
    algorithm.driver.run(algorithm.average())


def nothing_is_left(world, algorithm):
    world.Barrier()
    comms = algorithm.comm, algorithm.uncounted_comm
    return not any(comm.backend.mpi.Iprobe(MPI.ANY_SOURCE, MPI.ANY_TAG) for comm in comms)
