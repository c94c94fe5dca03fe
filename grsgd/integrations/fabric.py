"""Strategy of Lightning Fabric that trains a model by an algorithm of grsgd, on the ranks of an MPI job.

    from lightning.fabric import Fabric
    from grsgd.integrations.fabric import GrsgdFabricStrategy

    fabric = Fabric(strategy=GrsgdFabricStrategy("dpsgd"), devices=1)
    fabric.launch()
    model, optimizer = fabric.setup(model, optimizer)
    ...                            # the training loop as it was
    fabric.strategy.finish()       # all ranks now hold the same model
"""

from contextlib import ExitStack, contextmanager

import torch

from grsgd.integrations import algorithms, collective
from grsgd.integrations.libraries import needed
from grsgd.integrations.parts import parts_of
from grsgd.integrations.refusals import refused_alike
from grsgd.own_loop.distributed_optimizer import DistributedOptimizer
from grsgd.own_loop.ranks import world

with needed("lightning"):
    from lightning.fabric.plugins import TorchCheckpointIO
    from lightning.fabric.plugins.environments import MPIEnvironment
    from lightning.fabric.strategies import ParallelStrategy
    from lightning.fabric.strategies.strategy import _BackwardSyncControl
    from lightning.fabric.utilities.rank_zero import rank_zero_only, rank_zero_warn

    from grsgd.integrations.metrics import over_all_ranks
    from grsgd.integrations.on_mpi_ranks import KEY, OnMpiRanks, state_at_rest


class GrsgdFabricStrategy(OnMpiRanks, ParallelStrategy):
    """Strategy that trains the model on all ranks by ``algorithm``, each optimizer by `grsgd.distribute`.

    Start the script by ``grsgd run -n 4 script.py``, ``mpiexec`` or ``srun``: each rank is one process and uses one
    device. ``options`` are options of the algorithm and of `grsgd.distribute`. ``fabric.setup`` must be given the model
    together with its optimizers, and raises the errors of `OnMpiRanks.distribute`.
    """

    @refused_alike()
    def __init__(
        self,
        algorithm: str = "ring_allreduce",
        *,
        accelerator=None,
        parallel_devices=None,
        checkpoint_io=None,
        precision=None,
        **options,
    ):
        algorithms.check(algorithm)
        super().__init__(
            accelerator, parallel_devices, MPIEnvironment(), checkpoint_io or RanksInOneFile(algorithm), precision
        )
        self.algorithm, self.options = algorithm, options
        collective.wait_at_most(options.get("timeout"))
        self.distributed: list[DistributedOptimizer] = []
        """Optimizers of all models that are in training."""
        self._backward_sync_control = Accumulation(self)
        rank_zero_only.rank = self.global_rank

    @refused_alike()
    def setup_environment(self):
        self.warn_of_devices()
        super().setup_environment()

    def module_to_device(self, module: torch.nn.Module):
        """Move the module, and let its metrics of torchmetrics be computed over all ranks: `Fabric.to_device` calls
        this method for a metric."""
        over_all_ranks(module)
        module.to(self.root_device)

    def setup_module_and_optimizers(self, module, optimizers, scheduler=None):
        """Return the module, the distributed optimizers, and the scheduler."""
        over_all_ranks(module)
        parts = [module] if len(optimizers) == 1 else parts_of(module, optimizers)
        new = self.distribute(parts, optimizers, self.precision)
        for optimizer in new:
            optimizer.end_call = "fabric.strategy.finish()"
        self.distributed = [optimizer for optimizer in self.distributed if not optimizer.finished] + new
        return module, new, scheduler

    def setup_optimizer(self, optimizer):
        raise RuntimeError(self._err_msg_joint_setup_required())

    def optimizer_step(self, optimizer: DistributedOptimizer, **named):
        """Take a step of all ranks; gradients are averaged before a `GradScaler` looks for infinite gradients."""
        if "closure" not in named:
            optimizer.synchronize()
        return super().optimizer_step(optimizer, **named)

    def clip_gradients_norm(self, module, optimizer: DistributedOptimizer, *arguments, **named):
        """Clip the mean gradient of all ranks if the algorithm sends gradients, otherwise this rank's gradient."""
        optimizer.synchronize()
        return super().clip_gradients_norm(module, optimizer, *arguments, **named)

    def clip_gradients_value(self, module, optimizer: DistributedOptimizer, *arguments, **named):
        """Clip the mean gradient of all ranks if the algorithm sends gradients, otherwise this rank's gradient."""
        optimizer.synchronize()
        return super().clip_gradients_value(module, optimizer, *arguments, **named)

    @contextmanager
    def rank_zero_first(self):
        """Run the block on rank 0, then on the other ranks, which wait at most ``timeout``; entered on all ranks.

        ``fabric.rank_zero_first()`` waits for no rank, because it knows only the ranks of torch.distributed.
        """
        if self.global_rank > 0:
            self.barrier("before a block that rank 0 runs first")
        yield
        if self.global_rank == 0:
            self.barrier("after a block that rank 0 runs first")

    def finish(self):
        """Make the models of all ranks equal, after the last step and on all ranks: the final model."""
        for optimizer in self.distributed:
            optimizer.finish()

    def get_module_state_dict(self, module: torch.nn.Module) -> dict:
        """Return a copy of the module's state on this rank: pickle would write the whole array of each view."""
        return {
            name: value.detach().clone() if isinstance(value, torch.Tensor) else value
            for name, value in super().get_module_state_dict(module).items()
        }

    def get_optimizer_state(self, optimizer: DistributedOptimizer) -> dict:
        return state_at_rest(optimizer)

    def save_checkpoint(self, path, state, storage_options=None, filter=None):
        """Write the states of all ranks into one file, on rank 0; called on all ranks."""
        own = self._convert_stateful_objects_in_state(state, filter=filter or {})
        self.checkpoint_io.save_checkpoint(own, path, storage_options)

    all_reduce = OnMpiRanks.reduce


