"""Collective calls for small tensors and objects between the ranks of a script, with a time limit."""

from functools import cache

import numpy as np
import torch

from grsgd.comm.watchdog import within
from grsgd.errors import ConfigError
from grsgd.integrations.buffers import empty, on_host, outline, pieces
from grsgd.own_loop.ranks import world

SECONDS = 1800.0
"""Longest wait for the other ranks, in seconds, for a script that sets no ``timeout``. The limit is long, because one
rank may prepare data while the other ranks wait."""
SMALL_BYTES = 4096
"""Largest size of a tensor, in bytes, that is sent in the same message as its shape."""
REDUCTIONS = {"sum": np.sum, "mean": np.mean, "avg": np.mean, "max": np.max, "min": np.min, "product": np.prod}
"""Functions that reduce the tensors of all ranks, by the name that a user gives to `reduce`."""


class Limit:
    """Holder of ``seconds``, the longest wait of this process for the other ranks."""

    seconds = SECONDS


def wait_at_most(seconds: float | None):
    """Set the longest wait of this module's calls for the other ranks to ``seconds``; None means `SECONDS`."""
    Limit.seconds = SECONDS if seconds is None else seconds


@cache
def communicator():
    """Return the communicator of all ranks that only this module uses. All ranks must make the first call at once."""
    mpi = world()
    with within(Limit.seconds, "making a communicator for metrics and barriers"):
        return mpi.Dup()


def barrier(name: str | None = None):
    """Wait until all ranks have called this function. ``name`` names the barrier in error messages."""
    comm = communicator()
    with within(Limit.seconds, f"barrier {name or 'without a name'}"):
        comm.Barrier()


def broadcast(thing, root: int = 0):
    """Return the object ``thing`` of rank ``root``, on all ranks. The object must be picklable."""
    comm = communicator()
    with within(Limit.seconds, f"a broadcast of rank {root}"):
        return comm.bcast(thing, root)


def gather(thing) -> list | None:
    """Return, on rank 0, the objects ``thing`` of all ranks in rank order; None on other ranks. Tensors arrive on the
    CPU."""
    comm = communicator()
    sent, tensors = outline(thing)
    with within(Limit.seconds, "gathering objects on rank 0"):
        outlines = comm.gather(sent)
    if comm.rank:
        for tensor in tensors:
            with within(Limit.seconds, "sending a tensor to rank 0"):
                for piece in pieces(on_host(tensor)):
                    comm.Send(piece, 0)
        return None
    gathered = [thing]
    for rank, sent in enumerate(outlines[1:], 1):
        found, tensors = empty(sent)
        for tensor in tensors:
            with within(Limit.seconds, f"receiving a tensor of rank {rank}"):
                for piece in pieces(tensor):
                    comm.Recv(piece, rank)
        gathered.append(found)
    return gathered


def all_gather_objects(thing) -> list:
    """Return, on all ranks, the objects ``thing`` of all ranks in rank order. The objects must be picklable."""
    comm = communicator()
    with within(Limit.seconds, "gathering objects on all ranks"):
        return comm.allgather(thing)


def all_gather(tensor: torch.Tensor) -> list[torch.Tensor]:
    """Return the tensors of all ranks in rank order, on the device of ``tensor``. The tensors' shapes may differ."""
    comm = communicator()
    own = on_host(tensor).clone()  # of a view without clone(), pickle would write the whole array
    with within(Limit.seconds, "gathering tensors of all ranks"):
        headers = comm.allgather((tuple(own.shape), own.dtype, own if own.nbytes <= SMALL_BYTES else None))
    gathered = []
    for rank, (shape, dtype, found) in enumerate(headers):
        if found is None:
            found = own if rank == comm.rank else torch.empty(shape, dtype=dtype)
            with within(Limit.seconds, f"receiving a tensor of rank {rank}"):
                for piece in pieces(found):
                    comm.Bcast(piece, rank)
        gathered.append(found.to(tensor.device))
    return gathered


def stack(tensor: torch.Tensor, with_gradients: bool = False) -> torch.Tensor:
    """Return the tensors of all ranks, which must have equal shapes, as one tensor of shape [ranks, ...].

    Raises ConfigError if ``with_gradients`` is set for a tensor that requires a gradient, because no gradient passes
    between ranks.
    """
    if with_gradients and tensor.requires_grad and torch.is_grad_enabled():
        raise ConfigError("all_gather(sync_grads=True): grsgd sends no gradients of gathered tensors: leave it out")
    return torch.stack(all_gather(tensor))


def reduce(tensor: torch.Tensor, reduction) -> torch.Tensor:
    """Return one tensor, reduced from the tensors of all ranks, in the dtype of ``tensor``. All ranks get the same
    bits.

    ``reduction`` is one of `REDUCTIONS`, or the member of torch's ``ReduceOp`` with this name. None means the mean. The
    mean of whole numbers has the default floating-point dtype. Truth values are reduced as whole numbers. Raises
    ConfigError for another reduction.
    """
    name = str(reduction or "mean").rpartition(".")[2].lower()
    if name not in REDUCTIONS:
        raise ConfigError(f"reduction {name!r} of a metric: allowed: {', '.join(REDUCTIONS)}")
    stacked = torch.stack(all_gather(tensor))
    dtype = stacked.dtype
    if REDUCTIONS[name] is np.mean and not stacked.is_floating_point():
        dtype = torch.get_default_dtype()
    elif dtype == torch.bool:
        dtype = torch.int64
    wide = dtype if dtype.itemsize > 2 or not dtype.is_floating_point else torch.float32  # NumPy lacks bfloat16
    reduced = torch.from_numpy(np.asarray(REDUCTIONS[name](stacked.cpu().to(wide).numpy(), axis=0)))
    return reduced.to(tensor.device, dtype)
