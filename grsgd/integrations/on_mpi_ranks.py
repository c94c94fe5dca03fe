"""Common base class of the strategies for Lightning and Fabric: devices, collective calls and optimizers of MPI
ranks."""

import platform
from collections import Counter
from collections.abc import Sequence

import torch

from grsgd.errors import ConfigError
from grsgd.integrations import algorithms, collective
from grsgd.integrations.devices import device_of
from grsgd.integrations.libraries import needed
from grsgd.own_loop.distribute import distribute
from grsgd.own_loop.distributed_optimizer import DistributedOptimizer

with needed("lightning"):
    from lightning.fabric.utilities.rank_zero import rank_zero_warn

KEY = "grsgd"
"""Key in a checkpoint under which the states of all ranks are stored."""
PLAIN = "state", "param_groups"
"""Keys that the ``state_dict()`` of every torch optimizer has."""


class OnMpiRanks:
    """Part of a strategy, for a process that is one of several MPI ranks. The strategy's other base class is
    Lightning's."""

    algorithm: str
    """Name of the algorithm of grsgd with which the ranks train."""
    options: dict
    """Options of the algorithm and of `grsgd.distribute`, by name."""
    num_nodes = _num_nodes = 1
    """Number of hosts that the user has given to ``Trainer`` (as ``num_nodes``) or to ``Fabric`` (as
    ``_num_nodes``)."""

    @property
    def root_device(self) -> torch.device:
        return device_of(self.local_rank, self.parallel_devices)

    def warn_of_devices(self):
        """Warn if the user has given Lightning other numbers of devices or hosts than the job has. All ranks must call
        this method.

        The number of devices is compared with the number of ranks on this host, unless ``devices="auto"`` may have
        meant the host's GPUs.
        """
        hosts = Counter(collective.all_gather_objects(platform.node()))
        here, devices, nodes = hosts[platform.node()], len(self.parallel_devices), max(self.num_nodes, self._num_nodes)
        if devices != 1 and {*hosts.values()} != {devices} and (here == 1 or self.root_device.type == "cpu"):
            rank_zero_warn(
                f"Lightning has {devices} devices on this host, but {here} of the job's ranks, and each rank uses one "
                "device: choose the number of ranks per host by `grsgd run -n`, mpiexec or srun"
            )
        if nodes not in (1, len(hosts)):
            rank_zero_warn(
                f"num_nodes={nodes}, but the job's ranks are on {len(hosts)} host(s): choose the hosts by `grsgd run "
                "--hosts`, mpiexec or srun"
            )

    def distribute(
        self, parts: Sequence[torch.nn.Module], optimizers: Sequence[torch.optim.Optimizer], precision
    ) -> list[DistributedOptimizer]:
        """Return one optimizer for each part of a model. Each optimizer trains its part on all ranks.

        Raises the errors of `grsgd.distribute`. Raises ConfigError if Lightning's plugin ``precision`` may skip a step
        on one rank while other ranks wait for this rank's model.
        """
        if getattr(precision, "scaler", None) is not None and algorithms.waits_in_steps(self.algorithm, self.options):
            raise ConfigError(
                f"precision={precision.precision!r} with {self.algorithm}: a rank whose gradient overflows skips its "
                "step, and the other ranks wait for its model: use 'bf16-mixed', or an algorithm that sends gradients"
            )
        return [
            distribute(part, optimizer, self.algorithm, **self.options)
            for part, optimizer in zip(parts, optimizers, strict=True)
        ]

    def reduce(self, tensor, group=None, reduce_op="mean"):
        """Return ``tensor`` reduced over all ranks. Raises the errors of `collective.reduce`."""
        tensor = tensor if isinstance(tensor, torch.Tensor) else torch.tensor(tensor)
        return collective.reduce(tensor, reduce_op)

    def all_gather(self, tensor: torch.Tensor, group=None, sync_grads: bool = False) -> torch.Tensor:
        """Return the tensors of all ranks as one tensor. Raises the errors of `collective.stack`."""
        return collective.stack(tensor, sync_grads)

    def barrier(self, name: str | None = None):
        collective.barrier(name)

    def broadcast(self, obj, src: int = 0):
        return collective.broadcast(obj, src)


def state_at_rest(optimizer: DistributedOptimizer) -> dict:
    """Return the state of an optimizer on this rank, after all messages under way were received. All ranks must call
    this function."""
    if not optimizer.finished:
        optimizer.rest()
    return optimizer.state_dict()
