"""For people with a training loop of their own: any algorithm as a torch optimizer."""

import atexit
import os
import sys
import warnings
from contextlib import contextmanager
from functools import partial

import torch
from pydantic import ValidationError

from grsgd import seeding
from grsgd.algorithms.context import RankContext
from grsgd.algorithms.find import find
from grsgd.comm.allreduce import broadcast
from grsgd.comm.backend import MpiBackend
from grsgd.comm.communicator import Communicator
from grsgd.comm.gpu.select import select_transport
from grsgd.comm.watchdog import within
from grsgd.config.complaints import describe
from grsgd.errors import ConfigError
from grsgd.job import launch
from grsgd.models.replica import Replica
from grsgd.own_loop.checks import InPlace, check_memory, check_optimizer
from grsgd.own_loop.gradients import Gradients
from grsgd.own_loop.last_steps import LastSteps
from grsgd.training import device as gpu

CHANGED = (
    "the gradient was changed between backward() and step() (clipping, GradScaler.unscale_): it is this rank's own "
    "until step(); call optimizer.synchronize() before, to change the mean of all ranks"
)

_unfinished: list["DistributedOptimizer"] = []


class DistributedOptimizer(torch.optim.Optimizer):
    """A torch optimizer whose ``step()`` also mixes the models of all ranks; made by `distribute`.

    Everything else is the wrapped optimizer's: ``param_groups``, ``state``, ``state_dict()``, learning-rate schedulers.
    """

    def __init__(self, optimizer, replica, gradients, algorithm, context):
        """``gradients``: those that ``algorithm`` sends, or None."""
        driver, uncounted = context.driver, context.uncounted_comm
        self.optimizer, self.replica, self.algorithm, self.driver = optimizer, replica, algorithm, driver
        self.finished = False
        self._gradients, self._uncounted_comm = gradients, uncounted
        self._in_place = InPlace(replica)
        self._last_steps = LastSteps(uncounted, algorithm.name) if algorithm.traits.synchronous else None
        self._steps = 0
        self._began = False
        self._step_under_way = False
        self._warned = False
        self._process = os.getpid()
        self._hooks = [replica.model.register_forward_pre_hook(BeforeForward(self._begin_step))]
        if self._last_steps is not None:
            driver.watch = self._last_steps.watch
        if algorithm.traits.in_background and uncounted.size > 1 and driver.progress_mode == "inline":
            self._hooks += replica.on_each_gradient(driver.poll)
        _unfinished.append(self)
        atexit.register(self._check_finished)

    param_groups = property(lambda self: self.optimizer.param_groups)
    state = property(lambda self: self.optimizer.state)
    defaults = property(lambda self: self.optimizer.defaults)

    def step(self, closure=None):
        """Update the model with its gradient and with the other ranks' models. A closure is called once, before.

        Raises RuntimeError after `finish`, if trained parameters of the model were given new memory, frozen or
        unfrozen, and if a rank waits for one that has finished with fewer steps (synchronous algorithms).
        """
        self._check()
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        if self._gradients is None:
            self._begin_step()  # for models whose forward was not called as a module
            self.driver.run(self.algorithm.step())
        else:
            if self._gradients.changed() and not self._gradients.reduced and not self._warned:
                self._warned = True
                warnings.warn(CHANGED, stacklevel=2)
            self._reduce()
            self.algorithm.update()
            self._gradients.forget()
        self._step_under_way = False
        self._steps += 1
        if self._last_steps is not None:
            self._last_steps.step = 0
        return loss

    def synchronize(self):
        """Replace the gradients by those that `step` will apply, the means over all ranks; on all ranks.

        For what looks at gradients or changes them between ``backward()`` and ``step()``: clipping,
        ``GradScaler.unscale_``. The next ``step()`` then sends nothing. Does nothing for algorithms that send models.
        """
        self._check()
        if self._gradients is not None:
            self._reduce()
            self._gradients.follow()

    @contextmanager
    def no_sync(self):
        """DDP's name for the accumulation of gradients; here nothing is sent before ``step()`` anyway."""
        yield

    def zero_grad(self, set_to_none: bool = True):
        self.optimizer.zero_grad(set_to_none)
        if self._gradients is not None:
            self._gradients.forget()

    def finish(self):
        """After the last step, on all ranks: take in what is still under way and make all models equal.

        Raises RuntimeError if trained parameters of the model were given new memory, frozen or unfrozen.
        """
        if self.finished:
            return
        self._in_place.check()
        for hook in self._hooks:
            hook.remove()
        if self._gradients is not None:
            self._gradients.close()
        announced = self._last_steps.announce(self._steps) if self._last_steps is not None else None
        self._start()
        self.driver.run(self.algorithm.drain())
        self.driver.run(self.algorithm.average())
        if announced is not None:
            self.driver.run(self._last_steps.wait_for_others(announced))
        self.driver.close()
        with within(self.driver.timeout, "freeing communicators"):
            for comm in (self.algorithm.comm, self._uncounted_comm):
                comm.free()
        self.finished = True
        _unfinished.remove(self)
        atexit.unregister(self._check_finished)

    def state_dict(self):
        return self.optimizer.state_dict()

    def load_state_dict(self, state_dict):
        self.optimizer.load_state_dict(state_dict)

    def add_param_group(self, param_group):
        raise ValueError("add all parameters to the optimizer before distribute()")

    def __reduce_ex__(self, protocol):
        raise TypeError("a distributed optimizer cannot be copied or saved: save its state_dict()")

    def __repr__(self):
        return f"{type(self).__name__}({self.algorithm.name}, {self.optimizer!r})"

    @property
    def _step_supports_amp_scaling(self) -> bool:
        """`GradScaler.step` asks this, and then decides by what gradients it finds whether it takes a step."""
        if self._gradients is not None and not self._gradients.reduced:
            raise RuntimeError(
                "GradScaler.step() with gradients of this rank alone: call optimizer.synchronize() after backward(), "
                "or a rank whose gradients overflow skips a step in which the others wait for it"
            )
        return False

    def _check(self):
        if self.finished:
            raise RuntimeError("step() after finish(): the ranks do not train together any more; distribute() again")
        self._in_place.check()

    def _reduce(self):
        if not self._gradients.taken():
            self._begin_step()
            self._gradients.collect()
            self.driver.run(self.algorithm.reduce())
            self._gradients.take()

    def _begin_step(self):
        if not self._step_under_way:
            self._start()
            self._step_under_way = True
            if self._last_steps is not None:
                self._last_steps.step = self._steps + 1
            self.driver.poll()
            self.driver.run(self.algorithm.before_backward())

    def _start(self):
        if not self._began:
            self._began = True
            self.driver.run(self.algorithm.start())

    def _check_finished(self):
        """A rank that leaves without `finish` would let the others wait for ever; one that it has forked is none."""
        mpi = self._uncounted_comm.backend.mpi
        if mpi.size > 1 and os.getpid() == self._process:
            print(f"grsgd: rank {mpi.rank} of {mpi.size} ended without optimizer.finish()", file=sys.stderr)
            launch.abort(mpi)


