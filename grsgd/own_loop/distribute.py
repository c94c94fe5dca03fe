"""The function `distribute`, which lets a user's own training loop run any algorithm as a torch optimizer."""

from contextlib import contextmanager
from functools import partial

import torch
from pydantic import ValidationError

from grsgd.algorithms.base import ALGORITHMS, Algorithm, Options, Traits
from grsgd.algorithms.before_run import Trial
from grsgd.algorithms.bfloat16 import exchanged_dtype
from grsgd.algorithms.central import CentralAlgorithm
from grsgd.algorithms.common_batch import CommonBatchAlgorithm
from grsgd.algorithms.context import RankContext
from grsgd.algorithms.equal_tensors import copy_from_root
from grsgd.algorithms.find import find
from grsgd.comm.allreduce import broadcast
from grsgd.comm.backend import MpiBackend
from grsgd.comm.communicator import Communicator
from grsgd.comm.gpu.select import select_transport
from grsgd.comm.watchdog import within
from grsgd.config import ELEMENT_WISE
from grsgd.config.complaints import describe
from grsgd.errors import ConfigError, UsageError, did_you_mean
from grsgd.job import launch, words
from grsgd.models.replica import Replica
from grsgd.own_loop.checks import check_arguments, check_optimizer, check_same_arguments
from grsgd.own_loop.common_batch import CommonBatchOptimizer
from grsgd.own_loop.distributed_optimizer import DistributedOptimizer, unfinished
from grsgd.own_loop.early_gradients import EarlyGradients
from grsgd.own_loop.gradients import Gradients
from grsgd.own_loop.ranks import check_shards, communicator
from grsgd.own_loop.roll_call import roll_call
from grsgd.own_loop.served import ServedOptimizer, updating_optimizer
from grsgd.training import device as gpu

PROGRESS_MODES = ("auto", "thread", "inline")
OWN_OPTIONS = ("seed", "timeout", "progress_mode", "transfer")
"""Options of `distribute` itself, in addition to the options of the algorithm."""


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
    """Return an optimizer that trains ``model`` together with the models of all ranks of ``comm``.

    ``comm`` is an mpi4py communicator; None means MPI_COMM_WORLD. ``algorithm`` is a name that ``grsgd algorithms``
    lists, or ``FILE.py:CLASS`` for a user's own algorithm. ``options`` are the algorithm's options. ``timeout`` limits,
    in seconds, each wait for other ranks. ``transfer``: how arrays in GPU memory travel (`grsgd.comm.gpu.select`).

    All ranks must call this function, with models of the same architecture. Each model is on a GPU, or all are on the
    CPU. All ranks start from rank 0's parameters. After the call, an uncaught exception on one rank ends the job. Until
    ``finish()``, the model must keep its parameters, their memory, and the set of trained parameters. Call ``finish()``
    after the last step; the model may then be distributed again.

    Raises ConfigError, a ValueError, on all ranks: for an unknown algorithm or option; for parameters of the optimizer
    that are not the model's; for LBFGS; for SparseAdam with an algorithm that sends gradients; for models that cannot
    be flattened (`Replica`), that have two parameters in the same memory, or that are already distributed. If the
    script does not catch the error, the script ends with one line and exit code 2.
    """
    words.of_script()
    mpi = communicator(comm, "distribute(): comm")
    launch.abort_on_error(mpi)
    calling = roll_call(mpi, f"in distribute(model, optimizer, {algorithm!r})", timeout)
    with launch.collective_setup(mpi, timeout), as_config_error():
        check_progress_mode(progress_mode)
        cls, chosen = check_algorithm(model, optimizer, algorithm, options, mpi.size)
        traits = cls.traits_of(chosen)
        flat_gradients = traits.sends_gradients and traits.decides_who_computes
        replica = make_replica(model, cls, chosen, flat_gradients)
    use_device = partial(gpu.use, replica.device)
    use_device()
    gradients = make_gradients(replica, traits) if mpi.size > 1 and not traits.decides_who_computes else None
    with within(timeout, f"distribute(), {algorithm}, to which all ranks must come"):
        check_same_arguments(mpi, replica, cls, chosen, seed, timeout)
        check_shards(mpi, timeout)
        _, local_ranks = launch.local_ranks(mpi)
        with launch.collective_setup(mpi, timeout):
            launch.check_place(mpi, cls, chosen, local_ranks, replica.device)
        transport = select_transport(MpiBackend(mpi, timeout), replica.device, transfer, replica.nbytes)
        comm, uncounted = (Communicator(transport.backend.dup()) for _ in range(2))
        driver = launch.driver(mpi, timeout, progress_mode, prepare_thread=use_device)
        give_all_the_same(replica, uncounted, driver)
        chosen, reasons = decided(cls, chosen, RankContext(uncounted, uncounted, driver, seed=seed), replica)
    context = RankContext(comm, uncounted, driver, seed=seed)
    updating = updating_optimizer(cls, chosen, optimizer, comm, driver.clock)
    distributed = cls(chosen, replica, updating, context)
    if isinstance(gradients, EarlyGradients):
        gradients.ready = distributed.gradient_ready
    result = kind_of_optimizer(cls)(optimizer, replica, gradients, distributed, context, transport, calling)
    result.reasons = reasons
    return result


def check_progress_mode(mode: str):
    """Raise ConfigError if ``mode`` is no progress mode."""
    if mode not in PROGRESS_MODES:
        raise ConfigError(f"progress_mode = {mode!r}: allowed: {', '.join(PROGRESS_MODES)}")


