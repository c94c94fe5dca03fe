"""For people with a training loop of their own: any algorithm as a torch optimizer."""

import atexit
import sys
from functools import partial

import torch

from grsgd import gpu, launch
from grsgd.algorithms import ALGORITHMS
from grsgd.comm.allreduce import broadcast
from grsgd.comm.communicator import Communicator
from grsgd.replica import Replica
from grsgd.transfer import choose


class DistributedOptimizer(torch.optim.Optimizer):
    """A torch optimizer whose ``step()`` also mixes the models of all ranks; made by `distribute`.

    Everything else is the wrapped optimizer's: ``param_groups``, ``state``, ``state_dict()``, learning-rate schedulers.
    """

    def __init__(self, optimizer, replica, algorithm, driver):
        self.optimizer, self.replica, self.algorithm, self.driver = optimizer, replica, algorithm, driver
        self.finished = False
        self._began = False
        self._step_under_way = False
        self._hook = replica.model.register_forward_pre_hook(self._before_forward)

    param_groups = property(lambda self: self.optimizer.param_groups)
    state = property(lambda self: self.optimizer.state)
    defaults = property(lambda self: self.optimizer.defaults)

    def step(self, closure=None):
        """Update the model with its gradient and with the other ranks' models. A closure is called once, before."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self._begin_step()  # for models whose forward was not called as a module
        self.replica.collect_gradients()
        self.driver.run(self.algorithm.step())
        self._step_under_way = False
        return loss

    def zero_grad(self, set_to_none: bool = True):
        self.replica.zero_gradients()

    def finish(self):
        """After the last step, on all ranks: take in what is still under way and make all models equal."""
        if not self.finished:
            self._hook.remove()
            self._start()
            self.driver.run(self.algorithm.drain())
            self.driver.run(self.algorithm.average())
            self.driver.close()
            self.finished = True

    def state_dict(self):
        return self.optimizer.state_dict()

    def load_state_dict(self, state_dict):
        self.optimizer.load_state_dict(state_dict)

    def add_param_group(self, param_group):
        raise ValueError("add all parameters to the optimizer before distribute()")

    def __repr__(self):
        return f"{type(self).__name__}({self.algorithm.name}, {self.optimizer!r})"

    def _before_forward(self, model, inputs):
        if model.training and torch.is_grad_enabled():
            self._begin_step()

    def _begin_step(self):
        if not self._step_under_way:
            self._start()
            self._step_under_way = True
            self.driver.poll()
            self.driver.run(self.algorithm.before_backward())

    def _start(self):
        if not self._began:
            self._began = True
            self.algorithm.start()


def distribute(
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    algorithm: str,
    comm=None,
    *,
    seed: int = 0,
    timeout: float = 600.0,
    progress: str = "auto",
    transfer: str = "auto",
    **options,
) -> DistributedOptimizer:
    """Train ``model`` on all ranks of ``comm`` (an mpi4py communicator; MPI_COMM_WORLD if None) together.

    ``algorithm`` and ``options`` are those that ``grsgd algorithms`` lists. All ranks must call this, with models of
    one architecture, on a GPU each or all on the CPU; all start from rank 0's parameters. ``transfer`` is how arrays in
    GPU memory travel (`grsgd.transfer.choose`). From then on an uncaught exception on one rank ends the job.
    Call ``finish()`` on the result after the last step.

    Raises ValueError for an unknown algorithm, for options it does not take, and for models that cannot be flattened
    (`grsgd.replica.Replica`); pydantic's ValidationError, which is a ValueError, names the option.
    """
    if algorithm not in ALGORITHMS:
        raise ValueError(f"unknown algorithm {algorithm!r}; there are {', '.join(sorted(ALGORITHMS))}")
    cls = ALGORITHMS[algorithm]
    if not cls.for_any_loop:
        raise ValueError(f"{algorithm} decides who computes what: only `grsgd train` can run it")
    chosen = cls.Options(**options)
    mpi = comm if comm is not None else launch.world()
    launch.abort_on_error(mpi)
    cls.check(chosen, mpi.size)
    device = next((p.device for p in model.parameters()), torch.device("cpu"))
    use_device = partial(gpu.use, device)
    use_device()
    replica = Replica(model, flat_gradients=cls.sends_gradients and mpi.size > 1)
    sizes = mpi.allgather(replica.params.array.size)
    if len(set(sizes)) > 1:
        raise ValueError(f"the ranks' models have different numbers of parameters: {sizes}")
    device_end = choose(mpi, device, transfer, replica.nbytes).device_end
    aside = Communicator(mpi.Dup(), device_end)
    driver = launch.driver(mpi, timeout, progress, prepare_thread=use_device)
    for array in (replica.params.array, replica.buffers.array):
        driver.run(broadcast(aside, array))
    replica.note_buffers()
    for mine, root in zip(replica.outside(), mpi.bcast([t.cpu() for t in replica.outside()]), strict=True):
        mine.copy_(root)
    if cls.in_background and mpi.size > 1 and driver.progress == "inline":
        replica.on_each_gradient(driver.poll)
    chosen = cls(chosen, replica, optimizer, Communicator(mpi.Dup(), device_end), aside, driver, seed)
    distributed = DistributedOptimizer(optimizer, replica, chosen, driver)
    atexit.register(_check_finished, distributed, mpi)
    return distributed


def _check_finished(distributed, mpi):
    """A rank that leaves without `finish` would let the others wait for ever."""
    if not distributed.finished and mpi.size > 1:
        print(f"grsgd: rank {mpi.rank} of {mpi.size} ended without optimizer.finish()", file=sys.stderr)
        launch.abort(mpi)


def shard(dataset: torch.utils.data.Dataset, comm=None, seed: int = 0) -> torch.utils.data.Subset:
    """This rank's part of a map-style data set: disjoint random parts, as equal as can be, that cover everything."""
    mpi = comm if comm is not None else launch.world()
    order = torch.randperm(len(dataset), generator=torch.Generator().manual_seed(seed))
    return torch.utils.data.Subset(dataset, order[mpi.rank :: mpi.size].tolist())