class Accumulation(_BackwardSyncControl):
    """Accumulation of gradients in ``fabric.no_backward_sync``, for all optimizers of ``strategy``."""

    def __init__(self, strategy: GrsgdFabricStrategy):
        self.strategy = strategy

    @contextmanager
    def no_backward_sync(self, module: torch.nn.Module, enabled: bool):
        with ExitStack() as stack:
            for optimizer in self.strategy.distributed if enabled else ():
                stack.enter_context(optimizer.no_sync())
            yield


class RanksInOneFile(TorchCheckpointIO):
    """Checkpoints in which every rank finds its own state again; rank 0 writes the file, and all ranks read it.

    In a job with another number of ranks, or with another algorithm, all ranks find rank 0's state, and the algorithm
    begins anew. ``algorithm`` is the name of the algorithm that trains in this job.
    """

    def __init__(self, algorithm: str):
        super().__init__()
        self.algorithm = algorithm

    def save_checkpoint(self, checkpoint, path, storage_options=None):
        """Gather the checkpoints of all ranks, and write them on rank 0."""
        of_ranks = collective.gather(checkpoint)
        if of_ranks is not None:
            kept = {"algorithm": self.algorithm, "ranks": of_ranks}
            super().save_checkpoint({**of_ranks[0], KEY: kept}, path, storage_options)

    def load_checkpoint(self, path, *arguments, **named):
        checkpoint = super().load_checkpoint(path, *arguments, **named)
        kept = checkpoint.pop(KEY, None)
        if kept is not None:
            name, of_ranks = kept["algorithm"], kept["ranks"]
            if name == self.algorithm and len(of_ranks) == world().size:
                return of_ranks[world().rank]
            rank_zero_warn(
                f"the checkpoint is of {name} on {len(of_ranks)} ranks, this job trains by {self.algorithm} on "
                f"{world().size}: all ranks begin with the model of rank 0, and the algorithm begins anew"
            )
        return {name: without_algorithm(value) for name, value in checkpoint.items()}


def without_algorithm(value):
    """Return the state of an optimizer without the algorithm's part; any other value as it is."""
    is_state = isinstance(value, dict) and value.keys() >= {"state", "param_groups"}
    return {name: part for name, part in value.items() if name != KEY} if is_state else value