def kind_of_optimizer(algorithm: type[Algorithm]) -> type[DistributedOptimizer]:
    """Return the class of the optimizer that `distribute` returns for an algorithm."""
    if issubclass(algorithm, CommonBatchAlgorithm):
        return CommonBatchOptimizer
    return ServedOptimizer if issubclass(algorithm, CentralAlgorithm) else DistributedOptimizer


def check_algorithm(model, optimizer, name: str, options: dict, ranks: int) -> tuple[type[Algorithm], Options]:
    """Return the algorithm called ``name`` and its checked options. Raises ValueError if the algorithm cannot train
    ``model`` with ``optimizer``."""
    check_arguments(model, optimizer, name)
    cls = algorithm_of(name)
    chosen = options_of(cls, options)
    cls.check(chosen, ranks)
    traits = cls.traits_of(chosen)
    if traits.splits_model and type(optimizer).__name__.lower() not in ELEMENT_WISE:
        raise ConfigError(
            f"{name}: servers > 1 with {type(optimizer).__name__}: a server holds a slice of the layers, and this "
            f"optimizer may read whole layers; allowed: servers = 1, or {', '.join(ELEMENT_WISE)}"
        )
    if not traits.supports_own_loop:
        option, allowed = cls.option_behind(chosen, "supports_own_loop")
        raise ConfigError(f"{name}: {option}: only `grsgd train` can run it; allowed: {allowed}")
    check_optimizer(model, optimizer, cls.traits.sends_gradients)
    return cls, chosen


def decided(
    algorithm: type[Algorithm], options: Options, context: RankContext, replica: Replica
) -> tuple[Options, dict[str, str]]:
    """Return the options of the algorithm, and a dictionary from an option's name to the reason for its value. An
    option with the value ``"auto"`` is chosen in a trial (measurements before the training)."""
    chosen, reasons = context.driver.run(
        algorithm.choose_options(options, Trial(context, replica.model, replica.dtype))
    )
    return options.model_copy(update=chosen), reasons


@contextmanager
def as_config_error():
    """Turn a ValueError that the block raises into a ConfigError, which is printed as one line without a traceback."""
    try:
        yield
    except UsageError:
        raise
    except ValueError as error:
        raise ConfigError(str(error)) from None


def check_not_distributed(model: torch.nn.Module):
    """Raise ConfigError if ``model`` shares a parameter with a model that another optimizer of `distribute` trains."""
    taken = {id(p) for other in unfinished for p in other.replica.model.parameters()}
    if any(id(p) in taken for p in model.parameters()):
        raise ConfigError(
            "the model, or a part of it, is distributed already: call finish() of its optimizer; if two optimizers "
            "train one model, give distribute() only the first optimizer, and step the second after the first"
        )


def make_replica(
    model: torch.nn.Module, algorithm: type[Algorithm], options: Options, flat_gradients: bool
) -> Replica:
    """Return the replica of ``model``. Raises ConfigError if the model is already distributed, or if ``algorithm`` with
    these ``options`` cannot train parameters of the model's dtypes."""
    check_not_distributed(model)
    exchanged = exchanged_dtype([p for p in model.parameters() if p.requires_grad], algorithm, options)
    return Replica(model, flat_gradients=flat_gradients, exchanged=exchanged)


def make_gradients(replica: Replica, traits: Traits) -> Gradients | None:
    """Return an object that holds the gradients of ``replica`` for an algorithm that sends gradients. Return None for
    other algorithms."""
    if not traits.sends_gradients:
        return None
    gradients = EarlyGradients(replica) if traits.sends_early else Gradients(replica)
    replica.grads, replica.move_gradients = gradients.flat, gradients.move
    return gradients


def give_all_the_same(replica: Replica, comm: Communicator, driver):
    """Copy rank 0's model to all ranks. Tensors outside the flat arrays are sent only if the ranks' tensors differ."""
    for array in (replica.params.array, replica.buffers.array):
        driver.run(broadcast(comm, array))
    replica.settle()
    replica.note_buffers()
    driver.run(copy_from_root(comm, replica.outside()))


def algorithm_of(name: str) -> type[Algorithm]:
    """Return the algorithm called ``name``. Raises ConfigError if no algorithm for users' own loops has this name."""
    names = sorted(key for key, cls in ALGORITHMS.items() if cls.traits.supports_own_loop)
    try:
        cls = find(name, names)
    except ConfigError as error:
        raise ConfigError(f"algorithm {error}") from None
    if not cls.traits.supports_own_loop:
        raise ConfigError(f"algorithm {name!r}: only `grsgd train` can run it; allowed: {', '.join(names)}")
    return cls


def options_of(algorithm, options: dict):
    """Return the checked options of an algorithm in a user's own loop. Raises ConfigError for unfit options."""
    if "progress" in options:
        raise ConfigError("progress: this option is called progress_mode now")
    try:
        return algorithm.Options(**options)
    except ValidationError as error:
        unknown = options.keys() - algorithm.Options.model_fields.keys()
        own = f"; options of distribute(): {', '.join(OWN_OPTIONS)}" if unknown else ""
        hints = own + "".join(did_you_mean(name, OWN_OPTIONS) for name in sorted(unknown))
        raise ConfigError(f"{algorithm.name}: {describe(error, algorithm.Options)}{hints}") from None
