"""Steps that a rank without further batches takes together with the other ranks, as within ``join`` of torch's DDP."""

import io
import sys
from contextlib import contextmanager

import numpy as np
import torch

from grsgd.algorithms.equal_tensors import LONGEST
from grsgd.comm.allreduce import broadcast, halving_doubling_allreduce
from grsgd.comm.allreduce.pieces import cut

MANY = 4
"""Largest number of ranks that the printed line about steps without batches names."""


class Joining:
    """Count, before each step within ``join()``, of the ranks that have a batch for the step.

    The ranks count with an all-reduce of one number. This all-reduce is not part of the measured traffic.
    """

    def __init__(self, comm, driver):
        self.comm, self.driver = comm, driver
        self.is_open = False
        """Whether this rank is within ``join()`` with an algorithm whose ranks need equal numbers of steps."""
        self.all_have_batches = True
        """Whether all ranks have a batch for the present step."""
        self.is_told = False
        """Whether this rank has already called `tell` for steps without batches."""

    def has_batch(self):
        """Take part, within ``join()``, in the count of ranks that have a batch for the present step. This rank has a
        batch."""
        if self.is_open:
            self.any_has_a_batch(True)

    def any_has_a_batch(self, here: bool) -> bool:
        """Return whether any rank has a batch for the present step. ``here`` says whether this rank has a batch."""
        ranks = self.sums([here])[0]
        self.all_have_batches = ranks == self.comm.size
        return ranks > 0

    def sums(self, numbers) -> np.ndarray:
        """Return the sums of ``numbers`` over all ranks, as a float64 array."""
        found = np.array(numbers, np.float64)
        self.driver.run(halving_doubling_allreduce(self.comm, found))
        return found

    def tell(self, steps: np.ndarray):
        """Print once, on rank 0, the number of steps that each rank took without a batch. ``steps`` has each rank's
        number of steps with a batch."""
        if self.comm.rank == 0 and not self.is_told:
            missing = [f"rank {rank}: {steps.max() - own:g}" for rank, own in enumerate(steps) if own < steps.max()]
            more = f" and {len(missing) - MANY} more ranks" if len(missing) > MANY else ""
            print(
                f"grsgd: join(): {steps.max():g} steps; steps without a batch: {', '.join(missing[:MANY])}{more}",
                file=sys.stderr,
                flush=True,
            )
        self.is_told = True


@contextmanager
def joined(optimizer):
    """Let a rank whose loop in the block has ended take further steps, until the loops of all ranks have ended.

    ``optimizer`` is a `DistributedOptimizer`. If the block raises an exception, this rank takes no further steps.
    """
    joining = optimizer.joining
    if joining.is_open:
        raise RuntimeError("join() within join(): end the first block before the second one begins")
    traits = optimizer.algorithm.traits
    if traits.decides_who_computes and traits.synchronous:
        name = optimizer.algorithm.name
        raise RuntimeError(f"join() with {name}: all ranks compute parts of the same batches, so none has more batches")
    if joining.comm.size == 1 or not traits.synchronous:
        yield
        return
    optimizer.meet("in join()")
    joining.is_open, before = True, optimizer.steps
    try:
        yield
        if not optimizer.finished:
            own = optimizer.steps - before
            while joining.any_has_a_batch(False):
                optimizer.step_without_batch()
            end_alike(optimizer, own)
    finally:
        joining.is_open, joining.all_have_batches = False, True


def end_alike(optimizer, own: int):
    """Make the ranks equal at the end of ``join()``, if the ranks took different numbers of steps with batches. This
    rank took ``own`` steps with batches. All ranks must call this function.

    If the numbers differ and the algorithm sends gradients, all ranks get the parameters and the optimizer's state of
    the rank with the most steps. If several ranks took the most steps, the rank with the lowest number is used. The
    other ranks cannot apply the mean gradients themselves, because a script may clip or scale gradients before it
    applies them. Each rank keeps its own buffers.
    """
    joining = optimizer.joining
    steps = np.zeros(joining.comm.size)
    steps[joining.comm.rank] = own
    steps = joining.sums(steps)
    if steps.min() == steps.max():
        return
    joining.tell(steps)
    optimizer.times.add_without_batch(int(steps.max()) - own)
    if optimizer.algorithm.traits.sends_gradients:
        root = int(steps.argmax())
        joining.driver.run(broadcast(joining.comm, optimizer.replica.params.array, root=root))
        optimizer.replica.settle()
        joining.driver.run(copy_state(joining.comm, optimizer.optimizer, root))


def copy_state(comm, optimizer: torch.optim.Optimizer, root: int):
    """Schedule that copies the state and the parameter groups of a torch optimizer from rank ``root`` to all ranks."""
    content = io.BytesIO()
    if comm.rank == root:
        torch.save(optimizer.state_dict(), content)
    size = np.array([content.tell()], np.int64)
    yield from broadcast(comm, size, root=root)
    received = np.frombuffer(content.getvalue(), np.uint8).copy() if comm.rank == root else np.empty(size[0], np.uint8)
    for piece in cut(received, LONGEST):
        yield from broadcast(comm, piece, root=root)
    if comm.rank != root:  # torch.load may run code of the sender, but the ranks of a job trust each other
        optimizer.load_state_dict(torch.load(io.BytesIO(received), map_location="cpu", weights_only=False))
