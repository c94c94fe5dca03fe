"""Strategy of Lightning Fabric which trains a model with an algorithm of grsgd, on the ranks of an MPI job.

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

from grsgd.algorithms.base import ALGORITHMS
from grsgd.integrations import algorithms, collective
from grsgd.integrations.libraries import needed
from grsgd.integrations.parts import parts_of
from grsgd.integrations.refusals import check_is_distributed, refused_alike
from grsgd.own_loop.distributed_optimizer import DistributedOptimizer
from grsgd.own_loop.ranks import world

with needed("lightning"):
    from lightning.fabric.plugins import TorchCheckpointIO
    from lightning.fabric.plugins.environments import MPIEnvironment
    from lightning.fabric.strategies import STRATEGY_REGISTRY, ParallelStrategy
    from lightning.fabric.strategies.strategy import _BackwardSyncControl
    from lightning.fabric.utilities.rank_zero import rank_zero_only, rank_zero_warn

    from grsgd.integrations.metrics import over_all_ranks
    from grsgd.integrations.on_mpi_ranks import KEY, OnMpiRanks, state_at_rest


class GrsgdFabricStrategy(OnMpiRanks, ParallelStrategy):
    """Strategy that trains the model on all ranks with ``algorithm``. Each optimizer comes from `grsgd.distribute`.

    Start the script with ``grsgd run -n 4 script.py``, ``mpiexec`` or ``srun``. Each rank is one process and uses one
    device. ``options`` are options of the algorithm and of `grsgd.distribute`. Give ``fabric.setup`` the model together
    with its optimizers. ``fabric.setup`` raises the errors of `OnMpiRanks.distribute`.
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
        """Optimizers of all models that are in training, returned by `grsgd.distribute`."""
        self._backward_sync_control = Accumulation(self)
        rank_zero_only.rank = self.global_rank

    @refused_alike()
    def setup_environment(self):
        self.warn_of_devices()
        super().setup_environment()

    def module_to_device(self, module: torch.nn.Module):
        """Move the module to this rank's device, and let metrics of torchmetrics in the module use the samples of all
        ranks. `Fabric.to_device` calls this method for a metric."""
        over_all_ranks(module)
        module.to(self.root_device)

    @refused_alike()
    def setup_module_and_optimizers(self, module, optimizers, scheduler=None):
        """Return ``module``, the distributed optimizers made from ``optimizers``, and ``scheduler``."""
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
        """Take a step on all ranks. Gradients are averaged first, because a `GradScaler` then looks for infinite
        gradients."""
        if "closure" not in named:
            optimizer.synchronize()
        return super().optimizer_step(optimizer, **named)

    def clip_gradients_norm(self, module, optimizer: DistributedOptimizer, *arguments, **named):
        """Clip the mean gradient of all ranks if the algorithm sends gradients. If the algorithm sends models, clip
        this rank's gradient."""
        optimizer.synchronize()
        return super().clip_gradients_norm(module, optimizer, *arguments, **named)

    def clip_gradients_value(self, module, optimizer: DistributedOptimizer, *arguments, **named):
        """Clip the mean gradient of all ranks if the algorithm sends gradients. If the algorithm sends models, clip
        this rank's gradient."""
        optimizer.synchronize()
        return super().clip_gradients_value(module, optimizer, *arguments, **named)

    @contextmanager
    def rank_zero_first(self):
        """Run the block on rank 0, then on the other ranks, which wait at most ``timeout``. All ranks must enter the
        block.

        Use this method in place of ``fabric.rank_zero_first()``, which knows only the ranks of torch.distributed, and
        so makes no rank wait.
        """
        if self.global_rank > 0:
            self.barrier("before a block that rank 0 runs first")
        yield
        if self.global_rank == 0:
            self.barrier("after a block that rank 0 runs first")

    def finish(self):
        """Make the models of all ranks equal to the final model, after the last step. All ranks must call this
        method."""
        check_is_distributed(self.distributed, "fabric.setup()")
        for optimizer in self.distributed:
            optimizer.finish()

    def get_module_state_dict(self, module: torch.nn.Module) -> dict:
        """Return a copy of the module's state on this rank. Without the copy, pickle would write the whole array of
        each view."""
        return {
            name: value.detach().clone() if isinstance(value, torch.Tensor) else value
            for name, value in super().get_module_state_dict(module).items()
        }

    def get_optimizer_state(self, optimizer: DistributedOptimizer) -> dict:
        return state_at_rest(optimizer)

    def save_checkpoint(self, path, state, storage_options=None, filter=None):
        """Write the states of all ranks into one file, on rank 0. All ranks must call this method."""
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
    """Checkpoints in one file, in which every rank finds its own state again. Rank 0 writes the file, and all ranks
    read the file.

    In a job with another number of ranks, or with another algorithm, all ranks load rank 0's state, and the algorithm
    begins anew. ``algorithm`` is the name of the algorithm that trains in this job.
    """

    def __init__(self, algorithm: str):
        super().__init__()
        self.algorithm = algorithm

    def save_checkpoint(self, checkpoint, path, storage_options=None):
        """Gather the checkpoints of all ranks on rank 0, which writes them to ``path``."""
        of_ranks = collective.gather(checkpoint)
        if of_ranks is not None:
            kept = {"algorithm": self.algorithm, "ranks": of_ranks}
            super().save_checkpoint({**of_ranks[0], KEY: kept}, path, storage_options)

    def load_checkpoint(self, path, *arguments, **named):
        checkpoint = super().load_checkpoint(path, *arguments, **named)
        kept = checkpoint.pop(KEY, None)
        if isinstance(kept, list):  # a checkpoint of an earlier version, which does not name the algorithm
            kept = {"algorithm": self.algorithm, "ranks": kept}
        if kept is not None:
            name, of_ranks = kept["algorithm"], kept["ranks"]
            if name == self.algorithm and len(of_ranks) == world().size:
                return of_ranks[world().rank]
            rank_zero_warn(
                f"the checkpoint is of {name} on {len(of_ranks)} ranks, this job trains with {self.algorithm} on "
                f"{world().size}: all ranks begin with the model of rank 0, and the algorithm begins anew"
            )
        return {name: without_algorithm(value) for name, value in checkpoint.items()}


def without_algorithm(value):
    """Return the state of an optimizer without the entries of the algorithm. Return any other value unchanged."""
    is_state = isinstance(value, dict) and value.keys() >= {"state", "param_groups"}
    return {name: part for name, part in value.items() if name != KEY} if is_state else value


for _name in ALGORITHMS:
    STRATEGY_REGISTRY.register(
        f"grsgd_{_name}", GrsgdFabricStrategy, description=f"grsgd.distribute by {_name}", algorithm=_name
    )
