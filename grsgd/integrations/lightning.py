"""Strategy of Lightning which trains a LightningModule with an algorithm of grsgd, on the ranks of an MPI job.

    import lightning
    from grsgd.integrations.lightning import GrsgdStrategy

    trainer = lightning.Trainer(strategy=GrsgdStrategy("dpsgd", topology="torus"), devices=1)

After the import, ``strategy="grsgd_dpsgd"`` names the strategy with the algorithm "dpsgd" and default options.
"""

from collections.abc import Iterable
from contextlib import ExitStack, contextmanager
from typing import Any

import torch

from grsgd.algorithms.base import ALGORITHMS
from grsgd.errors import ConfigError
from grsgd.integrations import algorithms, collective
from grsgd.integrations.averages import AverageInPlace, copy_into
from grsgd.integrations.libraries import needed
from grsgd.integrations.parts import parts_of
from grsgd.integrations.refusals import refused_alike
from grsgd.own_loop.distributed_optimizer import DistributedOptimizer
from grsgd.own_loop.forward_hook import length

with needed("lightning"):
    from lightning.fabric.plugins.environments import MPIEnvironment
    from lightning.fabric.utilities.rank_zero import rank_zero_only as fabric_rank_zero_only
    from lightning.pytorch.callbacks import BaseFinetuning, Callback, LearningRateFinder, ModelPruning
    from lightning.pytorch.strategies import ParallelStrategy, StrategyRegistry
    from lightning.pytorch.trainer.states import TrainerFn
    from lightning.pytorch.utilities.rank_zero import rank_zero_only, rank_zero_warn

    from grsgd.integrations.metrics import over_all_ranks
    from grsgd.integrations.on_mpi_ranks import KEY, PLAIN, OnMpiRanks, state_at_rest

REFUSED = {
    LearningRateFinder: "its test ends the training of all ranks: find the learning rate on one rank, without grsgd",
    BaseFinetuning: "it adds parameters to an optimizer, which are never sent: give the optimizer all parameters",
    ModelPruning: "it replaces parameters, so that their changes are never sent: prune the model after the training",
}
"""Callbacks that work with no algorithm, and the reason why. Lightning itself refuses `BatchSizeFinder`."""