class BeforeForward:
    """Calls ``call()`` before every forward pass in training. A copy, as in a copied or saved model, calls nothing."""

    def __init__(self, call=None):
        self.call = call

    def __call__(self, model, inputs):
        if self.call is not None and model.training and torch.is_grad_enabled():
            self.call()

    def __reduce__(self):
        return BeforeForward, ()


def distribute(
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    algorithm: str,
    comm=None,
    *,
    seed: int = 0,
    timeout: float = 600.0,
    progress_mode: str = "auto",
    transfer: str = "auto",
    **options,
) -> DistributedOptimizer:
    """Train ``model`` on all ranks of ``comm`` (an mpi4py communicator; MPI_COMM_WORLD if None) together.

    ``algorithm`` and ``options`` are those that ``grsgd algorithms`` lists, or ``FILE.py:CLASS``. All ranks must call
    this, with models of one architecture, on a GPU each or all on the CPU; all start from rank 0's parameters.
    ``transfer`` is how arrays in GPU memory travel (`grsgd.comm.gpu.select`). From then on an uncaught exception on one
    rank ends the job. The model keeps its parameters, their memory, and which of them are trained, until ``finish()``,
    which is to be called after the last step; then the model may be distributed again.

    Raises ValueError for an unknown algorithm; for options it does not take; for parameters of the optimizer that are
    not the model's, LBFGS, and SparseAdam with an algorithm that sends gradients; for models that cannot be flattened
    (`Replica`), that have two parameters in one memory, or that are distributed already.
    """
    try:
        cls = find(algorithm)
    except ConfigError as error:
        raise ConfigError(f"algorithm {error}") from None
    if not cls.traits.supports_own_loop:
        raise ValueError(f"{algorithm} decides who computes what: only `grsgd train` can run it")
    mpi = comm if comm is not None else launch.world()
    launch.abort_on_error(mpi)
    chosen = options_of(cls, options)
    cls.check(chosen, mpi.size)
    check_optimizer(model, optimizer, cls.traits.sends_gradients)
    check_memory(model)
    taken = {id(p) for other in _unfinished for p in other.replica.model.parameters()}
    if any(id(p) in taken for p in model.parameters()):
        raise ValueError("the model, or a part of it, is distributed already: call finish() of that optimizer first")
    device = next((p.device for p in model.parameters()), torch.device("cpu"))
    use_device = partial(gpu.use, device)
    use_device()
    replica = Replica(model, flat_gradients=False)
    gradients = None
    if cls.traits.sends_gradients and mpi.size > 1:
        gradients = Gradients(replica)
        replica.grads = gradients.flat
    with within(timeout, f"distribute(), {algorithm}, to which all ranks must come"):
        sizes = mpi.allgather(replica.params.array.size)
        if len(set(sizes)) > 1:
            raise ValueError(f"the ranks' models have different numbers of parameters: {sizes}")
        backend = select_transport(MpiBackend(mpi, timeout), device, transfer, replica.nbytes).backend
        comm, uncounted = (Communicator(backend.dup()) for _ in range(2))
        driver = launch.driver(mpi, timeout, progress_mode, prepare_thread=use_device)
        give_all_the_same(replica, uncounted, driver)
    context = RankContext(comm, uncounted, driver, seed=seed)
    return DistributedOptimizer(optimizer, replica, gradients, cls(chosen, replica, optimizer, context), context)


def give_all_the_same(replica: Replica, comm: Communicator, driver):
    """Copy rank 0's model to all ranks."""
    for array in (replica.params.array, replica.buffers.array):
        driver.run(broadcast(comm, array))
    replica.note_buffers()
    outside = replica.outside()
    for mine, root in zip(outside, comm.backend.mpi.bcast([t.cpu() for t in outside]), strict=True):
        mine.copy_(root)


def options_of(algorithm, options: dict):
    """Return the checked options of an algorithm in a loop that grsgd did not write; raises ValueError."""
    if "progress" in options:
        raise ValueError("progress: is called progress_mode now")
    try:
        return algorithm.Options(**options)
    except ValidationError as error:
        raise ValueError(f"{algorithm.name}: {describe(error, algorithm.Options)}") from None


def shard(dataset: torch.utils.data.Dataset, comm=None, seed: int = 0) -> torch.utils.data.Subset:
    """This rank's part of a map-style data set: disjoint random parts, as equal as can be, that cover everything."""
    mpi = comm if comm is not None else launch.world()
    order = seeding.generator(seeding.Purpose.OWN_LOOP_SHARDS, seed).permutation(len(dataset))
    return torch.utils.data.Subset(dataset, order[mpi.rank :: mpi.size].tolist())
