"""Accelerator of Hugging Face Accelerate which trains a model with an algorithm of grsgd, on the ranks of an MPI job.

    from grsgd.integrations.accelerate import GrsgdAccelerator

    accelerator = GrsgdAccelerator("dpsgd", topology="ring")
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    ...                         # the training loop as it was
    accelerator.end_training()  # all ranks now hold the same model

Import this module before the first call of Accelerate. The import starts MPI, and makes MPI's ranks the processes that
Accelerate finds. Without an early import, Accelerate starts a process group of its own, or finds only one process.
"""

import inspect
import os
from contextlib import ExitStack, contextmanager

import torch

from grsgd.errors import ConfigError
from grsgd.integrations import algorithms, collective, process_group
from grsgd.integrations.averages import AverageInPlace
from grsgd.integrations.libraries import needed
from grsgd.integrations.parts import parts_of
from grsgd.integrations.refusals import check_is_distributed, refused_alike
from grsgd.mpi_environment import say
from grsgd.own_loop.distribute import distribute
from grsgd.own_loop.distributed_optimizer import DistributedOptimizer
from grsgd.own_loop.ranks import world

with needed("transformers"):
    from accelerate import Accelerator
    from accelerate.optimizer import AcceleratedOptimizer

BY_RANKS = (
    "each rank has a state of its own: save and load model.state_dict() and optimizer.optimizer.state_dict() on each "
    "rank: see docs/how-to/from/accelerate.md"
)
"""Reason why Accelerate's checkpoints are refused, and what to do instead."""
DIVIDING = (
    "deepspeed_plugin",
    "deepspeed_plugins",
    "fsdp_plugin",
    "torch_tp_plugin",
    "megatron_lm_plugin",
    "parallelism_config",
)
"""Arguments of ``Accelerator`` with which Accelerate divides a model among processes."""
DIVIDING_VARIABLES = ("DEEPSPEED", "FSDP", "MEGATRON_LM", "PARALLELISM_CONFIG")
"""Ends of environment variables ``ACCELERATE_USE_...`` with the same effect as the arguments in `DIVIDING`."""
process_group.start()