class GrsgdStrategy(OnMpiRanks, ParallelStrategy):
    """Strategy that trains the module's model on all ranks with ``algorithm``. Each optimizer comes from
    `grsgd.distribute`.

    Start the script with ``grsgd run -n 4 script.py``, ``mpiexec`` or ``srun``. Each rank is one process and uses one
    device. Lightning makes a sampler for each rank, as for DDP. All ranks start from rank 0's model.

    Parameters
    ----------
    algorithm
        Name of an algorithm that ``grsgd algorithms`` lists, or ``FILE.py:CLASS``.
    validate
        Which model is validated and saved during training: the ``"average"`` of all ranks' models, or each rank's
        ``"own"`` model.
    options
        Options of the algorithm, and of `grsgd.distribute`: ``seed``, ``timeout``, ``progress_mode``, ``transfer``.

    Raises
    ------
    ConfigError
        For ``sync_batchnorm=True``; for another value of ``validate``; for algorithms that decide which rank computes
        which gradient. `setup` raises ConfigError for the callbacks in `REFUSED`, even in a ``Tuner``, and for the
        reasons in `OnMpiRanks.distribute`.
    """

    strategy_name = "grsgd"
    is_distributed = True
    """Whether Lightning gives each rank its own share of the data."""

    @refused_alike()
    def __init__(
        self,
        algorithm: str = "ring_allreduce",
        *,
        validate: str = "average",
        accelerator=None,
        parallel_devices=None,
        checkpoint_io=None,
        precision_plugin=None,
        **options,
    ):
        if validate not in ("average", "own"):
            raise ConfigError(f"validate = {validate!r}: allowed: 'average', 'own'")
        algorithms.check(algorithm)
        super().__init__(accelerator, parallel_devices, MPIEnvironment(), checkpoint_io, precision_plugin)
        self.algorithm, self.validate, self.options = algorithm, validate, options
        collective.wait_at_most(options.get("timeout"))
        self.average = AverageInPlace()
        """Average of all ranks' models, which can take the place of this rank's model for a while."""
        self._accumulates = False
        """Whether more backward passes of the same step follow the present backward pass."""

    # ---- ranks and devices

    @property
    def distributed_sampler_kwargs(self) -> dict[str, Any]:
        return {"num_replicas": self.world_size, "rank": self.global_rank}

    def set_world_ranks(self):
        """Tell Lightning this rank's number, because only rank 0 prints."""
        rank_zero_only.rank = fabric_rank_zero_only.rank = self.global_rank

    @refused_alike()
    def setup_environment(self):
        if self._layer_sync is not None:
            raise ConfigError("sync_batchnorm=True: grsgd exchanges no statistics of batches: leave sync_batchnorm out")
        self.warn_of_devices()
        super().setup_environment()

    def model_to_device(self):
        self.model.to(self.root_device)

    # ---- training

    @refused_alike()
    def setup(self, trainer):
        if trainer.state.fn == TrainerFn.FITTING:
            check_callbacks(trainer.callbacks)
        super().setup(trainer)
        over_all_ranks(self.lightning_module)
        if trainer.state.fn == TrainerFn.FITTING:
            parts = parts_of(self.lightning_module, self.optimizers)
            self.optimizers = self.average.distributed = self.distribute(parts, self.optimizers, self.precision_plugin)
            for optimizer in self.distributed:
                optimizer.end_call = "reaching the end of trainer.fit()"

    def training_step(self, *arguments, **named):
        for optimizer in self.distributed:
            optimizer.before_forward(length((arguments[:1], named)))
        return super().training_step(*arguments, **named)

    @contextmanager
    def block_backward_sync(self):
        """Accumulate the gradients of the backward passes in the block, without sending them."""
        with ExitStack() as stack:
            for optimizer in self.distributed:
                stack.enter_context(optimizer.no_sync())
            self._accumulates = True
            try:
                yield
            finally:
                self._accumulates = False

    def post_backward(self, closure_loss: torch.Tensor):
        """Replace gradients by their means over all ranks, before callbacks read or clip them, as with DDP."""
        if self.lightning_module.automatic_optimization and not self._accumulates:
            for optimizer in self.distributed:
                optimizer.synchronize()

    def on_train_end(self):
        """Make the models of all ranks equal to the final model."""
        for optimizer in self.distributed:
            optimizer.finish()

    def teardown(self):
        """Make the models of all ranks equal also after a ``fit`` without a step left, for which Lightning does not
        call `on_train_end`."""
        if self.lightning_module is not None and not self.lightning_module.trainer.interrupted:
            self.on_train_end()
        super().teardown()

    # ---- the average of all ranks' models, in place of this rank's model

    @property
    def distributed(self) -> list[DistributedOptimizer]:
        """Optimizers of the present training, or of the last training after its end."""
        return self.average.distributed

    @property
    def _is_training(self) -> bool:
        """Whether the ranks are in training, so that their models or buffers may differ."""
        return self.world_size > 1 and any(not optimizer.finished for optimizer in self.distributed)

    def on_validation_start(self):
        if self._is_training and self.validate == "average":
            self.average.put()

    def on_validation_end(self):
        self.average.put_own()

    # ---- checkpoints: one file for all ranks

    restore_checkpoint_after_setup = True
    """Whether Lightning loads a checkpoint after `setup`; in `setup`, all ranks get rank 0's model."""

    def lightning_module_state_dict(self) -> dict[str, Any]:
        """Return the module's state with the averaged model. All ranks must call this method between two steps."""
        if self.average.own is not None or not self._is_training or self.validate == "own":
            return super().lightning_module_state_dict()
        with self.average.in_place():
            return {
                name: value.clone() if isinstance(value, torch.Tensor) else value
                for name, value in super().lightning_module_state_dict().items()
            }

    def optimizer_state(self, optimizer) -> dict[str, Any]:
        return state_at_rest(getattr(optimizer, "_optimizer", optimizer))

    def save_checkpoint(self, checkpoint: dict[str, Any], filepath, storage_options=None):
        """Write a checkpoint on rank 0, with the states of all ranks under the key ``"grsgd"``. All ranks must call
        this method."""
        if self._is_training and "optimizer_states" in checkpoint:
            models_differ = any(not each.algorithm.traits.equal_models for each in self.distributed)
            states = checkpoint["optimizer_states"]
            if not models_differ and not self.is_global_zero:  # rank 0 alone writes entries that are equal on all ranks
                states = [{key: value for key, value in state.items() if key not in PLAIN} for state in states]
            own = self.average.own if self.average.own is not None else self.average.tensors()
            first = 0 if models_differ else sum(len(list(each.model.parameters())) for each in self.distributed)
            kept = [tensor.detach().cpu().clone() for tensor in own[first:]]  # a view is pickled with its whole array
            ranks = collective.gather({"tensors": kept, "optimizers": states})
            checkpoint = checkpoint | {KEY: {"algorithm": self.algorithm, "ranks": ranks}}
        super().save_checkpoint(checkpoint, filepath, storage_options)

    def load_model_state_dict(self, checkpoint, strict: bool = True):
        super().load_model_state_dict(checkpoint, strict)
        self._load_own_tensors(self._state_in(checkpoint))

    def _load_own_tensors(self, own: dict[str, Any] | None):
        """Copy this rank's own tensors from the rank's state ``own`` in a checkpoint into the model, if it has any."""
        if own is not None and own["tensors"]:  # these are all tensors, or only the last tensors, the buffers
            copy_into(self.average.tensors()[-len(own["tensors"]) :], own["tensors"])

    def load_optimizer_state_dict(self, checkpoint):
        own = self._state_in(checkpoint)
        self._load_own_tensors(own)  # again, because callbacks such as WeightAveraging load another model meanwhile
        for number, optimizer in enumerate(self.distributed):
            plain = {key: checkpoint["optimizer_states"][number][key] for key in PLAIN}
            if own is None:
                optimizer.optimizer.load_state_dict(plain)
            else:
                optimizer.load_state_dict(plain | own["optimizers"][number])

    def _state_in(self, checkpoint) -> dict[str, Any] | None:
        """Return this rank's state in ``checkpoint``. Return None if the checkpoint is of another algorithm or another
        number of ranks, so that all ranks begin with the checkpoint's averaged model."""
        kept = checkpoint.get(KEY)
        if not self.distributed or kept is None:
            return None
        if kept["algorithm"] == self.algorithm and len(kept["ranks"]) == self.world_size:
            return kept["ranks"][self.global_rank]
        rank_zero_warn(
            f"the checkpoint is of {kept['algorithm']} on {len(kept['ranks'])} ranks, this job trains with "
            f"{self.algorithm} on {self.world_size}: all ranks begin with the averaged model of the checkpoint"
        )
        return None


def check_callbacks(callbacks: Iterable[Callback]):
    """Raise ConfigError if one of ``callbacks`` is of a class in `REFUSED`."""
    for callback in callbacks:
        for kind, reason in REFUSED.items():
            if isinstance(callback, kind):
                raise ConfigError(f"callback {type(callback).__name__} with grsgd: {reason}")


for _name in ALGORITHMS:
    StrategyRegistry.register(
        f"grsgd_{_name}", GrsgdStrategy, description=f"grsgd.distribute by {_name}", algorithm=_name
    )
