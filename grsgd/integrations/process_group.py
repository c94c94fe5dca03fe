"""Process group of torch.distributed that uses MPI's collective calls, for libraries that call torch.distributed."""

import os
import sys

import torch
import torch.distributed as dist

from grsgd.errors import ConfigError
from grsgd.integrations import collective
from grsgd.job import launch
from grsgd.own_loop.ranks import world

BACKEND = "grsgd_mpi"
"""Name of the backend of the process group in torch.distributed."""
ALL_TO_ALL = "all_gather(), and let each rank take its part"
BETWEEN_TWO = "Send() and Recv() of mpi4py's MPI.COMM_WORLD"
PARTS_OF_SUM = "all_reduce(), and let each rank take its part"
REFUSED = {
    "reduce": ("reduce", "all_reduce()"),
    "gather": ("gather", "all_gather(), or all_gather_object() for objects"),
    "scatter": ("scatter", "broadcast(), or broadcast_object_list() for objects, and let each rank take its part"),
    "reduce_scatter": ("reduce_scatter", PARTS_OF_SUM),
    "reduce_scatter_single": ("reduce_scatter_tensor", PARTS_OF_SUM),
    "_reduce_scatter_base": ("reduce_scatter_tensor", PARTS_OF_SUM),
    "reduce_scatter_single_coalesced": ("reduce_scatter_tensor", PARTS_OF_SUM),
    "reduce_scatter_tensor_coalesced": ("reduce_scatter_tensor", PARTS_OF_SUM),
    "alltoall": ("all_to_all", ALL_TO_ALL),
    "all_to_all_single": ("all_to_all_single", ALL_TO_ALL),
    "alltoall_base": ("all_to_all_single", ALL_TO_ALL),
    "allreduce_coalesced": ("all_reduce_coalesced", "all_reduce() for each tensor"),
    "allgather_coalesced": ("all_gather_coalesced", "all_gather() for each tensor"),
    "all_gather_single_coalesced": ("all_gather_into_tensor", "all_gather_into_tensor() for each tensor"),
    "allgather_into_tensor_coalesced": ("all_gather_into_tensor", "all_gather_into_tensor() for each tensor"),
    "send": ("send", BETWEEN_TWO),
    "recv": ("recv", BETWEEN_TWO),
    "recv_anysource": ("recv", BETWEEN_TWO),
}
"""Methods of torch's process groups that `MpiProcessGroup` refuses. Each value is the function of torch.distributed
that calls the method, and the call to use instead. Different versions of torch name some methods differently."""


class MpiProcessGroup(dist.ProcessGroup):
    """Process group of all ranks of the MPI job, for metrics, barriers and small objects; grsgd does not send gradients
    with this process group.

    Raises ConfigError for a group of only some ranks, because all ranks must make each collective call. The methods in
    `REFUSED` raise ConfigError.
    """

    def __init__(self, rank: int, size: int):
        if size != world().size:
            raise ConfigError(
                f"torch.distributed.new_group() of {size} of {world().size} ranks: grsgd's process group has all "
                "ranks: leave the argument ranks out, or call mpi4py's MPI.COMM_WORLD.Split()"
            )
        super().__init__(rank, size)

    def getBackendName(self):
        return BACKEND

    def allgather(self, outputs, inputs, opts=None):
        for places, tensor in zip(outputs, inputs, strict=True):
            for place, found in zip(places, collective.all_gather(tensor), strict=True):
                place.copy_(found)
        return done(outputs)

    def _allgather_base(self, output, tensor, opts=None):
        output.copy_(torch.cat([found.flatten() for found in collective.all_gather(tensor)]).view(output.shape))
        return done(output)

    all_gather_single = _allgather_base

    def allreduce(self, tensors, opts):
        for tensor in tensors:
            tensor.copy_(collective.reduce(tensor, opts.reduceOp.op))
        return done(tensors)

    def broadcast(self, tensors, opts):
        for tensor in tensors:
            tensor.copy_(collective.broadcast(tensor.cpu().clone(), opts.rootRank))
        return done(tensors)

    def barrier(self, opts=None):
        collective.barrier()
        return done(None)


def refusal(function: str, remedy: str):
    """Return a method that raises ConfigError, for the call of torch.distributed named ``function``. ``remedy`` is the
    call to use instead."""

    def refuse(self, *arguments, **named):
        raise ConfigError(f"torch.distributed.{function}(): grsgd's process group lacks this call: use {remedy}")

    return refuse


for _method, _words in REFUSED.items():
    setattr(MpiProcessGroup, _method, refusal(*_words))


def done(result):
    """Return a completed ``Work`` object of torch.distributed with the result ``result``."""
    future = torch.futures.Future()
    future.set_result(result)
    return torch._C._distributed_c10d._create_work_from_future(future)


def start():
    """Start MPI, and make MPI's ranks the processes that torch.distributed knows. All ranks must call this function.

    Libraries that look for a launcher's environment variables, such as Accelerate, then find MPI's ranks, and start no
    process group of their own. Has no effect if torch.distributed already has a process group.
    """
    mpi = world()
    if dist.is_initialized():
        return
    local_rank, local_ranks = launch.local_ranks(mpi)
    found = {"RANK": mpi.rank, "WORLD_SIZE": mpi.size, "LOCAL_RANK": local_rank, "LOCAL_WORLD_SIZE": local_ranks}
    os.environ.update({name: str(value) for name, value in found.items()})
    os.environ.setdefault("MASTER_ADDR", "localhost")  # Accelerate requires an address, but nothing connects to it
    if not torch.cuda.is_available():
        os.environ.setdefault("ACCELERATE_USE_CPU", "true")  # without this, Accelerate finds only ranks on GPUs
    dist.Backend.register_backend(
        BACKEND, lambda store, rank, size, limit: MpiProcessGroup(rank, size), devices=["cpu", "cuda"]
    )
    hook = sys.excepthook
    dist.init_process_group(BACKEND, rank=mpi.rank, world_size=mpi.size, store=dist.HashStore())
    sys.excepthook = hook  # torch's hook prints after grsgd's hook, which ends the process, so nothing would be printed