class GrsgdAccelerator(Accelerator):
    """Accelerator that trains models on all ranks with ``algorithm``. Each optimizer comes from `grsgd.distribute`.

    Start the script with ``grsgd run -n 4 script.py``, ``mpiexec`` or ``srun``. Each rank is one process and uses one
    device. Give `prepare` the models together with their optimizers. `prepare` raises the errors of `grsgd.distribute`.

    Parameters
    ----------
    algorithm
        Name of an algorithm that ``grsgd algorithms`` lists, or ``FILE.py:CLASS``.
    options
        Options of the algorithm, and of `grsgd.distribute`: ``seed``, ``timeout``, ``progress_mode``, ``transfer``.
    accelerator
        Arguments of ``Accelerator``, as a dictionary by name.

    Raises ConfigError for algorithms that decide which rank computes which gradient. Raises ConfigError for
    ``mixed_precision="fp16"``, DeepSpeed, FSDP and other ways to divide a model, and if Accelerate already sees
    processes other than MPI's ranks.
    """

    end_call = "accelerator.finish()"
    """The call after the last step, as error messages name it."""

    @refused_alike()
    def __init__(self, algorithm: str = "ring_allreduce", *, accelerator: dict | None = None, **options):
        algorithms.check(algorithm)
        check_arguments(accelerator or {})
        check_options(options)
        super().__init__(**(accelerator or {}))
        self.train_by(algorithm, options)

    @refused_alike()
    def train_by(self, algorithm: str, options: dict):
        """Train with ``algorithm`` and ``options`` from now on. Raises the errors of the class `GrsgdAccelerator`."""
        check_arguments({})
        mpi = world()
        if (self.num_processes, self.process_index) != (mpi.size, mpi.rank):
            raise ConfigError(
                f"Accelerate sees process {self.process_index} of {self.num_processes}, but this is rank {mpi.rank} of "
                f"{mpi.size}: import grsgd.integrations.accelerate, or grsgd.integrations.transformers, before the "
                "first call of Accelerate or Transformers"
            )
        if mpi.size == 1 and "ACCELERATE_DYNAMO_MODE" in os.environ:
            say("grsgd: this job has one rank, because `accelerate launch` starts no MPI ranks: use `grsgd run -n`")
        kind = str(self.distributed_type).rpartition(".")[2]
        if not (kind == "NO" or kind.startswith("MULTI_")) or self.parallelism_config is not None:
            raise ConfigError(f"Accelerate with {kind}: grsgd keeps a whole model per rank: leave {kind} out")
        if self.mixed_precision not in ("no", "bf16"):
            raise ConfigError(f"mixed_precision={self.mixed_precision!r} with grsgd: allowed: 'no', 'bf16'")
        self.algorithm, self.options = algorithm, options
        collective.wait_at_most(options.get("timeout"))
        self.refusing_models: list[torch.nn.Module] = []
        """Prepared models with the function `refuse_no_sync`, which `finish` removes."""
        self.average = AverageInPlace()
        """Average of all ranks' models, which can take the place of this rank's model for a while."""

    @property
    def distributed(self) -> list[DistributedOptimizer]:
        """Optimizers of all models that are in training."""
        return [optimizer for optimizer in self.average.distributed if not optimizer.finished]

    @refused_alike()
    def prepare(self, *objects, device_placement=None):
        """Prepare the objects as Accelerate does, but distribute models with their optimizers by `grsgd.distribute`."""
        models = [each for each in objects if isinstance(each, torch.nn.Module)]
        numbers = [number for number, each in enumerate(objects) if isinstance(each, torch.optim.Optimizer)]
        if not numbers:
            return super().prepare(*objects, device_placement=device_placement)
        if not models:
            raise ConfigError("prepare() of an optimizer without its model: give prepare() the model in the same call")
        for model in models if self.device_placement else ():
            model.to(self.device)
        optimizers = [plain(objects[number]) for number in numbers]
        parts = models if len(models) == len(numbers) == 1 else parts_of(torch.nn.ModuleList(models), optimizers)
        objects = list(objects)
        for number, part, optimizer in zip(numbers, parts, optimizers, strict=True):
            objects[number] = distribute(part, optimizer, self.algorithm, **self.options)
            objects[number].end_call = self.end_call
        self.average.distributed = self.distributed + [objects[number] for number in numbers]
        return super().prepare(*objects, device_placement=device_placement)

    def prepare_model(self, model, device_placement=None, evaluation_mode=False):
        """Prepare the model as for an evaluation. So Accelerate does not wrap the model in DDP, which would average
        gradients a second time."""
        taken = {id(p) for optimizer in self.distributed for p in optimizer.model.parameters()}
        if any(id(p) in taken for p in model.parameters()):
            device_placement = False  # Accelerate would move tensors from "cpu" to "cpu:0", into new memory
        model = super().prepare_model(model, device_placement, evaluation_mode=True)
        if self.num_processes > 1 and not hasattr(model, "no_sync"):
            model.no_sync = refuse_no_sync
            self.refusing_models.append(model)
        return model

    def backward(self, loss, **named):
        """Run the backward pass. In the last backward pass of a step, replace gradients by their means over all ranks,
        as DDP does."""
        check_is_distributed(self.distributed, "prepare()")
        super().backward(loss, **named)
        if self.sync_gradients:
            for optimizer in self.distributed:
                optimizer.synchronize()

    @contextmanager
    def no_sync(self, model):
        """Accumulate gradients of all optimizers in the block without sending them."""
        with ExitStack() as stack:
            for optimizer in self.distributed:
                stack.enter_context(optimizer.no_sync())
            yield

    def get_state_dict(self, model, unwrap=True) -> dict:
        """Return the state of ``model`` as Accelerate does, with a copy of each tensor.

        All trained parameters are parts of one array. safetensors keeps only one of several tensors that share memory,
        so each tensor is copied.
        """
        copies = {}
        state = super().get_state_dict(model, unwrap)
        for name, tensor in state.items():
            if isinstance(tensor, torch.Tensor):
                place = tensor.data_ptr(), tensor.shape, tensor.dtype
                if place not in copies:
                    copies[place] = tensor.clone()
                state[name] = copies[place]  # tied parameters (two names for one tensor) stay tied
        return state

    @refused_alike()
    def save_state(self, *arguments, **named):
        """Raise ConfigError, because Accelerate would save only the state of rank 0."""
        raise ConfigError(f"save_state() with grsgd: {BY_RANKS}")

    @refused_alike()
    def load_state(self, *arguments, **named):
        """Raise ConfigError, because Accelerate would load the same state on all ranks."""
        raise ConfigError(f"load_state() with grsgd: {BY_RANKS}")

    def finish(self):
        """Make the models of all ranks equal to the final model, after the last step. All ranks must call this
        method."""
        for optimizer in self.distributed:
            optimizer.finish()
        while self.refusing_models:
            del self.refusing_models.pop().no_sync

    def end_training(self):
        """Make the models of all ranks equal, and end the trackers. All ranks must call this method.

        The process group of torch.distributed stays in use for a later training.
        """
        self.finish()
        for tracker in self.trackers:
            tracker.finish()


def check_arguments(arguments: dict):
    """Raise ConfigError if ``arguments``, the arguments of ``Accelerator``, or environment variables of Accelerate
    divide a model."""
    found = [name for name in DIVIDING if arguments.get(name) is not None]
    variables = [f"ACCELERATE_USE_{end}" for end in DIVIDING_VARIABLES]
    found += [name for name in variables if os.environ.get(name, "false").lower() == "true"]
    if found:
        raise ConfigError(f"Accelerate with {found[0]}: grsgd keeps a whole model per rank: leave {found[0]} out")


def check_options(options: dict):
    """Raise ConfigError for an argument of ``Accelerator`` among the options of `GrsgdAccelerator`."""
    for name in options.keys() & inspect.signature(Accelerator).parameters.keys():
        raise ConfigError(f"{name}: is an argument of Accelerator: write accelerator={{{name!r}: {options[name]!r}}}")


@refused_alike()
def refuse_no_sync():
    """Raise ConfigError. A prepared model has this function as ``no_sync``, which Accelerate's ``LocalSGD`` calls."""
    raise ConfigError(
        "model.no_sync() with grsgd: call accelerator.no_sync(model); in place of LocalSGD use the algorithm "
        "'local_sgd', whose option H is the number of local steps"
    )


def plain(optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
    """Return ``optimizer`` without the wrappers from an earlier call of `GrsgdAccelerator.prepare`."""
    while isinstance(optimizer, AcceleratedOptimizer | DistributedOptimizer):
        optimizer = optimizer.optimizer
    return optimizer
